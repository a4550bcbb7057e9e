"""Classifiers published for timm on the Hugging Face Hub, each at one commit."""

from dataclasses import replace
from typing import Any

from tta_pipeline.benchmarks.model_specs import HubModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture
from tta_pipeline.models.libraries import import_timm, library_architecture
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.weights import first_line


def load_hub_model(name: str, spec: HubModel) -> LoadedModel:
    """Return a model of the hub with its weights, and with the normalisation in its `config.json`.

    Raises:
        EvaluationError: timm is not installed, or the model cannot be fetched or made.
    """
    network = _create_network(spec, pretrained=True)
    settings = network.pretrained_cfg
    return hub_architecture(spec).make_model(
        name, network.state_dict(), num_classes=network.num_classes, mean=tuple(settings["mean"]),
        std=tuple(settings["std"]), weights=f"{spec.hf}@{spec.revision}",
    )  # fmt: skip


def hub_architecture(spec: HubModel) -> Architecture:
    """Return the network of a model of the hub, without its weights.

    Raises:
        EvaluationError: timm is not installed.
    """
    return replace(
        library_architecture("timm", _address(spec)),
        make=lambda num_classes: _create_network(spec, num_classes=num_classes),
    )


def fetch_hub_classes(spec: HubModel) -> tuple[str, ...]:
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
