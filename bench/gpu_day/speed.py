"""Section of speed: from shards to predictions, against the same arithmetic on batches on the device."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import lease_device, median, method_of_plan, network_of, pixels, run_once, stream_of
from bench.gpu_day.plan import Plan
from bench.methods import tent_loop
from tta_pipeline.evaluation.device.arithmetic import arithmetic
from tta_pipeline.evaluation.device.clock import Clock
from tta_pipeline.evaluation.machine import default_decode_threads
from tta_pipeline.evaluation.scores import score_samples
from tta_pipeline.loading.device import as_floats
from tta_pipeline.methods.method import Method


@dataclass(frozen=True, kw_only=True)
class _Way:
    """One way to predict images."""

    name: str
    method: Callable[[torch.Tensor], torch.Tensor] | Method
    batch_size: int
    num_images: int
    num_threads: int | None
    """Threads that decode; None: the batches are on the device already."""
    asked: str
    """Requirement on its speed (>=) or time (<=) relative to the first way of its group; empty: none."""
    is_deterministic: bool = False

    def seconds(self, plan: Plan, device: torch.device) -> tuple[float, float]:
        """Return the seconds of a pass, and the seconds in which the device was idle."""
        if self.num_threads is None:
            return _resident_s(self, plan, device), 0.0
        assert isinstance(self.method, Method)
        stream = stream_of(
            plan, device, batch_size=self.batch_size, num_images=self.num_images, num_threads=self.num_threads
        )
        with arithmetic(device.type, "fp32", deterministic=self.is_deterministic):
            found = run_once(self.method, stream, device)
        return found.wall_s, sum(batch.device_idle_s for batch in found.batches)


def speed(plan: Plan) -> Iterator[Figure]:
    """Compare ways in groups, those with requirements first; the ways of a group take turns."""
    with lease_device(plan) as device, arithmetic(device.type, "fp32"):
        for ways in (
            _source(plan, device, plan.batch_size, None, threads=(4, 8, 16)),
            _tent(plan, device),
            _source(plan, device, plan.small_batch, None),
            _source(plan, device, plan.batch_size, plan.compile),
            _source(plan, device, plan.small_batch, plan.compile),
        ):
            yield from _compare_ways(ways, plan, device)


def _source(
    plan: Plan, device: torch.device, batch_size: int, mode: str | None, *, threads: Sequence[int] = ()
) -> list[_Way]:
    """Return ways for source: resident batches, then shards with the default number of threads, then with others.

    In the group that tries several numbers of *threads*, the first two ways read a whole cell.
    """
    method = method_of_plan(plan, "source", device, compile_mode=mode)
    default = default_decode_threads()

    def way(number: int | None) -> _Way:
        is_whole = bool(threads) and number in (None, default)
        how = "resident" if number is None else f"{number} threads"
        return _Way(
            name=f"source, {'compiled' if mode else 'eager'}, batch {batch_size}, {how}", method=method,
            batch_size=batch_size, num_threads=number,
            num_images=plan.num_images * plan.copies if is_whole else plan.num_short,
            asked=">= 0.95" if is_whole else "",
        )  # fmt: skip

    return [way(number) for number in (None, default, *(number for number in threads if number != default))]


def _tent(plan: Plan, device: torch.device) -> list[_Way]:
    """Return ways for tent: a bare loop over resident batches, then shards, then shards with determinism."""
    size, default = plan.small_batch, default_decode_threads()
    loop, method = tent_loop(network_of(plan, device)), method_of_plan(plan, "tent", device)
    fed = _Way(
        name=f"tent, eager, batch {size}, {default} threads", method=method, batch_size=size,
        num_images=plan.num_adapted, num_threads=default, asked="<= 1.15",
    )  # fmt: skip
    return [
        replace(fed, name=f"tent, eager, batch {size}, bare loop, resident", method=loop, num_threads=None),
        fed,
        replace(fed, name=f"{fed.name}, deterministic", is_deterministic=True, asked=""),
    ]


def _compare_ways(ways: Sequence[_Way], plan: Plan, device: torch.device) -> Iterator[Figure]:
    """Let *ways* take turns; yield their speeds, and the ratio of each to the first."""
    taken: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
    for turn in range(plan.turns + 1):
        for way in ways:
            if turn:
                taken[way.name].append(way.seconds(plan, device))
            else:  # warms up, and compiles
                replace(way, num_images=min(way.num_images, 4 * way.batch_size)).seconds(plan, device)
    rates = {way.name: [way.num_images / wall_s for wall_s, _ in taken[way.name]] for way in ways}
    for way in ways:
        yield median(way.name, rates[way.name], unit="images/s")
    for way in ways[1:]:
        turns = zip(rates[way.name], rates[ways[0].name], strict=True)
        is_time = way.asked.startswith("<")
        ratios = [limit / ours if is_time else ours / limit for ours, limit in turns]
        starved = statistics.median(device_idle_s / wall_s for wall_s, device_idle_s in taken[way.name])
        yield median(
            f"{way.name}: {'time' if is_time else 'speed'} over {ways[0].name}", ratios, asked=way.asked,
            text=f"the device had nothing to do for {starved:.1%} of the time",
        )  # fmt: skip


def _resident_s(way: _Way, plan: Plan, device: torch.device) -> float:
    """Return the seconds of a pass that repeats one batch on the device."""
    images = pixels(plan, device, batch_size=way.batch_size)
    labels = torch.zeros(way.batch_size, dtype=torch.int64)
    predict = way.method.predict if isinstance(way.method, Method) else way.method
    clock = Clock(device)
    clock.synchronize()
    started = time.perf_counter()
    for _ in range(way.num_images // way.batch_size):
        with torch.autocast(device.type, torch.bfloat16):
            logits = predict(as_floats(images))
        if isinstance(way.method, Method):
            score_samples(logits.float().log_softmax(1), labels, labels)
    clock.synchronize()
    # Scaled to the images of the streamed pass, whose last batch may be smaller.
    return (time.perf_counter() - started) * way.num_images / (way.num_images // way.batch_size * way.batch_size)
