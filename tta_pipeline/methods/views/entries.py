"""Methods that average random views of each image separately."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from tta_pipeline.methods.entry import GradientHyperparameters, Hyperparameters, MethodEntry, Paper
from tta_pipeline.util.config_model import MAX_COUNT


class TtaugHyperparameters(Hyperparameters):
    """Hyperparameters of test-time augmentation."""

    num_augmentations: int = Field(default=32, ge=1, le=MAX_COUNT)
    """Number of random views of each image."""
    crop: Literal["resized", "padded"] = "resized"
    """First step of a view: at least 8% of the area resized to full size, or a shift by up to 4 pixels."""
    prior_strength: float = Field(default=16, ge=0, allow_inf_nan=False)
    """Weight of the source statistics in batch norm; the statistics of one image and its views weigh 1."""


class MemoHyperparameters(GradientHyperparameters, TtaugHyperparameters):
    """Hyperparameters of MEMO."""

    episodic: bool = True
    """Whether the method is reset before every image."""


_MEMO = Paper(
    authors="Zhang, Marvin and others",
    venue="NeurIPS",
    year=2022,
    arxiv="2110.09506",
    title="MEMO: Test Time Robustness via Adaptation and Augmentation",
)
METHODS: Mapping[str, MethodEntry] = {
    "ttaug": MethodEntry(
        implementation="tta_pipeline.methods.views.ttaug:Ttaug",
        summary="Averages the predictions over random views of each image, without adaptation.",
        presets={"imagenet": TtaugHyperparameters(num_augmentations=64), "cifar": TtaugHyperparameters(crop="padded")},
        published={},
        paper=_MEMO,
        passes=65,
    ),
    "memo": MethodEntry(
        implementation="tta_pipeline.methods.views.memo:Memo",
        summary="Minimises the entropy of the mean prediction over random views, for each image separately.",
        adapts="all parameters",
        prediction="after the update",
        presets={
            "imagenet": MemoHyperparameters(lr=2.5e-4, momentum=0, num_augmentations=64),
            "cifar": MemoHyperparameters(lr=0.005, momentum=0, crop="padded"),
        },
        published={"imagenet": {"imagenet_c": {}, "imagenet_r": {}, "imagenet_a": {}}, "cifar": {"cifar_10_c": {}}},
        paper=_MEMO,
        passes=193,
        backwards=64,
    ),
}
