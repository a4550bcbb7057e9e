"""The recipe of a training in a benchmark file: its images, batches, optimiser, schedule, and choice of weights."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from tta_pipeline.util.config_model import MAX_BATCH_SIZE, MAX_COUNT, ConfigModel, Seed

Augmentation = Literal["none", "simple", "full"]

_MOMENTUM = 0.9


class RandAugment(ConfigModel):
    """`RandAugment` of torchvision.transforms.v2, after crop and flip (Cubuk et al. 2020)."""

    num_ops: int = Field(default=2, ge=1, le=100)
    """Number of operations on each image."""
    magnitude: int = Field(default=9, ge=0, le=30)
    """Strength of each operation, 0 to 30."""


class AugMix(ConfigModel):
    """`AugMix` of torchvision.transforms.v2, after crop and flip (Hendrycks et al. 2020), but no consistency loss."""

    severity: int = Field(default=3, ge=1, le=10)
    """Strength of each operation, 1 to 10."""
    width: int = Field(default=3, ge=1, le=100)
    """Number of chains that are mixed."""


class TrainingInputSettings(ConfigModel):
    """Loader, order and augmentation of the images that a training reads."""

    augmentation: Augmentation = "simple"
    """none: the centre crop, as for evaluation, or the unchanged image if it has the size already; simple: a random
    crop after resizing, or after padding by an eighth if the image has the size already, and a random flip; full: a
    random crop of 8 to 100 % of the area, of aspect ratio 3/4 to 4/3, resized, and a random flip, as for ImageNet."""
    flip: bool = True
    """Mirror half of the images, with simple and full. Turn it off for digits or text."""
    randaugment: RandAugment | None = None
    """RandAugment in addition."""
    augmix: AugMix | None = None
    """AugMix in addition."""
    loader: Literal["indexed", "imagefolder", "webdataset"] = "indexed"
    """Loader of the images: this project's reader of shards, the loose files that the shards were made of, or
    webdataset on the shards."""
    shuffle: Literal["exact", "buffer", "resampled"] = "exact"
    """exact: another permutation of all samples in each epoch; buffer: shards permuted, then samples through a buffer,
    for shards at URLs; resampled: shards drawn with replacement, then the buffer."""
    buffer_samples: int = Field(default=5_000, ge=1, le=10_000_000)
    """Number of samples in the buffer, with buffer and resampled."""
    epoch_samples: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Number of samples per epoch, with resampled. Default: as many as there are."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        if self.epoch_samples is not None and self.shuffle != "resampled":
            yield (
                f"epoch_samples is set, but shuffle {self.shuffle} uses each sample once per epoch; expected shuffle "
                "resampled, or no epoch_samples"
            )
        if self.loader == "webdataset" and self.shuffle == "exact":
            yield (
                "shuffle is exact, but loader webdataset reads shards front to back; expected shuffle buffer or "
                "resampled: choose one of them, or loader indexed"
            )
        if self.loader == "imagefolder" and self.shuffle != "exact":
            yield (
                f"shuffle is {self.shuffle}, which applies to shards, but loader imagefolder reads loose files; "
                "expected shuffle exact"
            )
        if self.randaugment is not None and self.augmix is not None:
            yield "randaugment and augmix are both set; expected only one of them: remove the other"

    @property
    def draws_from_torch(self) -> bool:
        """Whether torchvision draws from torch's global generator, which the threads of a process share."""
        return self.randaugment is not None or self.augmix is not None


class Recipe(TrainingInputSettings):
    """How a network is trained.

    The defaults are for the small network on small images. A usual recipe for a ResNet on CIFAR-10 is
    `{optimizer: sgd, lr: 0.1, weight_decay: 5.0e-4, schedule: cosine, batch_size: 128, epochs: 200}`.
    """

    epochs: int = Field(default=20, ge=1, le=100_000)
    """Training epochs, 1 to 100,000."""
    batch_size: int = Field(default=64, ge=2, le=MAX_BATCH_SIZE)
    """Number of samples in a forward pass of all processes together, 2 to 100,000. The batches of an epoch differ by at
    most one sample."""
    optimizer: Literal["sgd", "adamw"] = "adamw"
    lr: float = Field(default=3e-3, gt=0, allow_inf_nan=False)
    """Highest learning rate."""
    momentum: float = Field(default=_MOMENTUM, ge=0, lt=1)
    """Momentum of SGD, with Nesterov's step if above 0; schedule `one_cycle` has its own momentum, 0.85 to 0.95."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay, except for biases and the scales of norm layers."""
    schedule: Literal["one_cycle", "cosine"] = "one_cycle"
    """Learning rate by step: `one_cycle` (Smith and Topin 2018) rises and falls, `cosine` falls to 0."""
    warmup_epochs: float = Field(default=0.0, ge=0, le=1_000)
    """Epochs in which the learning rate rises linearly from a hundredth of `lr`; `one_cycle` has its own rise."""
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Maximum gradient norm. Default: no limit."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    mixup: float = Field(default=0.0, ge=0, le=100)
    """Alpha of mixup (Zhang et al. 2018); 0 turns it off. With both mixup and CutMix, each batch uses one of them
    at random."""
    cutmix: float = Field(default=0.0, ge=0, le=100)
    """Alpha of CutMix (Yun et al. 2019); 0 turns it off."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay per step of a moving average of the weights, which is then validated and kept. Default: no average."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the forward pass: bf16 by PyTorch's autocast."""
    val_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training images for validation. With 0, clean test images are used, if there are any."""
    select: Literal["last", "best"] = "last"
    """Weights to evaluate: from the last epoch, or from the epoch of lowest error on held-out images. Both are kept."""
    checkpoint_s: float = Field(default=300.0, ge=0, allow_inf_nan=False)
    """Seconds between checkpoints, from which an interrupted training continues."""
    seed: Seed = 0

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.schedule == "one_cycle" and self.warmup_epochs:
            yield (
                f"warmup_epochs is {self.warmup_epochs}, but schedule one_cycle has its own warm-up; expected "
                "warmup_epochs 0"
            )
        if self.warmup_epochs >= self.epochs:
            yield (
                f"warmup_epochs is {self.warmup_epochs}, but there are only {self.epochs} epochs; expected fewer "
                "warm-up epochs than epochs"
            )
        if self.val_fraction and self.loader == "webdataset":
            yield (
                f"val_fraction is {self.val_fraction}, but loader webdataset reads whole shards; expected loader "
                "indexed or imagefolder"
            )
        if self.schedule == "one_cycle" and self.optimizer == "sgd" and self.momentum != _MOMENTUM:
            yield (
                f"momentum is {self.momentum}, but schedule one_cycle varies it from 0.95 to 0.85 and back; expected "
                "no momentum, or another schedule"
            )
        if self.select == "best" and not self.val_fraction:
            yield (
                "select is best, but val_fraction is not set; expected a share of the training images, such as 0.1, "
                "since test images must not choose weights: set val_fraction"
            )
