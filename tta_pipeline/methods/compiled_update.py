"""The update of an optimiser, compiled as a function of tensors.

`torch.compile(optimizer.step)` compiles for one optimiser and the tensors of its state. It compiles again for each seed
and for each stream, since the start of a stream empties the state, and torch gives up at the eighth time. A function of
tensors is compiled once for all tensors of the same sizes, but needs a state that exists before the first step.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd


def compile_update(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Give each parameter of *optimizer*, SGD, Adam or AdamW, a state, and return a function: a compiled step.

    The state is zero, so the first step is the same as without a state.
    """
    is_adam = isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in optimizer.state:
                names = ("exp_avg", "exp_avg_sq") if is_adam else ("momentum_buffer",)
                state = optimizer.state[parameter] = {name: torch.zeros_like(parameter) for name in names}
                if is_adam:
                    state["step"] = torch.zeros((), device=parameter.device)  # on the host, each step would copy it
    if is_adam:
        step = _adamw if isinstance(optimizer, torch.optim.AdamW) else _adam
        return partial(_update, optimizer, torch.compile(step), ("lr", "weight_decay", "betas", "eps"))
    return partial(_update, optimizer, torch.compile(_sgd), ("lr", "weight_decay", "momentum", "nesterov"))


@torch.no_grad()
def _update(optimizer: torch.optim.Optimizer, step: Callable[..., None], settings: tuple[str, ...]) -> None:
    for group in optimizer.param_groups:
        moved = [parameter for parameter in group["params"] if parameter.grad is not None]
        states = [optimizer.state[parameter] for parameter in moved]
        gradients = [parameter.grad for parameter in moved]
        step(moved, gradients, states, **{name: group[name] for name in settings})


def _sgd(
    parameters: list[torch.Tensor], gradients: list[torch.Tensor], states: list[dict[str, torch.Tensor]],
    *, lr: float, weight_decay: float, momentum: float, nesterov: bool,
) -> None:  # fmt: skip
    sgd(
        parameters, gradients, [state["momentum_buffer"] for state in states], foreach=True, lr=lr,
        weight_decay=weight_decay, momentum=momentum, nesterov=nesterov, dampening=0.0, maximize=False,
    )  # fmt: skip


def _adam(
    parameters: list[torch.Tensor], gradients: list[torch.Tensor], states: list[dict[str, torch.Tensor]],
    *, lr: float, weight_decay: float, betas: tuple[float, float], eps: float,
) -> None:  # fmt: skip
    averages, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
    adam(
        parameters, gradients, averages, squares, [], steps, foreach=True, lr=lr, weight_decay=weight_decay,
        beta1=betas[0], beta2=betas[1], eps=eps, amsgrad=False, maximize=False,
        capturable=torch.compiler.is_compiling(),  # the number of steps stays a tensor
    )  # fmt: skip


def _adamw(
    parameters: list[torch.Tensor], gradients: list[torch.Tensor], states: list[dict[str, torch.Tensor]],
    *, lr: float, weight_decay: float, betas: tuple[float, float], eps: float,
) -> None:  # fmt: skip
    torch._foreach_mul_(parameters, 1 - lr * weight_decay)
    _adam(parameters, gradients, states, lr=lr, weight_decay=0.0, betas=betas, eps=eps)
