"""Saved states from which an interrupted stream continues, each sealed with a hash over state and fingerprint."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import torch

from tta_pipeline.evaluation.measured_pass import MeasuredPass
from tta_pipeline.evaluation.one_pass import BatchTiming, Pass
from tta_pipeline.evaluation.scores import SampleScores
from tta_pipeline.methods.stateful import StateDict
from tta_pipeline.util.files import read_sealed, seal, write_atomically

_NAME = re.compile(r"[0-9a-f]{64}(-\d{6,})?\.(state|part)")
_FORMAT = 1
"""Version of what is in the files; states of another one are left out."""
NUM_KEPT = 2
"""Number of states kept per stream: the newest, and the one before in case the newest is damaged."""


@dataclass(frozen=True, kw_only=True)
class StreamStates:
    """The states of one stream, each named after the fingerprint of the segment after which it was saved.

    The name of a state inside a segment also has the number of finished parts. The measurements of each part are in a
    file of their own, so that the bytes written grow linearly with the stream, not with its square.
    """

    folder: Path

    def save(self, fingerprint: str, state: StateDict) -> None:
        """Write *state* atomically."""
        _write(self._path(fingerprint), fingerprint, state)

    def save_within(self, fingerprint: str, number: int, state: StateDict, part: MeasuredPass) -> None:
        """Write *state* inside the segment with *fingerprint* after *number* parts, and the last *part*."""
        _write(self._part_path(fingerprint, number), fingerprint, _to_tensors(part))
        _write(self._path(fingerprint, number), fingerprint, state)
        self._path(fingerprint, number - NUM_KEPT).unlink(missing_ok=True)

    def read_newest(self, fingerprints: Sequence[str], tell: Callable[[str], None]) -> tuple[int, StateDict] | None:
        """Return the last good state of a stream whose segments have *fingerprints*, or None if there is none.

        Its tensors are on the host: an optimiser's counters stay there, and restoring the state copies the others to
        the device.

        Args:
            fingerprints: Fingerprints of the recorded segments, in order.
            tell: Called with a message for each damaged state.

        Returns:
            The number of segments before the state, and the state.
        """
        for number in range(len(fingerprints), 0, -1):
            state = _read(self._path(fingerprints[number - 1]), fingerprints[number - 1], tell)
            if state is not None:
                return number, state
        return None

    def read_newest_within(
        self, fingerprint: str, tell: Callable[[str], None]
    ) -> tuple[StateDict, list[MeasuredPass]] | None:
        """Return the last good state inside the segment with *fingerprint*, or None if there is none.

        Args:
            fingerprint: Fingerprint of the segment.
            tell: Called with a message for each damaged file.

        Returns:
            The state, and the parts of the segment before it.
        """
        for number in self._numbers(fingerprint, "state"):
            state = _read(self._path(fingerprint, number), fingerprint, tell)
            paths = [self._part_path(fingerprint, each) for each in range(1, number + 1)]
            parts = [part for path in paths if (part := _read(path, fingerprint, tell))] if state is not None else []
            if state is not None and len(parts) == number:
                return state, list(map(_from_tensors, parts))
        return None

    def remove_within(self, fingerprint: str, *, after: int) -> None:
        """Remove states and parts inside the segment with *fingerprint* whose number is greater than *after*."""
        for kind in ("state", "part"):
            for number in self._numbers(fingerprint, kind):
                if number > after:
                    (self.folder / f"{fingerprint}-{number:06d}.{kind}").unlink(missing_ok=True)

    def keep_only(self, fingerprints: Sequence[str]) -> None:
        """Remove all states except those after the segments with *fingerprints*, and all parts."""
        kept = {self._path(fingerprint) for fingerprint in fingerprints}
        for path in self.folder.glob("*.*"):
            if _NAME.fullmatch(path.name) and path not in kept:
                path.unlink(missing_ok=True)  # another run may have been first

    def _path(self, fingerprint: str, number: int | None = None) -> Path:
        return self.folder / (f"{fingerprint}.state" if number is None else f"{fingerprint}-{number:06d}.state")

    def _part_path(self, fingerprint: str, number: int) -> Path:
        return self.folder / f"{fingerprint}-{number:06d}.part"

    def _numbers(self, fingerprint: str, kind: str) -> list[int]:
        """Return the numbers of the files of *kind* inside the segment with *fingerprint*, the highest first."""
        found = [path for path in self.folder.glob(f"{fingerprint}-*.{kind}") if _NAME.fullmatch(path.name)]
        return sorted((int(path.stem.rpartition("-")[2]) for path in found), reverse=True)


def _write(path: Path, fingerprint: str, content: StateDict) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_atomically(path, seal(buffer.getvalue(), _seal_context(path, fingerprint)))


def _read(path: Path, fingerprint: str, tell: Callable[[str], None]) -> StateDict | None:
    """Return the content of *path*, with tensors on the host; None if the file is missing or damaged."""
    try:
        data = read_sealed(path, _seal_context(path, fingerprint))
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


def _seal_context(path: Path, fingerprint: str) -> str:
    """Return the text that enters a file's hash: format and fingerprint; inside a segment, also number and kind."""
    return f"{_FORMAT} {fingerprint if path.name == f'{fingerprint}.state' else path.name}"


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
