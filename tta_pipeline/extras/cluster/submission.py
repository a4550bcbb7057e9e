"""A submission on disk: a file with its pieces, which engines read, and the outcome of each piece."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import SubmissionError
from tta_pipeline.evaluation.work.pieces import Piece
from tta_pipeline.results.result_files import utc_now
from tta_pipeline.util.files import write_atomically, write_once
from tta_pipeline.util.json_values import JsonObject

Condition = Literal["waiting", "running", "done", "failed", "cancelled", "lost"]
ACTIVE: frozenset[Condition] = frozenset({"waiting", "running"})
"""Conditions of pieces that have not ended."""
_FILE = "submission.json"
_CANCELLED, _ENDED, _CLAIMED = "cancelled", "ended", "claimed.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """State of a piece, as its engine reports it."""

    condition: Condition
    log: str = ""
    """Path of its log; empty: it has none yet."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Pieces of a benchmark that were handed to an engine together."""

    number: int
    """Number among the submissions of the benchmark, from 1."""
    benchmark: str
    engine: str
    pieces: tuple[Piece, ...]
    """Pieces in the order of their stages; the position of a piece here is its number, from 0."""
    compute: JsonObject
    """Settings of the machine for the pieces, named as in the resource `compute`."""
    submitted_at: str
    """Time in UTC."""
    folder: Path
    owner: str
    """Identifier of the Dagster history whose sensor alone launches the pieces; empty: the engine has no sensor."""

    @property
    def name(self) -> str:
        """The name that engines show."""
        return f"{self.benchmark.replace('/', '__')}-{self.number}"

    @property
    def key(self) -> str:
        """A name that is unique among all submissions, also across data roots."""
        return f"{self.name}-{re.sub('[^0-9]', '', self.submitted_at)}"

    @property
    def is_cancelled(self) -> bool:
        """Whether the user cancelled the submission: no further stage begins."""
        return (self.folder / _CANCELLED).exists()

    @property
    def is_ended(self) -> bool:
        """Whether the submission was marked as over: no piece runs or waits any more."""
        return (self.folder / _ENDED).exists()

    def mark_cancelled(self) -> None:
        """Mark the submission as cancelled: no further stage begins."""
        self._mark(_CANCELLED)

    def mark_ended(self) -> None:
        """Mark the submission as over: none of its pieces will run."""
        self._mark(_ENDED)

    def claim(self, name: str) -> str:
        """Claim the submission for *name*, who alone launches the pieces, unless it is claimed; return the claimant.

        Raises:
            SubmissionError: the claim cannot be read.
        """
        if not self.claimed_by:
            write_once(self.folder / _CLAIMED, json.dumps({"by": name}).encode())
        return self.claimed_by

    @property
    def claimed_by(self) -> str:
        """Name of the claimant, who launches the pieces; empty: nobody has claimed them.

        Raises:
            SubmissionError: the claim cannot be read.
        """
        path = self.folder / _CLAIMED
        try:
            return str(json.loads(path.read_bytes())["by"])
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SubmissionError(
                f"{path} cannot be read ({error!r}); expected who launches the pieces: remove that file"
            ) from error

    def piece_numbers(self, stage: str) -> tuple[int, ...]:
        """Return the numbers of the pieces of *stage*."""
        return tuple(number for number, piece in enumerate(self.pieces) if piece.stage == stage)

    def write_outcome(self, number: int, condition: Condition) -> None:
        """Write how a piece ended, for engines that do not remember it."""
        noted = {"submission": self.key, "condition": condition}
        write_atomically(self._outcome_path(number), json.dumps(noted).encode())

    def read_outcome(self, number: int) -> str:
        """Return how a piece ended; empty if this submission has no note of it."""
        try:
            noted = json.loads(self._outcome_path(number).read_bytes())
            return str(noted["condition"]) if noted["submission"] == self.key else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def log_path(self, number: int) -> Path:
        """Return the path of the log of the piece *number*, for engines that keep no logs."""
        return self.folder / "logs" / f"{number}.log"

    @classmethod
    def create(
        cls,
        locations: Locations,
        *,
        benchmark: str,
        engine: str,
        pieces: Sequence[Piece],
        compute: JsonObject,
        owner: str = "",
    ) -> Self:
        """Write a submission of *pieces*, with the next free number."""
        folder = locations.submissions(benchmark)
        # A folder without its file counts as taken too: its other files belong to an earlier submission.
        number = max(_used_numbers(folder), default=0)
        while True:
            number += 1
            made = cls(
                number=number,
                benchmark=benchmark,
                engine=engine,
                pieces=tuple(pieces),
                compute=compute,
                submitted_at=utc_now(),
                folder=folder / str(number),
                owner=owner,
            )
            if write_once(made.folder / _FILE, made._encoded()):
                return made

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the submission in *folder*.

        Raises:
            SubmissionError: it cannot be read.
        """
        path = folder / _FILE
        try:
            facts = json.loads(path.read_bytes())
            pieces = tuple(
                Piece(**{**piece, "assets": tuple(piece["assets"]), "keys": tuple(piece["keys"])})
                for piece in facts.pop("pieces")
            )
            return cls(**facts, pieces=pieces, number=int(folder.name), folder=folder)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise SubmissionError(
                f"{path} cannot be read ({error!r}): made by an earlier version, or damaged; remove its folder, and "
                "submit again"
            ) from error

    def _mark(self, name: str) -> None:
        """Write the mark *name*, unless the folder now belongs to another submission or was removed."""
        try:
            is_here = Submission.read(self.folder).key == self.key
        except SubmissionError:
            is_here = False
        if is_here:
            write_atomically(self.folder / name, b"")

    def _outcome_path(self, number: int) -> Path:
        return self.folder / "outcomes" / f"{number}.json"

    def _encoded(self) -> bytes:
        return json.dumps(
            {
                "benchmark": self.benchmark,
                "engine": self.engine,
                "compute": dict(self.compute),
                "submitted_at": self.submitted_at,
                "owner": self.owner,
                "pieces": [asdict(piece) for piece in self.pieces],
            }
        ).encode()


def find_open_submissions(locations: Locations, benchmark: str) -> Iterator[Submission]:
    """Yield the submissions of *benchmark* that are not marked as over, by number.

    Raises:
        SubmissionError: a submission cannot be read.
    """
    yield from map(Submission.read, find_open_folders(locations, benchmark))


def find_open_folders(locations: Locations, benchmark: str) -> Iterator[Path]:
    """Yield the folders of the submissions of *benchmark* that are not marked as over, by number."""
    folder = locations.submissions(benchmark)
    paths = (folder / str(number) for number in _numbers(folder))
    yield from (path for path in paths if not (path / _ENDED).exists())


def find_submission(locations: Locations, benchmark: str, number: int | None = None) -> Submission:
    """Return the submission of *benchmark* with *number*; None: the newest.

    Raises:
        SubmissionError: there is no such submission, or it cannot be read.
    """
    folder = locations.submissions(benchmark)
    numbers = _numbers(folder)
    if not numbers:
        raise SubmissionError(
            f"found no submission of {benchmark} in {folder}; expected one: tta-pipeline submit {benchmark}"
        )
    if number is not None and number not in numbers:
        raise SubmissionError(f"found no submission {number} of {benchmark}; expected one from 1 to {numbers[-1]}")
    return Submission.read(folder / str(number or numbers[-1]))


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the submissions in *folder*, ascending."""
    return sorted(number for number in _used_numbers(folder) if (folder / str(number) / _FILE).exists())


def _used_numbers(folder: Path) -> list[int]:
    """Return the numbers in use below *folder*, unsorted."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return [int(path.name) for path in paths if path.name.isdecimal()]
