"""Faults to plant in the code of the project, with which tests check that the simulated device detects them."""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tta_pipeline.evaluation import one_pass
from tta_pipeline.loading import device
from tta_pipeline.methods import stateful
from tta_pipeline.methods.entropy import entropy_method


class Fault(NamedTuple):
    """A change of a function's source code."""

    owner: Any
    """Module or class that has the function."""
    function: str
    changes: dict[str, str]
    """Replacement of each text."""


_HOST_WAITS_FOR_COPY = {"copying.end.synchronize()": "pass"}
_DEVICE_WAITS_FOR_COPY = {"current.wait_event(self.end)": "pass"}

_TO_DEVICE = "lambda part: part.to('simulated:0')"

PLANTED: dict[str, tuple[Fault, ...]] = {
    "buffer overwritten early": (Fault(device, "_copy_ahead", _HOST_WAITS_FOR_COPY),),
    "no wait for the copy": (
        Fault(device, "_copy_ahead", _HOST_WAITS_FOR_COPY),
        Fault(device._PendingCopy, "result", _DEVICE_WAITS_FOR_COPY),
    ),
    "no record_stream": (Fault(device._PendingCopy, "result", {"self._images.record_stream(current)": "pass"}),),
    "mixed devices": (
        Fault(one_pass, "score_samples", {"labels.to(log_probabilities.device, non_blocking=True)": "labels"}),
    ),
    "item in a loop": (
        Fault(
            entropy_method.EntropyMethod,
            "_loss",
            {"return": "sum(float(logit) for logit in logits[:, 0].detach())\n    return"},
        ),
    ),
    "pixels kept": (
        Fault(
            one_pass._Recorder,
            "record",
            {"begin = ": "self._kept = [*vars(self).get('_kept', []), batch.images[:0]]\n    begin = "},
        ),
    ),
}
"""Faults by name, in a pass over a stream."""
RESUMED = {
    "counters on the device": (
        Fault(
            stateful,
            "_restore_state",
            {"deepcopy(value)": f"torch.utils._pytree.tree_map_only(torch.Tensor, {_TO_DEVICE}, value)"},
        ),
    ),
}
"""Faults by name, when a state is restored."""


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant the fault *name* in the project; None: change nothing."""
    faults = {**PLANTED, **RESUMED}[name] if name else ()
    before = [getattr(fault.owner, fault.function) for fault in faults]
    for fault in faults:
        setattr(fault.owner, fault.function, _changed(fault))
    try:
        yield
    finally:
        for fault, function in zip(faults, before, strict=True):
            setattr(fault.owner, fault.function, function)


def _changed(fault: Fault) -> Any:
    """Return the function with the fault, compiled from its changed source code."""
    function = inspect.unwrap(getattr(fault.owner, fault.function))
    text = textwrap.dedent(inspect.getsource(function))
    for expected, instead in fault.changes.items():
        if text.count(expected) != 1:
            raise AssertionError(f"found {expected!r} {text.count(expected)} times in {fault.function}; expected once")
        text = text.replace(expected, instead)
    found: dict[str, Any] = {}
    exec(compile(text, inspect.getfile(function), "exec"), function.__globals__, found)
    return found[fault.function]
