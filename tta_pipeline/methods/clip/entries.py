"""Entries of the methods for CLIP's zero-shot classifier."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from tta_pipeline.methods.entry import (
    PRESETS,
    GradientHyperparameters,
    Hyperparameters,
    MethodEntry,
    Paper,
    Published,
)
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


class CropHyperparameters(Hyperparameters):
    """Hyperparameters of every method that predicts an image from crops of it."""

    num_views: int = Field(default=64, ge=2, le=MAX_COUNT)
    """Number of views of each image, including the image itself."""


class ZeroHyperparameters(CropHyperparameters):
    """Hyperparameters of ZERO."""

    kept_share: float = Field(default=0.3, gt=0, le=1)
    """Share of the views that vote, lowest entropy first (gamma in the paper)."""


class MtaHyperparameters(CropHyperparameters):
    """Hyperparameters of MTA."""

    affinity_weight: float = Field(default=4.0, ge=0, allow_inf_nan=False)
    """Weight of the agreement between predictions in the inlierness of a view (lambda_q in the code)."""
    entropy_weight: float = Field(default=0.2, gt=0, allow_inf_nan=False)
    """Weight of the entropy of the inlierness, its temperature (lambda_y in the code)."""


class TunedTextsHyperparameters(CropHyperparameters):
    """Hyperparameters of every method that tunes text features to each image."""

    takes_gradients: ClassVar[bool] = True

    lr: float = Field(default=5e-3, gt=0, allow_inf_nan=False)
    """Learning rate of AdamW."""
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Weight decay of the tuned parameters."""
    steps: int = Field(default=1, ge=1, le=MAX_COUNT)
    """Number of updates for each image."""
    kept_share: float = Field(default=0.1, gt=0, le=1)
    """Share of the views that enter the loss, lowest entropy first."""


class CtptHyperparameters(TunedTextsHyperparameters):
    """Hyperparameters of C-TPT."""

    dispersion_weight: float = Field(default=50.0, ge=0, allow_inf_nan=False)
    """Weight of the dispersion of the text features in the loss (lambda in the code)."""


class BoostAdapterHyperparameters(TdaHyperparameters, CropHyperparameters):
    """Hyperparameters of BoostAdapter."""

    num_boosting: int = Field(default=1, ge=0, le=MAX_COUNT)
    """Number of extra places per class for the image's own views in the copy of the positive cache (delta)."""
    kept_share: float = Field(default=0.1, gt=0, le=1)
    """Share of the views that enter the copy of the positive cache, lowest entropy first."""


class OnZetaHyperparameters(Hyperparameters):
    """Hyperparameters of OnZeta."""

    temperature: float = Field(default=0.04, gt=0, allow_inf_nan=False)
    """Temperature of the proxies' cosines (tau_i in the code); the texts' is the model's own."""
    proxy_lr: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Learning rate of the proxies for the first image (cw in the code); it falls with the square root of the count."""
    dual_lr: float = Field(default=20.0, ge=0, allow_inf_nan=False)
    """Learning rate of the dual variables for the first image (cr in the code); it falls in the same way."""
    smallest_share: float = Field(default=1.0, ge=0, le=1)
    """Smallest share of the images for each class, as a fraction of an equal share (alpha in the code)."""
    proxy_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the proxies in the prediction at the end of the stream (beta in the code)."""
    stream_size: int = Field(default=50_000, ge=1, le=MAX_COUNT)
    """Number of images after which the share of the proxies stops growing: the length of the stream."""


class OgaHyperparameters(Hyperparameters):
    """Hyperparameters of OGA."""

    cache_size: int = Field(default=8, ge=1, le=MAX_COUNT)
    """Number of images of each class in the cache."""
    likelihood_weight: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    """Weight of the logarithm of the Gaussians (tau in the code)."""


class EcalpHyperparameters(Hyperparameters):
    """Hyperparameters of ECALP."""

    num_texts: int = Field(default=3, ge=1, le=MAX_COUNT)
    """Number of texts that an image is joined to."""
    num_images: int = Field(default=8, ge=1, le=MAX_COUNT)
    """Number of images that an image is joined to."""
    power: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Power of the similarities (gamma in the code); an even one, since cosines may be negative."""
    neighbour_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the neighbours' labels in a new label; the rest is the label that an image kept (alpha)."""
    num_turns: int = Field(default=3, ge=1, le=MAX_COUNT)
    """Number of propagation steps to the neighbours, for each image of the stream."""


class StatAHyperparameters(Hyperparameters):
    """Hyperparameters of StatA."""

    anchor_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Weight of a class's text relative to the batch, as a number of images (alpha in the paper)."""
    neighbour_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the assignments of similar images in the logits of an assignment (lambda_laplacian in the code)."""
    num_neighbours: int = Field(default=3, ge=1, le=MAX_COUNT)
    """Number of images that an image is joined to."""
    num_turns: int = Field(default=10, ge=1, le=MAX_COUNT)
    """Number of times that Gaussians and assignments are updated."""


_VARIANTS: Published = {name: {} for name in ("imagenet_a", "imagenet_r", "imagenet_sketch", "imagenet_v2")}
_FINE_GRAINED: Published = {
    name: {}
    for name in (
        "caltech101", "dtd", "eurosat", "fgvc_aircraft", "flowers102", "food101", "oxford_pets", "stanford_cars",
        "sun397", "ucf101",
    )
}  # fmt: skip
_VOTES: Published = {
    name: {"positive_alpha": alpha, "positive_beta": beta}
    for name, alpha, beta in (
        ("caltech101", 5.0, 5.0), ("dtd", 2.0, 3.0), ("eurosat", 4.0, 8.0), ("fgvc_aircraft", 2.0, 2.0),
        ("flowers102", 1.0, 5.0), ("food101", 1.0, 1.0), ("oxford_pets", 2.0, 7.0), ("stanford_cars", 1.0, 7.0),
        ("sun397", 2.0, 3.0), ("ucf101", 3.0, 8.0), ("imagenet_a", 2.0, 5.0), ("imagenet_r", 1.0, 8.0),
        ("imagenet_sketch", 2.363, 7.45), ("imagenet_v2", 1.0, 8.0),
    )
}  # fmt: skip
"""The positive cache of TDA on each set, and of BoostAdapter, in both programs' `configs`."""
_BOOSTING = {
    "caltech101": 2, "dtd": 0, "eurosat": 0, "fgvc_aircraft": 2, "flowers102": 0, "food101": 3, "oxford_pets": 0,
    "stanford_cars": 3, "sun397": 1, "ucf101": 0, "imagenet_a": 3, "imagenet_r": 3, "imagenet_sketch": 1,
    "imagenet_v2": 1,
}  # fmt: skip
"""Delta of BoostAdapter on each set."""
METHODS: Mapping[str, MethodEntry] = {
    "zero_shot": MethodEntry(
        implementation="tta_pipeline.methods.clip.zero_shot:ZeroShot",
        summary="The zero-shot classifier as it is, without adaptation.",
        presets=dict.fromkeys(PRESETS, Hyperparameters()),
        needs="clip",
    ),
    "tda": MethodEntry(
        implementation="tta_pipeline.methods.clip.tda:Tda",
        summary="Caches of confident and of unsure images correct the zero-shot prediction.",
        adapts="caches of features",
        prediction="after the update",
        presets=dict.fromkeys(PRESETS, TdaHyperparameters()),
        published={"imagenet": _VOTES},
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
        summary="Class embeddings and their class priors become running means over the stream.",
        adapts="class embeddings, class priors",
        written_from="summaries of the paper",
        presets=dict.fromkeys(PRESETS, BcaHyperparameters()),
        published={},
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
        summary="The most confident of an image's views vote for its class, without adaptation.",
        presets=dict.fromkeys(PRESETS, ZeroHyperparameters()),
        published={"imagenet": {**_FINE_GRAINED, **_VARIANTS}},
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
        summary="Tunes the prompt's context for each image, so that its views agree.",
        adapts="context of the prompts",
        prediction="after the update",
        presets=dict.fromkeys(PRESETS, TunedTextsHyperparameters()),
        published={"imagenet": {**_FINE_GRAINED, **_VARIANTS}},
        needs="clip",
        paper=Paper(
            authors="Shu, Manli and others",
            venue="NeurIPS",
            year=2022,
            arxiv="2209.07511",
            title="Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language Models",
        ),
        passes=76,
        backwards=6,
    ),
    "mta": MethodEntry(
        implementation="tta_pipeline.methods.clip.mta:Mta",
        summary="Predicts from the mode of the features of an image's views, in which views that agree weigh more.",
        written_from="authors' code",
        presets=dict.fromkeys(PRESETS, MtaHyperparameters()),
        published={"imagenet": {**_FINE_GRAINED, **_VARIANTS}},
        needs="clip",
        paper=Paper(
            authors="Zanella, Maxime and Ben Ayed, Ismail",
            venue="CVPR",
            year=2024,
            arxiv="2405.02266",
            title="On the Test-Time Zero-Shot Generalization of Vision-Language Models: Do We Really Need Prompt "
            "Learning?",
        ),
        passes=64,
    ),
    "onzeta": MethodEntry(
        implementation="tta_pipeline.methods.clip.onzeta:OnZeta",
        summary="Balances zero-shot labels over classes, and trains class proxies with them.",
        adapts="class proxies, dual variables",
        written_from="authors' code",
        presets={"imagenet": OnZetaHyperparameters(), "cifar": OnZetaHyperparameters(stream_size=10_000)},
        published={},
        needs="clip",
        paper=Paper(
            authors="Qian, Qi and Hu, Juhua", venue="ECCV", year=2024, title="Online Zero-Shot Classification with CLIP"
        ),
    ),
    "tps": MethodEntry(
        implementation="tta_pipeline.methods.clip.tps:Tps",
        summary="Shifts each class's text feature for each image, so that its views agree.",
        adapts="shifts of the text features",
        prediction="after the update",
        written_from="authors' code",
        presets=dict.fromkeys(PRESETS, TunedTextsHyperparameters()),
        published={"imagenet": _VARIANTS},
        needs="clip",
        paper=Paper(
            authors="Sui, Elaine and Wang, Xiaohan and Yeung-Levy, Serena",
            venue="WACV",
            year=2025,
            title="Just Shift It: Test-Time Prototype Shifting for Zero-Shot Generalization with Vision-Language "
            "Models",
        ),
        passes=76,
        backwards=6,
    ),
    "ctpt": MethodEntry(
        implementation="tta_pipeline.methods.clip.ctpt:Ctpt",
        summary="TPT that also spreads the text features of the classes, which improves calibration.",
        adapts="context of the prompts",
        prediction="after the update",
        written_from="authors' code",
        presets=dict.fromkeys(PRESETS, CtptHyperparameters()),
        published={"imagenet": {**_FINE_GRAINED, **{name: {"dispersion_weight": 20.0} for name in _VARIANTS}}},
        needs="clip",
        paper=Paper(
            authors="Yoon, Hee Suk and others",
            venue="ICLR",
            year=2024,
            title="C-TPT: Calibrated Test-Time Prompt Tuning for Vision-Language Models via Text Feature Dispersion",
        ),
        passes=76,
        backwards=6,
    ),
    "oga": MethodEntry(
        implementation="tta_pipeline.methods.clip.oga:Oga",
        summary="Gaussians fitted to the most confident images of each class correct the zero-shot prediction.",
        adapts="caches of features",
        prediction="after the update",
        written_from="authors' code",
        presets=dict.fromkeys(PRESETS, OgaHyperparameters()),
        published={"imagenet": _FINE_GRAINED},
        needs="clip",
        paper=Paper(
            authors="Fuchs, Clément and Zanella, Maxime and De Vleeschouwer, Christophe",
            venue="arXiv",
            year=2025,
            arxiv="2501.04352",
            title="Online Gaussian Adaptation of Vision-Language Models",
        ),
    ),
    "ecalp": MethodEntry(
        implementation="tta_pipeline.methods.clip.ecalp:Ecalp",
        summary="Labels spread from texts to images over a graph that grows with the stream.",
        adapts="graph of images, their labels",
        prediction="after the update",
        written_from="authors' code",
        presets=dict.fromkeys(PRESETS, EcalpHyperparameters()),
        published={"imagenet": {**_FINE_GRAINED, **_VARIANTS, "imagenet_c": {}}},
        needs="clip",
        paper=Paper(
            authors="Li, Yushu and Su, Yongyi and Goodge, Adam and Jia, Kui and Xu, Xun",
            venue="ICLR",
            year=2025,
            arxiv="2412.18303",
            title="Efficient and Context-Aware Label Propagation for Zero-/Few-Shot Training-Free Adaptation of "
            "Vision-Language Model",
        ),
    ),
    "boostadapter": MethodEntry(
        implementation="tta_pipeline.methods.clip.boostadapter:BoostAdapter",
        summary="TDA whose positive cache also holds the most confident crops of the current image.",
        adapts="caches of features",
        prediction="after the update",
        written_from="authors' code",
        presets=dict.fromkeys(PRESETS, BoostAdapterHyperparameters()),
        published={"imagenet": {name: {**_VOTES[name], "num_boosting": delta} for name, delta in _BOOSTING.items()}},
        needs="clip",
        paper=Paper(
            authors="Zhang, Taolin and others",
            venue="NeurIPS",
            year=2024,
            title="BoostAdapter: Improving Vision-Language Test-Time Adaptation via Regional Bootstrapping",
        ),
        passes=64,
    ),
    "stata": MethodEntry(
        implementation="tta_pipeline.methods.clip.stata:StatA",
        summary="Gaussians of the classes in a batch, kept near the texts for classes with few images.",
        written_from="paper, facts of the authors' code",
        presets=dict.fromkeys(PRESETS, StatAHyperparameters()),
        published={"imagenet": _FINE_GRAINED},
        needs="clip",
        paper=Paper(
            authors="Zanella, Maxime and Fuchs, Clément and De Vleeschouwer, Christophe and Ben Ayed, Ismail",
            venue="CVPR",
            year=2025,
            arxiv="2501.03729",
            title="Realistic Test-Time Adaptation of Vision-Language Models",
        ),
    ),
    "batclip": MethodEntry(
        implementation="tta_pipeline.methods.clip.batclip:Batclip",
        summary="Adapts norm layers of both towers, so that images move to their text and classes apart.",
        adapts="weight and bias of norm layers in both towers",
        written_from="authors' code",
        predicts_by_network=True,
        presets={
            **dict.fromkeys(PRESETS, GradientHyperparameters(lr=5e-4, optimizer="adamw", weight_decay=0.01)),
            "cifar": GradientHyperparameters(lr=1e-3, optimizer="adamw", weight_decay=0.01),
        },
        published={
            "imagenet": {"imagenet_c": {}},
            "cifar": {"cifar_10_c": {}, "cifar_100_c": {"lr": 5e-4, "optimizer": "adam"}},
        },
        needs="clip",
        paper=Paper(
            authors="Maharana, Sarthak Kumar and others",
            venue="ICCV",
            year=2025,
            arxiv="2412.02837",
            title="BATCLIP: Bimodal Online Test-Time Adaptation for CLIP",
        ),
        passes=3,
        backwards=1,
    ),
}
