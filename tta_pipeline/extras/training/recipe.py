"""Makes optimiser, learning-rate schedule, moving average and mixing from the settings in a benchmark file.

All are parts of torch and torchvision; decision 043 says why not timm's, with which tests compare them.
"""

from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.transforms import v2

from tta_pipeline.benchmarks.training_recipe import Recipe

_WARM_UP_FROM = 0.01
"""Share of the learning rate at which a linear warm-up begins."""


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
    after = _after_warm_up(optimizer, settings, steps_per_epoch=steps_per_epoch, num_steps=num_steps - warm_up)
    if not warm_up:
        return after
    rise = lr_scheduler.LinearLR(optimizer, start_factor=_WARM_UP_FROM, total_iters=warm_up)
    return lr_scheduler.SequentialLR(optimizer, [rise, after], milestones=[warm_up])


def _after_warm_up(
    optimizer: torch.optim.Optimizer, settings: Recipe, *, steps_per_epoch: int, num_steps: int
) -> lr_scheduler.LRScheduler:
    if settings.schedule == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_steps)
    if settings.schedule == "constant":
        return lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
    warm_up = settings.epochs * steps_per_epoch - num_steps
    milestones = [epoch * steps_per_epoch - warm_up for epoch in settings.step_epochs]
    return lr_scheduler.MultiStepLR(optimizer, milestones, gamma=settings.step_factor)


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
