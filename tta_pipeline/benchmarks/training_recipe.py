"""The recipe of a training in a benchmark file: batches, optimiser, schedule, and the choice of weights."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from tta_pipeline.benchmarks.training_input import TrainingInputSettings
from tta_pipeline.util.config_model import MAX_BATCH_SIZE, Seed

Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["one_cycle", "cosine"]

_MOMENTUM = 0.9


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
    optimizer: Optimizer = "adamw"
    lr: float = Field(default=3e-3, gt=0, allow_inf_nan=False)
    """Highest learning rate."""
    momentum: float = Field(default=_MOMENTUM, ge=0, lt=1)
    """Momentum of SGD, with Nesterov's step if above 0; schedule `one_cycle` has its own momentum, 0.85 to 0.95."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay, except for biases and the scales of norm layers."""
    schedule: Schedule = "one_cycle"
    """Learning rate by step: `one_cycle` (Smith and Topin 2018) rises and falls, `cosine` falls to 0."""
    warmup_epochs: float = Field(default=0.0, ge=0, le=1_000)
    """Epochs in which the learning rate rises linearly from a hundredth of `lr`; `one_cycle` has its own rise."""
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Largest norm of the gradients in a step; None: no limit."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    mixup: float = Field(default=0.0, ge=0, le=100)
    """Alpha of mixup (Zhang et al. 2018); 0: none. With `cutmix` too, each batch gets one of them at random."""
    cutmix: float = Field(default=0.0, ge=0, le=100)
    """Alpha of CutMix (Yun et al. 2019); 0: none."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay per step of a moving average of the weights, which is then validated and kept; None: no average."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the forward pass: bf16 by PyTorch's autocast."""
    held_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training images that are held out for validation; 0: none, and clean test images, if there are any,
    are used for validation."""
    select: Literal["last", "best"] = "last"
    """Weights to evaluate: from the last epoch, or from the epoch of lowest error on held-out images. Both are kept."""
    checkpoint_s: float = Field(default=300.0, ge=0, allow_inf_nan=False)
    """Seconds between checkpoints, from which an interrupted training continues."""
    seed: Seed = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        if self.schedule == "one_cycle" and self.warmup_epochs:
            yield f"found warmup_epochs {self.warmup_epochs} with schedule one_cycle; expected 0: it has its own rise"
        if self.warmup_epochs >= self.epochs:
            yield f"found warmup_epochs {self.warmup_epochs} of {self.epochs} epochs; expected fewer"
        if self.held_out and self.loader == "webdataset":
            yield (
                f"found held_out {self.held_out} with loader webdataset, which reads shards whole; expected loader "
                "indexed or imagefolder"
            )
        if self.schedule == "one_cycle" and self.optimizer == "sgd" and self.momentum != _MOMENTUM:
            yield (
                f"found momentum {self.momentum} with schedule one_cycle, which varies it from 0.95 to 0.85 and back; "
                "expected another schedule, or no momentum"
            )
        if self.select == "best" and not self.held_out:
            yield (
                "found select best without held_out; expected a share of the training images such as 0.1, since test "
                "images must not choose weights"
            )


NOT_FINGERPRINTED = frozenset({"checkpoint_s"})
"""Fields of a `Recipe` that do not affect the weights."""
