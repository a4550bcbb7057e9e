"""A second model: a frozen copy, or a teacher that follows its student as an exponential moving average."""

from copy import deepcopy

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return a copy of *model* whose parameters require no gradients."""
    return deepcopy(model).requires_grad_(False)


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, *, momentum: float) -> None:
    """Update the parameters of *teacher*: teacher = momentum * teacher + (1 - momentum) * student; buffers stay.

    Tarvainen and Valpola 2017, "Mean teachers are better role models", section 2.
    """
    average = get_ema_multi_avg_fn(momentum)  # type: ignore[no-untyped-call]
    average(list(teacher.parameters()), list(student.parameters()), None)
