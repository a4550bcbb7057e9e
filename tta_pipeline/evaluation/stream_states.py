"""Saved states from which an interrupted stream continues, each sealed with a hash over state and name."""

import io
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import NamedTuple

import torch

from tta_pipeline.evaluation.measured_pass import MeasuredPass
from tta_pipeline.evaluation.one_pass import BatchTiming, Pass
from tta_pipeline.evaluation.scores import SampleScores
from tta_pipeline.methods.stateful import StateDict
from tta_pipeline.util.files import read_sealed, seal, write_atomically

_NAME = re.compile(r"[0-9a-f]{64}\.state|[0-9a-f]{64}-[0-9a-f]{8}-\d{6,}\.(state|part)")
_FORMAT = 2
"""Version of the files' content; states of other versions are ignored."""
_FIRST = "0" * 8
"""Used instead of the previous result's hash for the first segment."""
NUM_KEPT = 2
"""Number of states kept per stream: the newest, and the one before in case the newest is damaged."""


@dataclass(frozen=True, kw_only=True)
class StreamStates:
    """The states of one stream, each named after the hash of the result after which it was saved.

    The name of a state inside a segment contains the segment's fingerprint, the previous result, and the number of
    finished parts. The measurements of each part are in a separate file, so that the bytes written grow linearly with
    the stream, not with its square.
    """

    folder: Path

    def save(self, after: str, state: StateDict) -> None:
        """Write *state* atomically; *after* is the sha256 of the result of the segment before."""
        _write(self.folder / f"{after}.state", state)

    def read(self, after: str, tell: Callable[[str], None]) -> StateDict | None:
        """Return the state after the result with the hash *after*; None if there is no intact state.

        The tensors are on the host: an optimiser's counters stay there, and restoring the state copies the others to
        the device.
        """
        return _read(self.folder / f"{after}.state", tell)

    def save_within(
        self, fingerprint: str, previous: str | None, number: int, state: StateDict, part: MeasuredPass
    ) -> None:
        """Write *state* inside the segment with *fingerprint* after *number* parts, and the last *part*.

        Args:
            fingerprint: Fingerprint of the segment.
            previous: sha256 of the result before it; None for the first segment.
            number: Number of finished parts.
            state: State of the method.
            part: The last finished part.
        """
        within = _Within(self.folder, fingerprint, previous)
        _write(within.path(number, "part"), _to_tensors(part))
        _write(within.path(number, "state"), state)
        within.path(number - NUM_KEPT, "state").unlink(missing_ok=True)

    def read_newest_within(
        self, fingerprint: str, previous: str | None, tell: Callable[[str], None]
    ) -> tuple[StateDict, list[MeasuredPass]] | None:
        """Return the last intact state inside a segment, and the parts before that state; None if there is none.

        Args:
            fingerprint: Fingerprint of the segment.
            previous: sha256 of the result before it; None for the first segment.
            tell: Called with a message for each damaged file.
        """
        within = _Within(self.folder, fingerprint, previous)
        for number in within.numbers("state"):
            state = _read(within.path(number, "state"), tell)
            paths = [within.path(each, "part") for each in range(1, number + 1)]
            parts = [part for path in paths if (part := _read(path, tell))] if state is not None else []
            if state is not None and len(parts) == number:
                return state, list(map(_from_tensors, parts))
        return None

    def remove_within(self, fingerprint: str, previous: str | None, *, after: int) -> None:
        """Remove states and parts inside a segment whose number is greater than *after*."""
        within = _Within(self.folder, fingerprint, previous)
        for kind in ("state", "part"):
            for number in within.numbers(kind):
                if number > after:
                    within.path(number, kind).unlink(missing_ok=True)

    def keep_only(self, after: Sequence[str]) -> None:
        """Remove all states except those after the results with the hashes *after*, and all parts."""
        kept = {f"{sha256}.state" for sha256 in after}
        for path in self.folder.glob("*.*"):
            if _NAME.fullmatch(path.name) and path.name not in kept:
                path.unlink(missing_ok=True)  # another run may have been first
        if not kept:
            with suppress(OSError):  # it may contain other files
                self.folder.rmdir()


class _Within(NamedTuple):
    """The files inside a segment of one pass."""

    folder: Path
    fingerprint: str
    previous: str | None

    @property
    def _stem(self) -> str:
        return f"{self.fingerprint}-{self.previous[:8] if self.previous else _FIRST}"

    def path(self, number: int, kind: str) -> Path:
        return self.folder / f"{self._stem}-{number:06d}.{kind}"

    def numbers(self, kind: str) -> list[int]:
        """Return the numbers of the files of *kind*, the highest first."""
        found = [path for path in self.folder.glob(f"{self._stem}-*.{kind}") if _NAME.fullmatch(path.name)]
        return sorted((int(path.stem.rpartition("-")[2]) for path in found), reverse=True)


def _write(path: Path, content: StateDict) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_atomically(path, seal(buffer.getvalue(), _seal_context(path)))


def _read(path: Path, tell: Callable[[str], None]) -> StateDict | None:
    """Return the content of *path*, with tensors on the host; None if the file is missing or damaged."""
    try:
        data = read_sealed(path, _seal_context(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        tell(f"{path} cannot be read ({error.strerror}); the stream continues from an earlier state")
        return None
    if data is None:
        tell(f"{path} is damaged or was made by an earlier version; the stream continues from an earlier state")
        return None
    content: StateDict = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return content


def _seal_context(path: Path) -> str:
    """Return the text that a file's hash includes: the format and the file's name."""
    return f"{_FORMAT} {path.name}"


def _to_tensors(part: MeasuredPass) -> StateDict:
    collected = part.collected
    return {
        "samples": [torch.from_numpy(column) for column in collected.samples],
        "class_gaps": torch.from_numpy(collected.class_gaps),
        "batches": torch.tensor([astuple(batch) for batch in collected.batches], dtype=torch.float64),
        "wall_s": collected.wall_s,
        "counters": dict(part.counters),
    }


_TIMING_FIELDS = tuple(field.name for field in fields(BatchTiming))
_COUNTS = ("num_samples", "num_unadapted", "num_resets")


def _from_tensors(part: StateDict) -> MeasuredPass:
    batches = tuple(
        BatchTiming(
            **{name: int(value) if name in _COUNTS else value for name, value in zip(_TIMING_FIELDS, row, strict=True)}
        )
        for row in part["batches"].tolist()
    )
    samples = SampleScores(*(column.numpy() for column in part["samples"]))
    return MeasuredPass(
        collected=Pass(samples=samples, class_gaps=part["class_gaps"].numpy(), batches=batches, wall_s=part["wall_s"]),
        counters=part["counters"],
    )
