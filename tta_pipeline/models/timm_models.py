"""Models of timm with timm's own weights."""

from math import floor
from typing import Any

from tta_pipeline.benchmarks.model_specs import TimmModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture, NetworkWeights
from tta_pipeline.models.libraries import import_timm, library_architecture
from tta_pipeline.models.model_kind import NetworkKind, OwnTransform
from tta_pipeline.util.nearest_names import name_choices

_LISTED = "timm.list_models(pretrained=True)"
_CROP_SHARE = 0.875
"""Share of the crop if a configuration has none."""


class Timm(NetworkKind[TimmModel]):
    """A network of timm with the weights that its section names, and with their normalisation."""

    def architecture(self) -> Architecture:
        """Return timm's network."""
        return library_architecture("timm", self.section.architecture)

    def weights(self, num_classes: int | None) -> NetworkWeights:
        """Return timm's weights, which are downloaded."""
        del num_classes
        network = _create_pretrained(self.section.architecture)
        tag = network.pretrained_cfg.get("tag") or ""
        return timm_weights(network, origin=f"timm {self.section.architecture} {tag}".strip())

    def start_identity(self) -> str:
        """Return the origin of timm's weights, since a name without a tag means timm's newest weights."""
        settings = _published(self.section.architecture)
        return f"{settings.hf_hub_id} {settings.tag} {settings.url}" if settings else ""

    def own_transforms(self) -> tuple[OwnTransform, ...]:
        """Return the transforms of the `pretrained_cfg` of the weights."""
        known = _published(self.section.architecture)
        return timm_transforms(known.to_dict()) if known else ()

    def check(self, *, name: str, num_classes: int | None, image_size: int) -> None:
        """Raise an error if timm lists no such model, or has no weights with this tag."""
        super().check(name=name, num_classes=num_classes, image_size=image_size)
        self.check_architecture()
        _published(self.section.architecture)

    def check_architecture(self) -> None:
        """Raise an error if timm does not list the architecture."""
        known = import_timm().list_models()
        if self.section.architecture.partition(".")[0] not in known:
            choices = name_choices(self.section.architecture, known, listed_in="timm.list_models()")
            raise EvaluationError(f"timm has no model {self.section.architecture!r}; expected one of {choices}")


def _published(architecture: str) -> Any:
    """Return timm's facts of the weights; None if it has no such architecture.

    Raises:
        EvaluationError: timm has no weights with this tag.
    """
    timm = import_timm()
    try:
        return timm.get_pretrained_cfg(architecture)
    except RuntimeError as error:
        choices = name_choices(architecture, timm.list_models(pretrained=True), listed_in=_LISTED)
        raise EvaluationError(f"timm has no weights {architecture!r}; expected one of {choices}") from error


def _create_pretrained(architecture: str) -> Any:
    timm = import_timm()
    try:
        return timm.create_model(architecture, pretrained=True)
    except Exception as error:  # its hub client raises errors of any kind
        known = timm.list_models(pretrained=True)
        choices = name_choices(architecture, known, listed_in=_LISTED)
        expected = "" if architecture in known else f"one of {choices}, and "
        raise EvaluationError(
            f"timm cannot build {architecture!r} ({error}); expected {expected}a connection, or the file in the cache "
            "of huggingface_hub: download it"
        ) from error


def timm_weights(network: Any, *, origin: str) -> NetworkWeights:
    """Return the weights of timm's *network* with the normalisation in its `pretrained_cfg`."""
    mean, std = (tuple(network.pretrained_cfg[name]) for name in ("mean", "std"))
    return NetworkWeights(
        state=network.state_dict(), num_classes=network.num_classes, mean=mean, std=std, origin=origin
    )


def timm_transforms(settings: Any) -> tuple[OwnTransform, ...]:
    """Return the transform of a `pretrained_cfg`, and the transform of its larger test images if it has one."""
    found = []
    for prefix in ("", "test_"):
        if (size := settings.get(f"{prefix}input_size")) is None:
            continue
        share = settings.get(f"{prefix}crop_pct") or settings.get("crop_pct") or _CROP_SHARE
        found.append(
            OwnTransform(
                size=size[-1],
                resize=floor(size[-1] / share),
                interpolation=settings.get("interpolation") or "bicubic",
                keeps_ratio=(settings.get("crop_mode") or "center") == "center",
                mean=tuple(settings.get("mean") or ()),
                std=tuple(settings.get("std") or ()),
            )
        )
    return tuple(found)
