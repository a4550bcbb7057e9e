"""Runs evaluations on the simulated device, and prints a line of JSON for each.

    python -m tta_pipeline_tests.simulated.run cases FOLDER tent/reset_each_shift source/mixed
    python -m tta_pipeline_tests.simulated.run resume FOLDER
    python -m tta_pipeline_tests.simulated.run memory FOLDER
    python -m tta_pipeline_tests.simulated.run growth FOLDER

FOLDER has the shards that `cases.make_shards` writes. The device is registered for the whole process, so each command
is a process of its own. The stream's buffers are overwritten at the earliest moment that the stream may do so.
"""

import hashlib
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.build_records import CellResult
from tta_pipeline.evaluation.device.devices import device_facts, distributed_backend, select_device_of_rank
from tta_pipeline.evaluation.device.leases import leased_device
from tta_pipeline.evaluation.sample_predictions import encode_predictions
from tta_pipeline.evaluation.stream_states import StreamStates
from tta_pipeline.loading.reader import Batch, Stream
from tta_pipeline_tests.simulated.cases import Case, experiment
from tta_pipeline_tests.simulated.device import install, limited_to
from tta_pipeline_tests.simulated.memory import MEMORY
from tta_pipeline_tests.simulated.streams import finish_all
from tta_pipeline_tests.simulated.waits import WAITS

DEVICE = install()
_CPU = torch.device("cpu")
Line = dict[str, Any]


class Batches:
    """Waits and live bytes of each batch of a pass."""

    def __init__(self) -> None:
        self.waits: list[dict[str, int]] = []
        self.live_bytes: list[int] = []
        WAITS.take()

    def advance(self, _num_samples: int) -> None:
        """End a batch."""
        self.waits.append(WAITS.take())
        self.live_bytes.append(MEMORY.live_bytes)


def cases(root: Path, *names: str) -> Iterator[Line]:
    """Yield the predictions of each case on both devices, and the waits in each batch."""
    for name in names:
        own = experiment(*name.split("/"))
        batches = Batches()
        with sdpa_kernel(SDPBackend.MATH):  # by default, the CPU's attention sums in another order
            expected = _predicted(Case(root, _CPU, own).results())
            found = _predicted(Case(root, DEVICE, own).results(batches.advance))
        finish_all()
        yield {"case": name, "cpu": expected, "simulated": found, "waits": batches.waits, "faults": _faults()}


def facts(root: Path) -> Iterator[Line]:
    """Yield the facts that the project reports about the device."""
    with leased_device("auto", print, folder=root) as device:
        (facts,) = device_facts()
        yield {
            "leased": str(device), "name": facts.name, "memory_bytes": facts.memory_bytes,
            "of_rank_3": str(select_device_of_rank(3)), "exchange": distributed_backend(device),
        }  # fmt: skip


def resume(root: Path) -> Iterator[Line]:
    """Yield the predictions and waits of a stream that is interrupted after the first cell and resumed."""
    case = Case(root, DEVICE, experiment("tent", "continual"))
    first, second = case.plan().segments
    evaluator = case.evaluator()
    case.evaluated(evaluator, first)
    states = StreamStates(folder=root)
    states.save("0" * 64, evaluator.state_dict())
    expected = _predicted(case.evaluated(evaluator, second))
    resumed = case.evaluator()
    resumed.start(case.opened(first).manifests[0], seed=0)
    newest = states.read("0" * 64, print)
    assert newest is not None
    resumed.load_state_dict(newest)
    batches = Batches()
    found = _predicted(case.evaluated(resumed, second, batches.advance))
    yield {"uninterrupted": expected, "resumed": found, "waits": batches.waits}


def memory(root: Path) -> Iterator[Line]:
    """Yield the errors of a stream whose batches do not fit into memory, and the result of following the advice.

    Memory is first too small for a forward pass, then only for the backward pass after it.
    """
    whole, half = (Case(root, DEVICE, experiment("tent", batch_size=size)) for size in (12, 6))
    peaks = [_peak_bytes(case) for case in (whole, half)]
    for limit_bytes in (sum(peaks) // 2, peaks[0] - 1):
        with limited_to(limit_bytes):
            try:
                list(whole.results())
            except EvaluationError as error:
                frames = traceback.extract_tb(error.__context__.__traceback__ if error.__context__ else None)
                is_in_backward = any(frame.name == "in_backward" for frame in frames)
                yield {"error": str(error), "is_in_backward": is_in_backward}
    with limited_to(sum(peaks) // 2):
        expected = _predicted(Case(root, _CPU, half.experiment).results())
        yield {"cpu": expected, "simulated": _predicted(half.results())}


def _peak_bytes(case: Case) -> int:
    MEMORY.peak_bytes = MEMORY.live_bytes
    list(case.results())
    return MEMORY.peak_bytes


def growth(root: Path) -> Iterator[Line]:
    """Yield the live bytes after each batch of three in a stream."""
    batches = Batches()
    list(Case(root, DEVICE, experiment("tent", batch_size=3)).results(batches.advance))
    finish_all()
    yield {"live_bytes": batches.live_bytes}


def _predicted(results: Iterable[CellResult]) -> list[str]:
    """Return a hash of the predictions and scores of each cell, to the last bit."""
    return [
        hashlib.sha256(encode_predictions({result.row.cell.corruption: result.samples}) + _scores(result)).hexdigest()
        for result in results
    ]


def _scores(result: CellResult) -> bytes:
    return repr((result.row.scores.nll, result.row.scores.brier)).encode()


def _faults() -> Sequence[str]:
    """Return the faults since the last call."""
    found = sorted(set(MEMORY.faults))
    MEMORY.faults.clear()
    return found


def _overwritten_early(batches_of: Callable[[Stream], Iterator[Batch]]) -> Callable[[Stream], Iterator[Batch]]:
    def batches(stream: Stream) -> Iterator[Batch]:
        for batch in batches_of(stream):
            yield batch
            batch.images.fill_(0)

    return batches


def main() -> None:
    """Run the command."""
    torch.set_num_threads(1)
    Stream.__iter__ = _overwritten_early(Stream.__iter__)  # type: ignore[method-assign]
    command, root, *names = sys.argv[1:]
    lines: Callable[..., Iterator[Line]] = {
        "cases": cases, "facts": facts, "resume": resume, "memory": memory, "growth": growth,
    }[command]  # fmt: skip
    for line in lines(Path(root), *names):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
