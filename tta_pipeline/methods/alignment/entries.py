"""Methods that take gradient steps towards the statistics of the source's features."""

from collections.abc import Mapping

from pydantic import Field

from tta_pipeline.methods.entry import PRESETS, USUAL_SETS, GradientHyperparameters, MethodEntry, Paper
from tta_pipeline.util.config_model import MAX_COUNT


class DpcoreHyperparameters(GradientHyperparameters):
    """Hyperparameters of DPCore."""

    steps: int = Field(default=50, ge=1, le=MAX_COUNT)
    """Number of updates of new prompts; the coreset's prompts take one for each batch."""
    num_prompts: int = Field(default=8, ge=1, le=MAX_COUNT)
    """Number of prompt tokens."""
    reuse_threshold: float = Field(default=0.8, ge=0, allow_inf_nan=False)
    """Share of a batch's distance from the source below which the coreset's prompts must bring it to be used (rho in
    the paper)."""
    temperature: float = Field(default=3.0, gt=0, allow_inf_nan=False)
    """Temperature of the weights of the coreset's elements, in units of the distance (tau in the paper)."""
    coreset_rate: float = Field(default=0.999, ge=0, le=1)
    """Fraction of the way to a batch by which an element of weight 1 moves (alpha in the paper)."""
    source_size: int = Field(default=300, ge=2, le=MAX_COUNT)
    """Number of source images for the statistics of features, or all if there are fewer."""


METHODS: Mapping[str, MethodEntry] = {
    "dpcore": MethodEntry(
        implementation="tta_pipeline.methods.alignment.dpcore:Dpcore",
        summary="Learns prompts for a ViT that bring features back to the source's, and reuses them for like domains.",
        adapts="prompts, coreset of prompts",
        prediction="before the last update",
        layers="linear head",
        written_from="authors' code",
        presets=dict.fromkeys(PRESETS, DpcoreHyperparameters(lr=0.1, optimizer="adamw", weight_decay=0.01)),
        published={"imagenet_vit": USUAL_SETS["imagenet_vit"]},
        source_data="required",
        needs="vit",
        paper=Paper(
            authors="Zhang, Yunbei and others",
            venue="ICML",
            year=2025,
            arxiv="2406.10737",
            title="DPCore: Dynamic Prompt Coreset for Continual Test-Time Adaptation",
        ),
        passes=152,
        backwards=50,
    ),
}
