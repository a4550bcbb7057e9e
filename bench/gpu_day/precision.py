"""Section on the effects of bf16, tf32 and fp16 on predictions and gradients."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import FEW, NOT_HERE, ON_ANY_NETWORK, figures_of_each, lease_device, method_of, small_network
from bench.gpu_day.plan import Plan
from tta_pipeline.evaluation.device.arithmetic import Precision, arithmetic
from tta_pipeline.methods.losses import entropy

_NUM_CLASSES, _NUM_BATCHES = 10, 2
_ADAPT_FIRST = ("memo", "adacontrast")
"""Methods that predict after the update."""
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LARGE_STEPS = {"memo": {"lr": 0.05}, "adacontrast": {"lr": 0.01}}
"""Learning rates for the methods that adapt first: large enough for the effect to be visible despite rounding, and
small enough for it not to be chaotic. At 0.05, tf32 multiplies AdaContrast's by 0.56, and noise of 1e-3 by 1.86."""


def precision(plan: Plan) -> Iterator[Figure]:
    """Yield whether predictions are finite, their distance from fp32's, and the change of an adaptation's effect."""
    size = (_NUM_BATCHES, plan.compared_batch, 3, plan.compared_size, plan.compared_size)
    batches = torch.rand(size, generator=torch.Generator().manual_seed(6))
    with lease_device(plan) as device:
        if device.type != "cuda":
            yield Figure(what="tf32", why_not=NOT_HERE)
        if not _casts(device):
            yield Figure(what="bf16 and fp16", why_not="not here: autocast casts nothing on this kind of device")
            return
        compared: tuple[Precision, ...] = ("bf16", "tf32") if device.type == "cuda" else ("bf16",)

        def figures(name: str) -> Iterator[Figure]:
            exact = _logits(name, plan, batches, device, "fp32")
            for precision in compared:
                found = _logits(name, plan, batches, device, precision)
                yield Figure(
                    what=f"{name}: finite in {precision}", found=found.isfinite().all().item(), asked="== 1",
                    text=f"distance {(found - exact).norm() / exact.norm():.2g} of the logits, "
                    f"{(found.argmax(-1) == exact.argmax(-1)).float().mean():.0%} of the labels are fp32's",
                )  # fmt: skip

        yield from figures_of_each(ON_ANY_NETWORK, figures)
        yield from figures_of_each(_ADAPT_FIRST, lambda name: [_effect(name, plan, batches, device)])
        for kind in ("bf16", "fp16"):
            yield _gradient(plan, batches[0], device, kind)


def _casts(device: torch.device) -> bool:
    """Return whether autocast does anything on *device*."""
    factor = torch.ones(2, 2, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        return (factor @ factor).dtype == torch.bfloat16


def _effect(name: str, plan: Plan, batches: torch.Tensor, device: torch.device) -> Figure:
    """Compare how much the adaptation changes predictions in bf16 and in fp32."""

    def effect(precision: Precision) -> float:
        still = _logits(name, plan, batches, device, precision, lr=1e-30)
        return (_logits(name, plan, batches, device, precision) - still).norm().item()

    ratio = effect("bf16") / effect("fp32")
    return Figure(
        what=f"{name}: distance from 1 of the adaptation's effect in bf16 over that in fp32", found=abs(ratio - 1),
        asked="<= 0.05", text=f"ratio {ratio:.3f}", is_speed=plan.is_rehearsal,
    )  # fmt: skip


def _gradient(plan: Plan, images: torch.Tensor, device: torch.device, kind: str) -> Figure:
    """Compare the gradient of Tent's loss with fp32's."""

    def gradient(cast: AbstractContextManager[None]) -> torch.Tensor:
        network = small_network(plan, device, num_classes=_NUM_CLASSES)
        with arithmetic(device.type, "fp32"), cast:
            loss = entropy(network(images.to(device)).float()).mean()
        loss.backward()
        return torch.cat([each.grad.flatten() for each in network.parameters() if each.grad is not None])

    exact, found = gradient(nullcontext()), gradient(torch.autocast(device.type, _DTYPES[kind]))
    cosine = torch.nn.functional.cosine_similarity(exact, found, dim=0).item()
    return Figure(what=f"cosine of the gradient in {kind}, unscaled, to that in fp32", found=cosine)


def _logits(
    name: str, plan: Plan, batches: torch.Tensor, device: torch.device, precision: Precision, **settings: object
) -> torch.Tensor:
    """Return the logits of all *batches* on the host."""
    cast = torch.autocast(device.type, _DTYPES[precision], cache_enabled=False) if precision in _DTYPES else None
    with arithmetic(device.type, precision):
        method = method_of(
            name, small_network(plan, device, num_classes=_NUM_CLASSES), num_classes=_NUM_CLASSES,
            image_size=plan.compared_size, batch_size=plan.compared_batch,
            **{**FEW.get(name, {}), **_LARGE_STEPS.get(name, {}), **settings},
        )  # fmt: skip
        with cast or nullcontext():
            return torch.stack([method.predict(batch.to(device)).float().cpu() for batch in batches])
