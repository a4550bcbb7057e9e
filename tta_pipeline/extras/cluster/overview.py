"""The progress of a submission: counts by stage, the expected time left, and failures."""

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Self

from tta_pipeline.evaluation.work.pieces import ON_A_DEVICE, STAGES, Piece
from tta_pipeline.extras.cluster.submission import ACTIVE, Condition, State, Submission

STATUS_COLUMNS = ("stage", "pieces", "waiting", "running", "done", "failed", "cancelled", "lost")
_CONDITIONS: tuple[Condition, ...] = ("waiting", "running", "done", "failed", "cancelled", "lost")


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A submission and the states of its pieces at one moment."""

    submission: Submission
    states: tuple[State, ...]

    @property
    def is_over(self) -> bool:
        """Whether no piece runs or waits any more."""
        return not any(state.condition in ACTIVE for state in self.states)

    @property
    def num_done(self) -> int:
        """Number of pieces that are done."""
        return sum(state.condition == "done" for state in self.states)

    @property
    def done(self) -> tuple[Piece, ...]:
        """The pieces that are done."""
        return tuple(piece for piece, state in self._pieces_with_states() if state.condition == "done")

    @property
    def active(self) -> tuple[Piece, ...]:
        """The pieces that run or wait."""
        return tuple(piece for piece, state in self._pieces_with_states() if state.condition in ACTIVE)

    @property
    def unsuccessful(self) -> tuple[Piece, ...]:
        """The pieces that ended without being done."""
        return tuple(piece for piece, state in self._pieces_with_states() if state.condition not in {"done", *ACTIVE})

    def with_finished(self, finished: Mapping[Piece, AbstractSet[tuple[str, str]]]) -> Self:
        """Return this overview with each left-over piece marked as done if *finished* has all its places.

        The files on disk decide, not the state of a run or a job.
        """
        states = tuple(
            replace(state, condition="done") if set(piece.places) <= finished.get(piece, set()) else state
            for piece, state in self._pieces_with_states()
        )
        return replace(self, states=states)

    def rows(self) -> Iterator[tuple[str | int, ...]]:
        """Yield `STATUS_COLUMNS` of each stage."""
        for stage in STAGES:
            numbers = self.submission.piece_numbers(stage)
            counts = Counter(self.states[number].condition for number in numbers)
            if numbers:
                yield stage, len(numbers), *(counts[condition] for condition in _CONDITIONS)

    def problems(self) -> Iterator[str]:
        """Yield a line for each piece that failed or was lost, with its log."""
        for piece, state in self._pieces_with_states():
            if state.condition in ("failed", "lost"):
                yield f"{piece.name}: {state.condition}; {f'log: {state.log}' if state.log else 'it has no log'}"

    def remaining_s(self, num_devices: int) -> float | None:
        """Return the expected time left in seconds with *num_devices* at a time; None if not known."""
        left = [piece.expected_s for piece in self.active if piece.stage in ON_A_DEVICE]
        if any(expected_s is None for expected_s in left):
            return None
        return sum(filter(None, left)) / num_devices

    def line(self, num_devices: int) -> str:
        """Return the progress in one line."""
        counts = Counter(state.condition for state in self.states)
        told = ", ".join(f"{counts[condition]:,} {condition}" for condition in _CONDITIONS if counts[condition])
        left_s = self.remaining_s(num_devices)
        about = "" if left_s is None or self.is_over else f"; about {left_s / 3600:,.1f} h left"
        return f"{self.num_done:,} of {len(self.states):,} pieces done: {told}{about}"

    def _pieces_with_states(self) -> Iterator[tuple[Piece, State]]:
        return zip(self.submission.pieces, self.states, strict=True)
