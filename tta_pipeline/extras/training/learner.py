"""A network with its optimiser, learning-rate schedule and moving average, and one step of training.

All parts are from torch and torchvision. Tests compare them with timm's; for why timm's are not used, see decision 043.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.transforms import v2

from tta_pipeline.benchmarks.training_recipe import Recipe
from tta_pipeline.extras.training.checkpoints import State
from tta_pipeline.loading.device import as_floats

Weights = dict[str, torch.Tensor]

_WARM_UP_FROM = 0.01
"""Share of the learning rate at which a linear warm-up begins."""


class Learner:
    """A network in training, alone or together with other processes."""

    def __init__(
        self,
        network: nn.Module,
        settings: Recipe,
        *,
        num_classes: int,
        steps_per_epoch: int,
        device: torch.device,
        num_ranks: int = 1,
    ) -> None:
        """Prepare *network*, a classifier of images (B, 3, H, W) in [0, 1] with logits (B, num_classes)."""
        self.network = network.to(device).to(memory_format=torch.channels_last)
        self._settings = settings
        self._device = device
        self._num_ranks = num_ranks
        self._optimizer = make_optimizer(self.network, settings)
        self._schedule = make_schedule(self._optimizer, settings, steps_per_epoch=steps_per_epoch)
        self._average = make_average(self.network, settings)
        self._mixing = make_mixing(settings, num_classes=num_classes)
        self._learning = _parallel(self.network, device) if num_ranks > 1 else self.network

    def learn(self, pixels: torch.Tensor, labels: torch.Tensor, *, seed: int, num_samples: int) -> torch.Tensor:
        """Update the weights by one batch.

        Args:
            pixels: Images, uint8 (B, H, W, 3).
            labels: Labels, int64 (B,).
            seed: Seed of all random numbers of the batch.
            num_samples: Number of samples in the batch, over all processes.

        Returns:
            Sum of the losses and number of wrong predictions, float32 (2,), on the device.
        """
        torch.manual_seed(seed)
        images, targets = as_floats(pixels), labels.to(self._device, non_blocking=True)
        if self._mixing is not None:
            images, targets = self._mixing(images, targets)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._settings.precision == "bf16"):
            logits = self._learning(images)
        loss = cross_entropy(logits.float(), targets, label_smoothing=self._settings.label_smoothing, reduction="sum")
        # Processes average their gradients, but their numbers of samples may differ by one.
        (loss * (self._num_ranks / num_samples)).backward()  # type: ignore[no-untyped-call]
        if self._settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self._settings.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._schedule.step()
        if self._average is not None:
            self._average.update_parameters(self.network)
        with torch.no_grad():
            # For a mixed image, the class with the larger share counts.
            answers = targets if targets.ndim == 1 else targets.argmax(1)
            return torch.stack([loss.detach(), (logits.argmax(1) != answers).sum().float()])

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def saved_network(self) -> nn.Module:
        """Network that is validated and saved: the moving average if there is one."""
        return self.network if self._average is None else self._average.module

    def weights(self) -> Weights:
        """Return a copy of the weights of `saved_network`, on the host."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.saved_network.state_dict().items()}

    def state(self) -> State:
        """Return everything that the next step needs."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state(self, state: State) -> None:
        """Restore *state*."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        parts = {"network": self.network, "optimizer": self._optimizer, "schedule": self._schedule}
        return parts if self._average is None else {**parts, "average": self._average}


def make_optimizer(network: nn.Module, settings: Recipe) -> torch.optim.Optimizer:
    """Return the optimiser of *network*; weight decay applies only to tensors of two or more dimensions."""
    trained = [weights for weights in network.parameters() if weights.requires_grad]
    groups = [
        {"params": [weights for weights in trained if weights.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [weights for weights in trained if weights.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.lr)
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=settings.momentum > 0)


def make_schedule(
    optimizer: torch.optim.Optimizer, settings: Recipe, *, steps_per_epoch: int
) -> lr_scheduler.LRScheduler:
    """Return the learning-rate schedule of *optimizer*, by step."""
    num_steps = settings.epochs * steps_per_epoch
    if settings.schedule == "one_cycle":
        return lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=num_steps)
    warm_up = min(round(settings.warmup_epochs * steps_per_epoch), num_steps - 1)  # at least one step must follow
    fall = lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_steps - warm_up)
    if not warm_up:
        return fall
    rise = lr_scheduler.LinearLR(optimizer, start_factor=_WARM_UP_FROM, total_iters=warm_up)
    return lr_scheduler.SequentialLR(optimizer, [rise, fall], milestones=[warm_up])


def make_average(network: nn.Module, settings: Recipe) -> AveragedModel | None:
    """Return the moving average of the weights of *network*, with its newest buffers; None if `ema` is not set."""
    if settings.ema is None:
        return None
    average = get_ema_multi_avg_fn(settings.ema)  # type: ignore[no-untyped-call] # torch has no types for it
    return AveragedModel(network, multi_avg_fn=average)


def make_mixing(settings: Recipe, *, num_classes: int) -> v2.Transform | None:
    """Return the transform that mixes images (B, 3, H, W) and labels (B,) of a batch; None if none is set."""
    found: list[Any] = []
    if settings.mixup:
        found.append(v2.MixUp(alpha=settings.mixup, num_classes=num_classes))
    if settings.cutmix:
        found.append(v2.CutMix(alpha=settings.cutmix, num_classes=num_classes))
    if len(found) < 2:
        return found[0] if found else None
    return v2.RandomChoice(found)


def _parallel(network: nn.Module, device: torch.device) -> DistributedDataParallel:
    return DistributedDataParallel(network, device_ids=None if device.type == "cpu" else [device])
