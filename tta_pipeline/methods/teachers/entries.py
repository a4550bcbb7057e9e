"""Methods whose model follows, or is averaged with, a second model."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from tta_pipeline.methods.entry import (
    RESNET_PRESETS,
    USUAL_SETS,
    GradientHyperparameters,
    MemoryHyperparameters,
    MethodEntry,
    Paper,
    ViewHyperparameters,
)
from tta_pipeline.util.config_model import MAX_COUNT


class TeacherHyperparameters(ViewHyperparameters):
    """Hyperparameters of every method whose teacher has a momentum."""

    teacher_momentum: float = Field(default=0.999, ge=0, le=1)
    """Weight of the teacher before a step."""


class CottaHyperparameters(TeacherHyperparameters):
    """Hyperparameters of CoTTA."""

    restore_probability: float = Field(default=0.01, ge=0, le=1)
    """Probability that a weight is restored to the source model's value after a step."""
    anchor_threshold: float = Field(default=0.92, ge=0, le=1)
    """Mean confidence of the source model below which the teacher uses views; 0.72 for CIFAR-100."""
    num_augmentations: int = Field(default=32, ge=1, le=MAX_COUNT)
    """Number of random views of each batch."""
    symmetric: bool = False
    """Whether the cross entropy is symmetric."""


class RottaHyperparameters(MemoryHyperparameters, ViewHyperparameters):
    """Hyperparameters of RoTTA."""

    memory_size: int = Field(default=64, ge=1, le=MAX_COUNT)
    """Number of images in the memory bank."""
    nu: float = Field(default=0.001, ge=0, le=1)
    """Weight of the student in the teacher's moving average."""
    alpha: float = Field(default=0.05, ge=0, le=1)
    """Weight of the bank's statistics in batch norm's."""
    lambda_t: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of age in the choice of images to remove from the bank."""
    lambda_u: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of uncertainty in the choice of images to remove from the bank."""


class PettaHyperparameters(RottaHyperparameters):
    """Hyperparameters of PeTTA."""

    nu: float = Field(default=0.001, ge=0, le=1)
    """Weight of the student in the teacher's moving average at a divergence of 0 (alpha_0 in the paper)."""
    lambda_0: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    """Weight of the regulariser towards the source's parameters at a divergence of 1."""
    anchor_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the cross entropy with the source model's predictions."""
    symmetric: bool = False
    """Whether the cross entropy with the teacher is symmetric, and computed for the images as well as for their views.
    """


class CertaintyHyperparameters(ViewHyperparameters):
    """Hyperparameters of ROID and CMF."""

    own_ways: ClassVar[frozenset[str]] = frozenset({"augment_per", "prior_correction"})

    momentum_probs: float = Field(default=0.9, ge=0, le=1)
    """Momentum of the moving average of the batches' mean probabilities."""
    temperature: float = Field(default=1 / 3, gt=0, allow_inf_nan=False)
    """Temperature of the samples' weights."""
    prior_correction: Literal["probabilities", "logits"] = "probabilities"
    """What the class prior multiplies: probabilities, as in Bayes' rule, or logits, as in the authors' code."""


class RoidHyperparameters(CertaintyHyperparameters):
    """Hyperparameters of ROID."""

    momentum_src: float = Field(default=0.99, ge=0, le=1)
    """Weight of the adapted model in its average with the source model."""


class CmfHyperparameters(CertaintyHyperparameters):
    """Hyperparameters of CMF."""

    alpha: float = Field(default=0.99, ge=0, le=1)
    """Weight of the hidden model in its average with the source model."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Weight of the adapted model in its average with the hidden model."""
    q: float = Field(default=0.005, gt=0, allow_inf_nan=False)
    """Variance that the hidden model gains per step for 38400 adapted parameters; proportional for other numbers."""


class AdaContrastHyperparameters(GradientHyperparameters):
    """Hyperparameters of AdaContrast."""

    queue_size: int = Field(default=16384, ge=1, le=MAX_COUNT)
    """Number of stored keys, and of stored features for neighbours."""
    num_neighbors: int = Field(default=10, ge=1, le=MAX_COUNT)
    """Number of neighbours that vote on a pseudo label."""
    min_seen: int = Field(default=1024, ge=1, le=MAX_COUNT)
    """Number of images seen before neighbours vote."""
    temperature: float = Field(default=0.07, gt=0, allow_inf_nan=False)
    """Temperature of the contrastive loss."""
    teacher_momentum: float = Field(default=0.999, ge=0, le=1)
    """Weight of the key model before a step."""


class RmtHyperparameters(TeacherHyperparameters):
    """Hyperparameters of RMT."""

    temperature: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Temperature of the contrastive loss."""
    projection_dim: int = Field(default=128, ge=1, le=MAX_COUNT)
    """Size of the features in the contrastive loss."""
    lambda_ce_src: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the cross entropy of source images."""
    lambda_ce_trg: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the cross entropy with the teacher."""
    lambda_cont: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the contrastive loss."""
    num_samples_warm_up: int = Field(default=50_000, ge=0, le=MAX_COUNT)
    """Number of source samples that train student and teacher before the stream."""


METHODS: Mapping[str, MethodEntry] = {
    "cotta": MethodEntry(
        implementation="tta_pipeline.methods.teachers.cotta:Cotta",
        summary="A mean teacher labels many views, and random weights return to the source.",
        adapts="all parameters",
        prediction="the teacher's",
        presets={
            "imagenet": CottaHyperparameters(
                lr=0.01, nesterov=True, restore_probability=0.001, anchor_threshold=0.1, symmetric=True
            ),
            "cifar": CottaHyperparameters(lr=1e-3, optimizer="adam"),
        },
        published={**USUAL_SETS, "cifar": {"cifar_10_c": {}, "cifar_100_c": {"anchor_threshold": 0.72}}},
        paper=Paper(
            authors="Wang, Qin and others",
            venue="CVPR",
            year=2022,
            arxiv="2203.13591",
            title="Continual Test-Time Domain Adaptation",
        ),
        passes=36,
        backwards=1,
    ),
    "rotta": MethodEntry(
        implementation="tta_pipeline.methods.teachers.rotta:Rotta",
        summary="A mean teacher over a class-balanced memory, with running statistics of batch norm.",
        adapts="weight and bias of norm layers, statistics of batch norm",
        prediction="the teacher's",
        layers="norm layers",
        presets=dict.fromkeys(RESNET_PRESETS, RottaHyperparameters(lr=1e-3, optimizer="adam")),
        paper=Paper(
            authors="Yuan, Longhui and others",
            venue="CVPR",
            year=2023,
            arxiv="2303.13899",
            title="Robust Test-Time Adaptation in Dynamic Scenarios",
        ),
        passes=5,
        backwards=1,
    ),
    "petta": MethodEntry(
        implementation="tta_pipeline.methods.teachers.petta:Petta",
        summary="RoTTA that adapts less and holds back more as its features diverge from the source's.",
        adapts="weight and bias of norm layers, statistics of batch norm",
        prediction="the teacher's",
        layers="norm layers, linear head",
        presets={
            "imagenet": PettaHyperparameters(lr=1e-3, optimizer="adam"),
            "cifar": PettaHyperparameters(lr=1e-3, optimizer="adam", symmetric=True),
        },
        source_data="required",
        paper=Paper(
            authors="Hoang, Trung-Hieu and others",
            venue="NeurIPS",
            year=2024,
            title="Persistent test-time adaptation in recurring testing scenarios",
        ),
        passes=6,
        backwards=1,
    ),
    "roid": MethodEntry(
        implementation="tta_pipeline.methods.teachers.roid:Roid",
        summary="Weights samples by certainty and diversity, stays near the source model, corrects the class prior.",
        adapts="weight and bias of norm layers",
        layers="norm layers",
        presets={
            "imagenet": RoidHyperparameters(lr=2.5e-4, nesterov=True),
            "cifar": RoidHyperparameters(lr=1e-3, optimizer="adam"),
        },
        min_batch_size=2,
        paper=Paper(
            authors="Marsden, Robert A. and others",
            venue="WACV",
            year=2024,
            arxiv="2306.00650",
            title="Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior Correction",
        ),
        passes=6,
        backwards=2,
    ),
    "cmf": MethodEntry(
        implementation="tta_pipeline.methods.teachers.cmf:Cmf",
        summary="ROID with a Kalman-filtered model instead of the source model.",
        adapts="weight and bias of norm layers",
        layers="norm layers",
        presets={
            "imagenet": CmfHyperparameters(lr=2.5e-4, nesterov=True),
            "cifar": CmfHyperparameters(lr=1e-3, optimizer="adam"),
        },
        min_batch_size=2,
        paper=Paper(
            authors="Lee, Jae-Hong and Chang, Joon-Hyuk",
            venue="ICLR",
            year=2024,
            title="Continual Momentum Filtering on Parameter Space for Online Test-time Adaptation",
        ),
        passes=6,
        backwards=2,
    ),
    "adacontrast": MethodEntry(
        implementation="tta_pipeline.methods.teachers.adacontrast:AdaContrast",
        summary="Refines pseudo labels by neighbours, contrasts views, and spreads predictions over classes.",
        adapts="all parameters, statistics of batch norm",
        prediction="after the update",
        layers="linear head",
        presets=dict.fromkeys(RESNET_PRESETS, AdaContrastHyperparameters(lr=2e-4, weight_decay=1e-4, nesterov=True)),
        min_batch_size=2,
        paper=Paper(
            authors="Chen, Dian and others",
            venue="CVPR",
            year=2022,
            arxiv="2204.10377",
            title="Contrastive Test-Time Adaptation",
        ),
        passes=7,
        backwards=1,
    ),
    "rmt": MethodEntry(
        implementation="tta_pipeline.methods.teachers.rmt:Rmt",
        summary="A mean teacher with a contrastive loss on source prototypes, and replay of source images.",
        adapts="all parameters",
        prediction="sum of student and teacher",
        layers="linear head",
        presets={
            "imagenet": RmtHyperparameters(lr=0.01, nesterov=True),
            "cifar": RmtHyperparameters(lr=1e-3, optimizer="adam"),
        },
        source_data="required",
        paper=Paper(
            authors='D{\\"o}bler, Mario and others',
            venue="CVPR",
            year=2023,
            arxiv="2211.13081",
            title="Robust Mean Teacher for Continual and Gradual Test-Time Adaptation",
        ),
        passes=10,
        backwards=3,
    ),
}
