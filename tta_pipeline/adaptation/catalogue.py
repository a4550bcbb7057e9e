"""The methods by name, with their hyperparameters: everything a benchmark file needs to know, and no torch.

A new method is a file beside this one and an entry in `METHODS`; outside the package, a `MethodEntry` in a module of
the user's own, which is then named by import path.
"""

import importlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from tta_pipeline.sections import MOST, Section
from tta_pipeline.source_code import source_sha256


class Hyperparameters(Section):
    """What a method can be told; a method without hyperparameters uses this class itself."""


class GradientHyperparameters(Hyperparameters):
    """What every method with a gradient step can be told."""

    lr: float = Field(gt=0, allow_inf_nan=False)
    """Learning rate."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD, first beta of Adam."""
    nesterov: bool = False
    """Whether the momentum of SGD is Nesterov's."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Of the adapted parameters, towards zero."""
    steps: int = Field(default=1, ge=1, le=MOST)
    """Updates for each batch."""
    episodic: bool = False
    """Reset before every batch."""

    @model_validator(mode="after")
    def _has_momentum(self) -> "GradientHyperparameters":
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError(
                f"nesterov is true, optimizer {self.optimizer}, momentum {self.momentum:g}; "
                "expected optimizer sgd and a momentum above 0"
            )
        return self


class BnAlphaHyperparameters(Hyperparameters):
    """What BN-alpha can be told."""

    alpha: float = Field(default=0.1, ge=0, le=1)
    """Weight of the batch statistics; n / (N + n) for batches of n and a prior strength N."""


class BnEmaHyperparameters(Hyperparameters):
    """What BN-EMA can be told."""

    momentum: float = Field(default=0.1, gt=0, le=1)
    """Weight of a batch in the running statistics."""


class RplHyperparameters(GradientHyperparameters):
    """What RPL can be told."""

    q: float = Field(default=0.8, gt=0, le=1)
    """Of the generalised cross entropy: near 0 it is the cross entropy, at 1 the distance of the probability from 1."""


class EtaHyperparameters(GradientHyperparameters):
    """What ETA can be told."""

    e_margin: float = Field(default=0.4, gt=0, allow_inf_nan=False)
    """Entropy below which a sample is reliable, as a part of ln K."""
    d_margin: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Cosine to the samples before, from which on a sample is redundant; 0.4 for CIFAR-10, 0.1 for CIFAR-100."""


class EataHyperparameters(EtaHyperparameters):
    """What EATA can be told."""

    fisher_alpha: float = Field(default=2000.0, ge=0, allow_inf_nan=False)
    """Weight of the penalty on forgetting."""
    fisher_size: int = Field(default=2000, ge=1, le=MOST)
    """Clean samples that the Fisher information is computed from."""


class RdumbHyperparameters(EtaHyperparameters):
    """What RDumb can be told."""

    reset_every: int = Field(default=1000, ge=1, le=MOST)
    """Steps after which it starts over."""


class SarHyperparameters(GradientHyperparameters):
    """What SAR can be told."""

    e_margin: float = Field(default=0.4, gt=0, allow_inf_nan=False)
    """Entropy below which a sample is reliable, as a part of ln K."""
    rho: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """How far uphill the second gradient is taken."""
    reset_margin: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    """Moving average of the entropy, in nats, below which the model starts over."""


class DeyoHyperparameters(GradientHyperparameters):
    """What DeYO can be told."""

    deyo_margin: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    """Entropy below which a sample may be adapted on, as a part of ln K."""
    e_margin: float = Field(default=0.4, gt=0, allow_inf_nan=False)
    """Entropy at which a sample's weight is 1, as a part of ln K."""
    plpd_threshold: float = Field(default=0.2, ge=-1, le=1)
    """Loss of probability by shuffling from which on a label depends on the shape."""
    patch_len: int = Field(default=4, ge=2, le=MOST)
    """Patches in a row and in a column."""


class LameHyperparameters(Hyperparameters):
    """What LAME can be told."""

    affinity: Literal["rbf", "knn"] = "rbf"
    """Likeness of two samples: a Gaussian of their distance, or 1 for the nearest neighbours and 0 for others."""
    knn: int = Field(default=5, ge=2, le=MOST)
    """Neighbours; for "rbf", the one whose mean distance is the width, each sample being its own first neighbour."""
    force_symmetry: bool = False
    """Whether the likeness is made the same in both directions."""
    max_steps: int = Field(default=100, ge=1, le=MOST)
    """Steps towards the assignment at most."""


class T3aHyperparameters(Hyperparameters):
    """What T3A can be told."""

    filter_k: int = Field(default=100, ge=1, le=MOST)
    """Features of least entropy that are kept for each class (M in the paper)."""


class ViewsHyperparameters(Hyperparameters):
    """What test-time augmentation can be told."""

    num_augmentations: int = Field(default=32, ge=1, le=MOST)
    """Random views of each image."""
    crop: Literal["resized", "padded"] = "resized"
    """What a view begins with: a part of at least 8% of the area made as large again, or a shift by up to 4 pixels."""
    prior_strength: float = Field(default=16, ge=0, allow_inf_nan=False)
    """Weight of the source statistics in batch norm, where those of one image and its views weigh 1."""


class MemoHyperparameters(GradientHyperparameters, ViewsHyperparameters):
    """What MEMO can be told."""

    episodic: bool = True
    """Reset before every image."""


class CottaHyperparameters(GradientHyperparameters):
    """What CoTTA can be told."""

    teacher_momentum: float = Field(default=0.999, ge=0, le=1)
    """Weight of what the teacher was before a step."""
    restore_probability: float = Field(default=0.01, ge=0, le=1)
    """Of each weight, to go back to the source model's after a step."""
    anchor_threshold: float = Field(default=0.92, ge=0, le=1)
    """Mean confidence of the source model below which the teacher looks at views; 0.72 for CIFAR-100."""
    num_augmentations: int = Field(default=32, ge=1, le=MOST)
    """Random views of each batch."""
    symmetric: bool = False
    """Whether the cross entropy is taken in both directions."""


class RottaHyperparameters(GradientHyperparameters):
    """What RoTTA can be told."""

    steps: Literal[1] = 1
    """There is one update for every `update_frequency` images."""
    memory_size: int = Field(default=64, ge=1, le=MOST)
    """Images in the memory bank."""
    update_frequency: int = Field(default=64, ge=1, le=MOST)
    """Images of the stream from one update to the next."""
    nu: float = Field(default=0.001, ge=0, le=1)
    """Weight of the student in the teacher's moving average."""
    alpha: float = Field(default=0.05, ge=0, le=1)
    """Weight of the bank's statistics in those of batch norm."""
    lambda_t: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of age in what leaves the bank."""
    lambda_u: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of uncertainty in what leaves the bank."""


class CertaintyHyperparameters(GradientHyperparameters):
    """What ROID and CMF can be told."""

    momentum_probs: float = Field(default=0.9, ge=0, le=1)
    """Of the moving average of the batches' mean probabilities."""
    temperature: float = Field(default=1 / 3, gt=0, allow_inf_nan=False)
    """Of the samples' weights."""
    prior_correction: Literal["probabilities", "logits"] = "probabilities"
    """What the class prior is multiplied with: as Bayes' rule asks for, or as the authors' code does."""


class RoidHyperparameters(CertaintyHyperparameters):
    """What ROID can be told."""

    momentum_src: float = Field(default=0.99, ge=0, le=1)
    """Weight of the adapted model where it is averaged with the source model."""


class CmfHyperparameters(CertaintyHyperparameters):
    """What CMF can be told."""

    alpha: float = Field(default=0.99, ge=0, le=1)
    """Weight of the hidden model where it is averaged with the source model."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Weight of the adapted model where it is averaged with the hidden model."""
    q: float = Field(default=0.005, gt=0, allow_inf_nan=False)
    """Variance that the hidden model gains in a step, for 38400 adapted parameters; in proportion for others."""


class AdaContrastHyperparameters(GradientHyperparameters):
    """What AdaContrast can be told."""

    queue_size: int = Field(default=16384, ge=1, le=MOST)
    """Keys, and features for neighbours, that are remembered."""
    num_neighbors: int = Field(default=10, ge=1, le=MOST)
    """Neighbours that vote on a pseudo label."""
    min_seen: int = Field(default=1024, ge=1, le=MOST)
    """Images to have seen before neighbours vote."""
    temperature: float = Field(default=0.07, gt=0, allow_inf_nan=False)
    """Of the contrastive loss."""
    teacher_momentum: float = Field(default=0.999, ge=0, le=1)
    """Weight of what the key model was before a step."""


class RmtHyperparameters(GradientHyperparameters):
    """What RMT can be told."""

    teacher_momentum: float = Field(default=0.999, ge=0, le=1)
    """Weight of what the teacher was before a step."""
    temperature: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Of the contrastive loss."""
    projection_dim: int = Field(default=128, ge=1, le=MOST)
    """Size of the features in the contrastive loss."""
    lambda_ce_src: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the cross entropy of source images."""
    lambda_ce_trg: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the cross entropy with the teacher."""
    lambda_cont: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the contrastive loss."""
    num_samples_warm_up: int = Field(default=50_000, ge=0, le=MOST)
    """Source samples that student and teacher are trained on before the stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodEntry:
    """One method: where its code is and what its authors use on which benchmark."""

    implementation: str
    """`<module>:<class>`, imported only when an evaluation starts."""
    summary: str
    """One sentence for people."""
    presets: Mapping[str, Hyperparameters]
    """The authors' settings by benchmark family."""
    source_data: Literal["unused", "optional", "required"] = "unused"
    """Whether clean batches are read while the method is built."""
    min_batch_size: int = 1
    """A stream of smaller batches is refused; a last batch may be smaller all the same."""

    def configure(self, preset: str, changes: Mapping[str, object]) -> Hyperparameters:
        """Return the preset's hyperparameters with *changes* made and validated.

        Raises:
            pydantic.ValidationError: a change names no hyperparameter, or its value is out of range.
            ValueError: the method has no such preset.
        """
        if preset not in self.presets:
            raise ValueError(f"preset is {preset!r}; expected one of {', '.join(self.presets)}, which the method has")
        defaults = self.presets[preset]
        return type(defaults).model_validate({**defaults.model_dump(), **changes})

    def require_batch_size(self, batch_size: int | None) -> None:
        """Refuse a stream of batches that are too small; None is a size that is not known.

        Raises:
            ValueError: the method says nothing about so few images.
        """
        if batch_size is not None and batch_size < self.min_batch_size:
            raise ValueError(f"batch_size is {batch_size}; expected at least {self.min_batch_size}: another method")


PRESETS = ("imagenet", "cifar")
_NOTHING_TO_SET = dict.fromkeys(PRESETS, Hyperparameters())

METHODS: Mapping[str, MethodEntry] = {
    "source": MethodEntry(
        implementation="tta_pipeline.adaptation.source:Source",
        summary="The source model as it is, without adaptation.",
        presets=_NOTHING_TO_SET,
    ),
    "norm": MethodEntry(
        implementation="tta_pipeline.adaptation.norm:Norm",
        summary="Batch norm with the statistics of the current batch (BN-1).",
        presets=_NOTHING_TO_SET,
        min_batch_size=2,
    ),
    "bn_alpha": MethodEntry(
        implementation="tta_pipeline.adaptation.bn_alpha:BnAlpha",
        summary="Batch norm with a mixture of source and batch statistics.",
        presets=dict.fromkeys(PRESETS, BnAlphaHyperparameters()),
    ),
    "bn_ema": MethodEntry(
        implementation="tta_pipeline.adaptation.bn_ema:BnEma",
        summary="Batch norm whose running statistics go on running.",
        presets=dict.fromkeys(PRESETS, BnEmaHyperparameters()),
        min_batch_size=2,
    ),
    "tent": MethodEntry(
        implementation="tta_pipeline.adaptation.tent:Tent",
        summary="Entropy minimisation over the affine parameters of the norm layers.",
        presets={
            "imagenet": GradientHyperparameters(lr=2.5e-4),
            "cifar": GradientHyperparameters(lr=1e-3, optimizer="adam"),
        },
    ),
    "rpl": MethodEntry(
        implementation="tta_pipeline.adaptation.rpl:Rpl",
        summary="Tent with the generalised cross entropy of the predicted label.",
        presets={
            "imagenet": RplHyperparameters(lr=5e-4),
            "cifar": RplHyperparameters(lr=1e-3, optimizer="adam"),
        },
    ),
    "eta": MethodEntry(
        implementation="tta_pipeline.adaptation.eta:Eta",
        summary="Weighted entropy minimisation on samples that are reliable and not redundant.",
        presets={
            "imagenet": EtaHyperparameters(lr=2.5e-4),
            "cifar": EtaHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4),
        },
    ),
    "eata": MethodEntry(
        implementation="tta_pipeline.adaptation.eata:Eata",
        summary="ETA with a Fisher penalty on forgetting; without source data it is ETA.",
        presets={
            "imagenet": EataHyperparameters(lr=2.5e-4),
            "cifar": EataHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4, fisher_alpha=1.0),
        },
        source_data="optional",
    ),
    "rdumb": MethodEntry(
        implementation="tta_pipeline.adaptation.rdumb:Rdumb",
        summary="ETA that starts over every thousand steps.",
        presets={
            "imagenet": RdumbHyperparameters(lr=2.5e-4),
            "cifar": RdumbHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4),
        },
    ),
    "sar": MethodEntry(
        implementation="tta_pipeline.adaptation.sar:Sar",
        summary="Sharpness-aware entropy minimisation on reliable samples, with recovery from collapse.",
        presets={
            "imagenet": SarHyperparameters(lr=2.5e-4),
            "cifar": SarHyperparameters(lr=1e-3),
        },
    ),
    "deyo": MethodEntry(
        implementation="tta_pipeline.adaptation.deyo:Deyo",
        summary="Weighted entropy minimisation on samples whose label depends on their shape.",
        presets={
            "imagenet": DeyoHyperparameters(lr=2.5e-4, plpd_threshold=0.3),
            "cifar": DeyoHyperparameters(lr=1e-3, optimizer="adam"),
        },
    ),
    "lame": MethodEntry(
        implementation="tta_pipeline.adaptation.lame:Lame",
        summary="Predictions of a batch corrected by the likeness of its features; the model stays.",
        presets=dict.fromkeys(PRESETS, LameHyperparameters()),
        min_batch_size=2,
    ),
    "t3a": MethodEntry(
        implementation="tta_pipeline.adaptation.t3a:T3a",
        summary="The classifier's weights replaced by means of the stream's features.",
        presets={"imagenet": T3aHyperparameters(filter_k=20), "cifar": T3aHyperparameters()},
    ),
    "ttaug": MethodEntry(
        implementation="tta_pipeline.adaptation.ttaug:Ttaug",
        summary="The mean prediction over random views of each image, without adaptation.",
        presets={"imagenet": ViewsHyperparameters(num_augmentations=64), "cifar": ViewsHyperparameters(crop="padded")},
    ),
    "memo": MethodEntry(
        implementation="tta_pipeline.adaptation.memo:Memo",
        summary="For each image by itself, entropy minimisation of the mean prediction over random views.",
        presets={
            "imagenet": MemoHyperparameters(lr=2.5e-4, momentum=0, num_augmentations=64),
            "cifar": MemoHyperparameters(lr=0.005, momentum=0, crop="padded"),
        },
    ),
    "cotta": MethodEntry(
        implementation="tta_pipeline.adaptation.cotta:Cotta",
        summary="A mean teacher that looks at many views, and weights that go back to the source by chance.",
        presets={
            "imagenet": CottaHyperparameters(
                lr=0.01, nesterov=True, restore_probability=0.001, anchor_threshold=0.1, symmetric=True
            ),
            "cifar": CottaHyperparameters(lr=1e-3, optimizer="adam"),
        },
    ),
    "rotta": MethodEntry(
        implementation="tta_pipeline.adaptation.rotta:Rotta",
        summary="A mean teacher over a class-balanced memory bank, with running batch norm statistics.",
        presets=dict.fromkeys(PRESETS, RottaHyperparameters(lr=1e-3, optimizer="adam")),
    ),
    "roid": MethodEntry(
        implementation="tta_pipeline.adaptation.roid:Roid",
        summary="Certainty and diversity weights, weight ensembling with the source model, and prior correction.",
        presets={
            "imagenet": RoidHyperparameters(lr=2.5e-4, nesterov=True),
            "cifar": RoidHyperparameters(lr=1e-3, optimizer="adam"),
        },
        min_batch_size=2,
    ),
    "cmf": MethodEntry(
        implementation="tta_pipeline.adaptation.cmf:Cmf",
        summary="ROID with a Kalman-filtered model in place of the source model.",
        presets={
            "imagenet": CmfHyperparameters(lr=2.5e-4, nesterov=True),
            "cifar": CmfHyperparameters(lr=1e-3, optimizer="adam"),
        },
        min_batch_size=2,
    ),
    "adacontrast": MethodEntry(
        implementation="tta_pipeline.adaptation.adacontrast:AdaContrast",
        summary="Pseudo labels refined by neighbours, contrast between views, and diversity.",
        presets=dict.fromkeys(PRESETS, AdaContrastHyperparameters(lr=2e-4, weight_decay=1e-4, nesterov=True)),
        min_batch_size=2,
    ),
    "rmt": MethodEntry(
        implementation="tta_pipeline.adaptation.rmt:Rmt",
        summary="A mean teacher with contrast to source prototypes and source replay.",
        presets={
            "imagenet": RmtHyperparameters(lr=0.01, nesterov=True),
            "cifar": RmtHyperparameters(lr=1e-3, optimizer="adam"),
        },
        source_data="required",
    ),
}


def find_method(method: str) -> MethodEntry:
    """Return the entry of *method*: a name in `METHODS`, or the import path `<module>:<name>` of a `MethodEntry`.

    Raises:
        ValueError: there is no such entry.
    """
    if method in METHODS:
        return METHODS[method]
    module, separator, name = method.partition(":")
    choices = f"one of {', '.join(METHODS)}, or <module>:<name> of a MethodEntry"
    if not separator:
        raise ValueError(f"method is {method!r}; expected {choices}")
    if module not in sys.modules:
        with suppress(ValueError):  # what cannot be hashed cannot be imported either, which is said below
            source_sha256(method)  # from now on known as it is imported
    try:
        entry = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # whatever a user's module raises when it is imported
        raise ValueError(f"method is {method!r}, whose import raised {error!r}; expected {choices}") from error
    if not isinstance(entry, MethodEntry):
        raise ValueError(f"method is {method!r}, which is a {type(entry).__name__}; expected {choices}")  # noqa: TRY004 - a bad value to pydantic
    return entry
