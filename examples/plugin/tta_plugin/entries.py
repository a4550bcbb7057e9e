"""The method's entry, which `tta_pipeline` reads without importing torch."""

from pydantic import Field

from tta_pipeline.methods.entry import RESNET_PRESETS, Hyperparameters, MethodEntry


class GatedNormHyperparameters(Hyperparameters):
    """Hyperparameters of the method."""

    gate: float = Field(default=0.4, ge=0, le=1)
    """Least entropy at which an image is predicted with the batch's statistics, as a fraction of ln K."""


GATED_NORM = MethodEntry(
    implementation="tta_plugin.gated_norm:GatedNorm",
    summary="Batch norm with the statistics of the batch for images of which the source model is unsure.",
    presets=dict.fromkeys(RESNET_PRESETS, GatedNormHyperparameters()),
    min_batch_size=2,
    passes=2,
)
