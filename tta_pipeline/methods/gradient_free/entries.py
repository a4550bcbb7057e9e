"""Methods that need no gradient and no views: prompts, assignments, prototypes, features."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from tta_pipeline.methods.entry import PRESETS, USUAL_SETS, Hyperparameters, MethodEntry, Paper
from tta_pipeline.util.config_model import MAX_COUNT


class AlignedHyperparameters(Hyperparameters):
    """Hyperparameters of every method that aligns activations with those of source images."""

    source_size: int = Field(default=50_000, ge=1, le=MAX_COUNT)
    """Number of source images for the statistics of activations, or all if there are fewer. The default is the
    authors' number, the size of ImageNet's validation set."""
    fitness_lambda: float = Field(default=0.4, ge=0, allow_inf_nan=False)
    """Weight of the discrepancy of activations for a batch of 64; proportional for other sizes, since entropies are
    summed."""


class PromptHyperparameters(AlignedHyperparameters):
    """Hyperparameters of every method that learns prompts of a ViT."""

    num_prompts: int = Field(default=3, ge=1, le=MAX_COUNT)
    """Number of prompt tokens."""


class FoaHyperparameters(PromptHyperparameters):
    """Hyperparameters of FOA."""

    population_size: int = Field(default=28, ge=4, le=MAX_COUNT)
    """Number of candidates that predict each batch, including the best of the previous batch (K in the paper)."""
    step_size: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Standard deviation of the first candidates, in the units of a token."""
    shift_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Fraction of the way to the source's mean by which features are shifted (gamma in the paper)."""
    shift_momentum: float = Field(default=0.1, gt=0, le=1)
    """Weight of a batch in the moving average of the features (alpha in the paper)."""


class FozoHyperparameters(PromptHyperparameters):
    """Hyperparameters of FOZO."""

    lr: float = Field(default=0.08, gt=0, le=3)
    """Learning rate before the first batch (eta in equation 7 of the paper); the rate tends to a third."""
    perturbation_scale: float = Field(default=0.5, ge=0.2, le=0.5)
    """Standard deviation of the first candidates around the prompts (epsilon in the paper); later ones are between 0.2
    and 0.5."""
    num_directions: int = Field(default=1, ge=1, le=MAX_COUNT)
    """Number of random directions for each batch (n in equation 6 of the paper); each takes two forward passes."""


class LameHyperparameters(Hyperparameters):
    """Hyperparameters of LAME."""

    affinity: Literal["rbf", "knn"] = "rbf"
    """Affinity of two samples: a Gaussian of their distance, or 1 for the nearest neighbours and 0 for others."""
    knn: int = Field(default=5, ge=2, le=MAX_COUNT)
    """Number of neighbours; for "rbf", the width is the mean distance to the neighbour of this number. A sample is its
    own first neighbour."""
    force_symmetry: bool = False
    """Whether the affinity is made symmetric."""
    max_steps: int = Field(default=100, ge=1, le=MAX_COUNT)
    """Largest number of steps of the assignment."""


class T3aHyperparameters(Hyperparameters):
    """Hyperparameters of T3A."""

    filter_k: int = Field(default=100, ge=1, le=MAX_COUNT)
    """Number of features of lowest entropy that are kept for each class (M in the paper)."""


class ZoaHyperparameters(AlignedHyperparameters):
    """Hyperparameters of ZOA."""

    fitness_lambda: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """Weight of the discrepancy of activations, a mean over them, beside the mean entropy (lambda in the paper)."""
    lr: float = Field(default=5e-4, gt=0, allow_inf_nan=False)
    """Learning rate of the norm layers' parameters."""
    weight_decay: float = Field(default=0.4, ge=0, allow_inf_nan=False)
    """Weight decay of the difference from the mixture of domains, towards zero."""
    perturbation_scale: float = Field(default=0.02, gt=0, allow_inf_nan=False)
    """Largest perturbation of a norm layer's parameter; the smallest is half of it."""
    mixture_lr: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    """Learning rate of the weights of stored domains."""
    mixture_perturbation_scale: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Largest perturbation of a stored domain's weight; the smallest is half of it."""
    num_directions: int = Field(default=1, ge=1, le=MAX_COUNT)
    """Number of random directions for each batch; each takes a forward pass, beside the prediction's."""
    max_domains: int = Field(default=32, ge=1, le=MAX_COUNT)
    """Largest number of stored domains; beyond it, one of the two most similar domains is dropped."""
    shift_threshold: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    """Divergence between the first activations of a batch and of the domain above which another domain begins."""
    min_domain_batch: int = Field(default=64, ge=2, le=MAX_COUNT)
    """Smallest batch that describes a domain; smaller ones are too noisy to begin another domain."""
    frozen_layers: tuple[str, ...] | None = None
    """Names of the norm layers that do not adapt, or of modules that contain them; by default the first block, the top,
    and what a ResNet adds to its shortcuts. With an empty list all adapt."""


_ZOA_OF_RESNET = ZoaHyperparameters(
    fitness_lambda=1.0, lr=1e-4, perturbation_scale=0.01, shift_threshold=0.2, source_size=1600
)

METHODS: Mapping[str, MethodEntry] = {
    "foa": MethodEntry(
        implementation="tta_pipeline.methods.gradient_free.foa:Foa",
        summary="Finds prompts for a ViT by forward passes alone, and shifts features back to the source's mean.",
        adapts="prompts, mean feature",
        prediction="the best candidate's, shifted",
        layers="linear head",
        presets=dict.fromkeys(PRESETS, FoaHyperparameters()),
        published={
            "imagenet_vit": {
                "imagenet_c": {},
                "imagenet_r": {"fitness_lambda": 0.2},
                "imagenet_sketch": {},
                "imagenet_v2": {},
            }
        },
        source_data="required",
        needs="vit",
        paper=Paper(
            authors="Niu, Shuaicheng and others",
            venue="ICML",
            year=2024,
            arxiv="2404.01650",
            title="Test-Time Model Adaptation with Only Forward Passes",
        ),
        passes=28,
    ),
    "fozo": MethodEntry(
        implementation="tta_pipeline.methods.gradient_free.fozo:Fozo",
        summary="Learns prompts for a ViT by the slope between two forward passes, and shifts features to the source's "
        "mean.",
        adapts="prompts, mean feature",
        prediction="the better candidate's, shifted",
        layers="linear head",
        presets=dict.fromkeys(PRESETS, FozoHyperparameters()),
        published={"imagenet_vit": {"imagenet_c": {}, "imagenet_r": {}, "imagenet_sketch": {}}},
        written_from="authors' code",
        source_data="required",
        needs="vit",
        paper=Paper(
            authors="Wang, Xingyu and Wang, Tao",
            venue="CVPR",
            year=2026,
            arxiv="2603.04733",
            title="FOZO: Forward-Only Zeroth-Order Prompt Optimization for Test-Time Adaptation",
        ),
        passes=2,
    ),
    "lame": MethodEntry(
        implementation="tta_pipeline.methods.gradient_free.lame:Lame",
        summary="Corrects the predictions of a batch so that images with similar features get similar labels.",
        layers="linear head",
        presets=dict.fromkeys(PRESETS, LameHyperparameters()),
        min_batch_size=2,
        paper=Paper(
            authors="Boudiaf, Malik and others",
            venue="CVPR",
            year=2022,
            arxiv="2201.05718",
            title="Parameter-free Online Test-time Adaptation",
        ),
    ),
    "t3a": MethodEntry(
        implementation="tta_pipeline.methods.gradient_free.t3a:T3a",
        predicts_frozen=True,
        summary="Replaces the classifier's weights with means of the stream's features.",
        adapts="class means",
        prediction="after the update",
        layers="linear head",
        presets={
            "imagenet": T3aHyperparameters(filter_k=20),
            "cifar": T3aHyperparameters(),
            "imagenet_vit": T3aHyperparameters(filter_k=20),
        },
        published={"imagenet_vit": USUAL_SETS["imagenet_vit"]},
        paper=Paper(
            authors="Iwasawa, Yusuke and Matsuo, Yutaka",
            venue="NeurIPS",
            year=2021,
            title="Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization",
        ),
    ),
    "neo": MethodEntry(
        implementation="tta_pipeline.methods.gradient_free.neo:Neo",
        predicts_frozen=True,
        summary="Subtracts the stream's mean feature before the classifier.",
        adapts="mean feature",
        prediction="after the update",
        layers="linear head",
        presets=dict.fromkeys(PRESETS, Hyperparameters()),
        paper=Paper(
            authors="Murphy and others",
            venue="ICLR",
            year=2026,
            title="NEO: No-optimization test-time adaptation through latent re-centering",
        ),
    ),
    "zoa": MethodEntry(
        implementation="tta_pipeline.methods.gradient_free.zoa:Zoa",
        summary="Adapts norm layers by the slope between two forward passes, and mixes in what earlier domains taught.",
        adapts="norm layers between the first block and the top, mean feature",
        prediction="before the update, shifted",
        layers="norm layers, linear head",
        presets={"imagenet": _ZOA_OF_RESNET, "cifar": _ZOA_OF_RESNET, "imagenet_vit": ZoaHyperparameters()},
        published={},
        written_from="authors' code",
        source_data="required",
        paper=Paper(
            authors="Deng, Zeshuai and others",
            venue="ACM MM",
            year=2025,
            arxiv="2508.02180",
            title="Test-Time Model Adaptation for Quantized Neural Networks",
        ),
        passes=2,
    ),
}
