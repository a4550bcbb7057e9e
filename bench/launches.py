"""Operators that a method submits for a batch, by the function that submits them: `python -m bench.launches`.

If an accelerator finishes a kernel before the host submits the next, it is as slow as the host, and each of these
operators is at least one kernel. They are counted on the CPU: ResNet-50, the second batch of 64 images of 32 x 32
pixels, optimizers as on an accelerator. Operators that only look at a tensor in another way are left out.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from bench.gpu_day.passes import MEAN, STD, method_of, plain_network
from tta_pipeline import methods
from tta_pipeline.models.normalized import Normalized

METHODS = ("source", "tent", "sar", "roid", "cmf", "rotta", "petta", "cotta")
NUM_CLASSES, BATCH_SIZE, IMAGE_SIZE = 1000, 64, 32
# Random weights are certain of nothing, but the authors' threshold would still depend on them.
_SETTINGS: Mapping[str, Mapping[str, object]] = {"cotta": {"anchor_threshold": 1.0}}
_PACKAGE = methods.__path__[0]
_COMPUTES_NOTHING = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "_local_scalar_dense",
}
_SMALL_SHARE = 0.02


def main() -> None:
    """Count for each method, and print a table."""
    table = Table("method", "operators", "submitted by", box=None)
    for name in sys.argv[1:] or METHODS:
        counted = count_operators(name)
        least = _SMALL_SHARE * counted.total()
        shown = [f"{where} {count:,}" for where, count in counted.most_common() if count >= least]
        table.add_row(name, f"{counted.total():,}", ", ".join(shown))
    Console(width=160).print(table)


def count_operators(name: str) -> Counter[str]:
    """Return the operators of a batch of method *name*, by the file and function of a method that submits them."""
    network = Normalized(plain_network("resnet50", NUM_CLASSES), mean=MEAN, std=STD).eval()
    method = method_of(
        name, network.to(memory_format=torch.channels_last), num_classes=NUM_CLASSES, image_size=IMAGE_SIZE,
        batch_size=BATCH_SIZE, **_SETTINGS.get(name, {}),
    )  # fmt: skip
    if optimizer := getattr(method, "_optimizer", None):
        for group in optimizer.param_groups:
            group["foreach"] = True
    torch.manual_seed(0)
    method.predict(torch.rand(BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE))
    with _Counting() as counting:
        method.predict(torch.rand(BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE))
    return counting.by_function


class _Counting(TorchDispatchMode):
    """Counts the operators in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.by_function: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not func.is_view and func.overloadpacket.__name__ not in _COMPUTES_NOTHING:
            self.by_function[_submitter()] += 1
        return func(*args, **(kwargs or {}))


def _submitter() -> str:
    """Return the innermost function of a method on the stack."""
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "elsewhere"
    return f"{frame.f_code.co_filename.rpartition('/')[2].removesuffix('.py')}.{frame.f_code.co_name}"


if __name__ == "__main__":
    main()
