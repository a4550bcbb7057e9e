"""Sections that compare the device's results with the CPU's."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import (
    FEW,
    NOT_HERE,
    ON_ANY_NETWORK,
    figures_of_each,
    lease_device,
    method_of,
    network_of,
    small_network,
    stream_of,
)
from bench.gpu_day.plan import Plan
from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.evaluation.device.arithmetic import arithmetic
from tta_pipeline.evaluation.one_pass import run_pass
from tta_pipeline.loading.device import move_to_device

_NUM_CLASSES, _NUM_BATCHES = 10, 3
_NOISE = 1e-6


def sanitizer(plan: Plan) -> Iterator[Figure]:
    """Read one stream under the sanitizer, which raises if two streams use a buffer without synchronization."""
    with lease_device(plan) as device:
        if device.type == "cuda":
            from torch.cuda import _sanitizer  # documented under this name

            _sanitizer.enable_cuda_sanitizer()
        else:
            yield Figure(what="the sanitizer", why_not=NOT_HERE)
        stream = stream_of(plan, device, batch_size=plan.small_batch, num_images=10 * plan.small_batch)
        num_other = 0
        for expected, batch in zip(
            (batch.images.clone() for batch in stream), move_to_device(stream, device), strict=True
        ):
            num_other += not torch.equal(expected, batch.images.cpu())
        yield Figure(what="batches with other bytes than on the CPU", found=num_other, asked="== 0")
        method = method_of(
            "tent", network_of(plan, device), num_classes=plan.num_classes, image_size=plan.image_size,
            batch_size=plan.small_batch,
        )  # fmt: skip
        run_pass(ProtocolDriver(method), stream, device=device, precision="bf16", advance=lambda _: None)
        yield Figure(what="passes of tent without a finding", found=1, asked="== 1")


def methods(plan: Plan) -> Iterator[Figure]:
    """Compare the predictions of all methods with the CPU's, on the same images with the same random draws."""
    draws = torch.Generator().manual_seed(5)
    size = (_NUM_BATCHES, plan.compared_batch, 3, plan.compared_size, plan.compared_size)
    batches = torch.rand(size, generator=draws)
    noisy = batches + _NOISE * torch.randn(size, generator=draws)
    with lease_device(plan) as device:

        def figures(name: str) -> Iterator[Figure]:
            here = _logits(name, plan, batches, torch.device("cpu"))
            noise = (_logits(name, plan, noisy, torch.device("cpu")) - here).abs().max().item()
            there, again = (_logits(name, plan, batches, device) for _ in range(2))
            distance = (there - here).abs().max().item()
            yield Figure(
                what=f"{name}: distance to the CPU over that of {_NOISE:g} of noise", asked="<= 10",
                found=distance / max(noise, _NOISE), text=f"{distance:.2g} / {noise:.2g}",
            )  # fmt: skip
            yield Figure(what=f"{name}: repeated, the same bits", found=_sha256(there) == _sha256(again))
            first, second = (_logits(name, plan, batches, device, deterministic=True) for _ in range(2))
            yield Figure(
                what=f"{name}: repeated, deterministic, the same bits", found=_sha256(first) == _sha256(second),
                asked="== 1",
            )  # fmt: skip

        yield from figures_of_each(ON_ANY_NETWORK, figures)


def _logits(
    name: str, plan: Plan, batches: torch.Tensor, device: torch.device, *, deterministic: bool = False
) -> torch.Tensor:
    """Return the logits of all *batches* on the host."""
    with SameDraws(), arithmetic(device.type, "fp32", deterministic=deterministic):
        method = method_of(
            name, small_network(plan, device, num_classes=_NUM_CLASSES), num_classes=_NUM_CLASSES,
            image_size=plan.compared_size, batch_size=plan.compared_batch, **FEW.get(name, {}),
        )  # fmt: skip
        return torch.stack([method.predict(batch.to(device)).float().cpu() for batch in batches])


def _sha256(logits: torch.Tensor) -> str:
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()


class SameDraws(TorchFunctionMode):
    """While active, makes every draw from a generator on the CPU, by a twin with the same seed, and copies it.

    Otherwise the same seed would give different numbers on another kind of device, and so different views.
    """

    def __init__(self) -> None:
        super().__init__()
        self._twins: dict[torch.Generator, torch.Generator] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Draw on the CPU if a generator is given; call other functions unchanged."""
        given = dict(kwargs or {})
        generator = given.get("generator")
        if generator is None:
            return function(*args, **given)
        if generator not in self._twins:
            self._twins[generator] = torch.Generator().manual_seed(generator.initial_seed())
        given["generator"] = self._twins[generator]
        target = given.pop("tensor", None) if not args else args[0]
        if function.__name__.endswith("_"):  # drawn in place
            with torch.no_grad():
                return target.copy_(function(torch.empty(target.shape, dtype=target.dtype), *args[1:], **given))
        if "device" in given:
            given["device"] = "cpu"
        drawn: torch.Tensor = function(*(_on_host(arg) for arg in args), **given)
        return drawn.to(generator.device)


def _on_host(argument: Any) -> Any:
    return argument.cpu() if isinstance(argument, torch.Tensor) else argument
