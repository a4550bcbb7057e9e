"""Methods for the zero-shot classifier of a CLIP."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from tta_pipeline.methods.entry import PRESETS, Hyperparameters, MethodEntry, Paper
from tta_pipeline.util.config_model import MAX_COUNT


class TdaHyperparameters(Hyperparameters):
    """Hyperparameters of TDA."""

    positive_size: int = Field(default=3, ge=1, le=MAX_COUNT)
    """Number of images of each class in the positive cache."""
    positive_alpha: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    """Weight of the positive cache's votes, in logits."""
    positive_beta: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    """How fast a vote for a class falls with the distance of the image: exp(-beta (1 - cosine))."""
    negative_size: int = Field(default=2, ge=1, le=MAX_COUNT)
    """Number of images of each class in the negative cache."""
    negative_alpha: float = Field(default=0.117, ge=0, allow_inf_nan=False)
    """Weight of the negative cache's votes, in logits."""
    negative_beta: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """How fast a vote against a class falls with the distance of the image."""
    entropy_lower: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    """Entropy above which an image enters the negative cache, in nats divided by log2 K."""
    entropy_upper: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Entropy below which an image enters the negative cache, in nats divided by log2 K."""
    mask_lower: float = Field(default=0.03, ge=0, le=1)
    """Probability above which an image of the negative cache votes against a class."""
    mask_upper: float = Field(default=1.0, ge=0, le=1)
    """Probability below which an image of the negative cache votes against a class."""


class BcaHyperparameters(Hyperparameters):
    """Hyperparameters of BCA."""

    embedding_threshold: float = Field(default=0.05, ge=0, le=1)
    """Probability of the nearest class embedding above which the image enters its mean."""
    embedding_count: float = Field(default=20_000.0, gt=0, allow_inf_nan=False)
    """Number of images that the text counts for in the mean of a class embedding."""
    prior_threshold: float = Field(default=0.65, ge=0, le=1)
    """Probability of the nearest class embedding above which the prediction enters the embedding's prior."""
    prior_count: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Number of predictions that the one-hot prior counts for in the mean."""


class ZeroHyperparameters(Hyperparameters):
    """Hyperparameters of ZERO."""

    num_views: int = Field(default=64, ge=2, le=MAX_COUNT)
    """Number of views of each image, including the image itself."""
    kept_share: float = Field(default=0.3, gt=0, le=1)
    """Share of the views, those of lowest entropy, that vote (gamma in the paper)."""


class TptHyperparameters(Hyperparameters):
    """Hyperparameters of TPT."""

    takes_gradients: ClassVar[bool] = True

    lr: float = Field(default=5e-3, gt=0, allow_inf_nan=False)
    """Learning rate of AdamW on the context."""
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Weight decay of the context."""
    steps: int = Field(default=1, ge=1, le=MAX_COUNT)
    """Number of updates for each image."""
    num_views: int = Field(default=64, ge=2, le=MAX_COUNT)
    """Number of views of each image, including the image itself."""
    kept_share: float = Field(default=0.1, gt=0, le=1)
    """Share of the views, those of lowest entropy, that enter the loss."""


METHODS: Mapping[str, MethodEntry] = {
    "zero_shot": MethodEntry(
        implementation="tta_pipeline.methods.clip.zero_shot:ZeroShot",
        summary="The zero-shot classifier of a CLIP as it is, without adaptation.",
        presets=dict.fromkeys(PRESETS, Hyperparameters()),
        needs="clip",
    ),
    "tda": MethodEntry(
        implementation="tta_pipeline.methods.clip.tda:Tda",
        summary="The zero-shot prediction of a CLIP corrected by caches of certain and of less certain images.",
        presets=dict.fromkeys(PRESETS, TdaHyperparameters()),
        needs="clip",
        paper=Paper(
            authors="Karmanov, Adilbek and others",
            venue="CVPR",
            year=2024,
            arxiv="2403.18293",
            title="Efficient Test-Time Adaptation of Vision-Language Models",
        ),
    ),
    "bca": MethodEntry(
        implementation="tta_pipeline.methods.clip.bca:Bca",
        summary="Class embeddings of a CLIP, and the class prior of each, become running means over the stream.",
        presets=dict.fromkeys(PRESETS, BcaHyperparameters()),
        needs="clip",
        paper=Paper(
            authors="Zhou and others",
            venue="CVPR",
            year=2025,
            title="Bayesian Test-Time Adaptation for Vision-Language Models",
        ),
    ),
    "zero": MethodEntry(
        implementation="tta_pipeline.methods.clip.zero:Zero",
        summary="A vote of a CLIP's most certain predictions for many views of an image, without adaptation.",
        presets=dict.fromkeys(PRESETS, ZeroHyperparameters()),
        needs="clip",
        paper=Paper(
            authors="Farina, Matteo and others",
            venue="NeurIPS",
            year=2024,
            arxiv="2405.18330",
            title="Frustratingly Easy Test-Time Adaptation of Vision-Language Models",
        ),
        passes=64,
    ),
    "tpt": MethodEntry(
        implementation="tta_pipeline.methods.clip.tpt:Tpt",
        summary="The context of a CLIP's prompts is tuned to each image, so that views of the image agree.",
        presets=dict.fromkeys(PRESETS, TptHyperparameters()),
        needs="clip",
        paper=Paper(
            authors="Shu, Manli and others",
            venue="NeurIPS",
            year=2022,
            arxiv="2209.07511",
            title="Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language Models",
        ),
        passes=76,
    ),
}
