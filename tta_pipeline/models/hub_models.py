"""Classifiers published for timm on the Hugging Face Hub, each at one commit."""

from dataclasses import replace
from typing import Any

from tta_pipeline.benchmarks.model_specs import HubModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture, NetworkWeights
from tta_pipeline.models.libraries import cached_json, import_timm, library_architecture
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import ModelContext, NetworkKind, OwnTransform
from tta_pipeline.models.timm_models import timm_transforms, timm_weights
from tta_pipeline.models.weights import first_line


class Hub(NetworkKind[HubModel]):
    """A network of the hub with its weights, and with the normalisation in its `config.json`."""

    def architecture(self) -> Architecture:
        """Return timm's network, as the model's `config.json` describes it."""
        return replace(
            library_architecture("timm", _address(self.section)),
            make=lambda num_classes: _create_network(self.section, num_classes=num_classes),
        )

    def weights(self, num_classes: int | None) -> NetworkWeights:
        """Return the weights at the commit, which are fetched."""
        del num_classes
        origin = f"{self.section.hf}@{self.section.revision}"
        return timm_weights(_create_network(self.section, pretrained=True), origin=origin)

    def load_for_classes(self, context: ModelContext) -> LoadedModel:
        """Return the model with the outputs for the classes, if `label_names` in its `config.json` has them."""
        if not self.section.classes and context.are_outputs(labels := _fetch_classes(self.section)):
            model = self.load_all(context.name, num_classes=len(labels))
            return context.match_outputs(model, labels, named=f"label_names of {self.section.hf}")
        return super().load_for_classes(context)

    def own_transforms(self) -> tuple[OwnTransform, ...]:
        """Return the transforms in the `config.json`, if this machine has it."""
        found = cached_json("timm", self.section.hf, self.section.revision, "config.json")
        return timm_transforms(found.get("pretrained_cfg", found))


def _fetch_classes(spec: HubModel) -> tuple[str, ...]:
    """Return `label_names` in the model's `config.json`; empty if there are none.

    Raises:
        EvaluationError: timm is not installed, or the file cannot be fetched.
    """
    import_timm()
    from timm.models import load_model_config_from_hf

    try:
        settings, _, _ = load_model_config_from_hf(f"{spec.hf}@{spec.revision}")
    except Exception as error:  # its hub client raises errors of any kind
        raise _creation_error(spec, error) from error
    return tuple(settings.get("label_names") or ())


def _create_network(spec: HubModel, **settings: Any) -> Any:
    timm = import_timm()
    try:
        return timm.create_model(_address(spec), **settings)
    except NotImplementedError:
        raise  # the meta device raises this; the network can be made on another device
    except Exception as error:  # its hub client raises errors of any kind
        raise _creation_error(spec, error) from error


def _creation_error(spec: HubModel, error: Exception) -> EvaluationError:
    return EvaluationError(
        f"timm cannot make {_address(spec)} ({first_line(error)}); expected a model for timm with config.json and "
        "weights at this commit, and a connection or the files in the cache of huggingface_hub"
    )


def _address(spec: HubModel) -> str:
    return f"hf-hub:{spec.hf}@{spec.revision}"
