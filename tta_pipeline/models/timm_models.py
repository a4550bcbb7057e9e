"""Models of timm with timm's own weights."""

from tta_pipeline.benchmarks.model_specs import TimmModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.libraries import import_timm, library_architecture
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.util.nearest_names import name_choices


def timm_weights_identity(spec: TimmModel) -> str:
    """Return the origin of timm's weights for *spec*, since a name without a tag means timm's newest weights.

    Raises:
        EvaluationError: timm is not installed.
    """
    settings = import_timm().get_pretrained_cfg(spec.architecture)
    return f"{settings.hf_hub_id} {settings.tag} {settings.url}" if settings else ""


def load_timm_model(name: str, spec: TimmModel) -> LoadedModel:
    """Return timm's model with the weights that *spec* names, and with their normalisation.

    Raises:
        EvaluationError: timm is not installed, has no such model, or its weights cannot be downloaded.
    """
    timm = import_timm()
    try:
        network = timm.create_model(spec.architecture, pretrained=True)
    except Exception as error:  # its hub client raises errors of any kind
        known = timm.list_models(pretrained=True)
        choices = name_choices(spec.architecture, known, listed_in="timm.list_models(pretrained=True)")
        expected = "" if spec.architecture in known else f"one of {choices}, and "
        raise EvaluationError(
            f"timm cannot make {spec.architecture!r} ({error}); expected {expected}"
            "a connection or its file in the cache of huggingface_hub"
        ) from error
    settings = network.pretrained_cfg
    return library_architecture("timm", spec.architecture).make_model(
        name, network.state_dict(), num_classes=network.num_classes,
        mean=tuple(settings["mean"]), std=tuple(settings["std"]),
        weights=f"timm {spec.architecture} {settings.get('tag') or ''}".strip(),
    )  # fmt: skip
