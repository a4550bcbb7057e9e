"""The 95 % intervals of a leaderboard, computed once for a set of results and kept in a file.

They are computed on first use: by the report at the end of a run, or by the leaderboard. The file has a hash of its
inputs. If these have changed, or the file is damaged or missing, the intervals are computed again.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import duckdb

from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.tables import Table
from tta_pipeline.util.files import write_atomically

BASIS = (
    "experiment", "stream", "seed", "position", "corruption", "severity", "subset", "counts_in_mean", "samples_sha256",
    "manifest_sha256",
)  # fmt: skip
"""Columns of an evaluation that determine its intervals."""
_METHOD = 2
"""Version of the statistics; increased if the same predictions lead to other intervals."""
_TOLERANCE = 1e-9
"""Largest difference between two sums of the same errors in different orders."""
_COUNTED = "FROM evaluations WHERE counts AND benchmark = ? AND dataset = ?"
# A fast hash: it only detects accidental damage, and a million rows take hundredths of a second.
_HASH = f"SELECT count(*), bit_xor(hash({', '.join(BASIS)})) {_COUNTED}"
_ROWS = f"SELECT {', '.join(BASIS)} {_COUNTED}"
Pair = tuple[str, str]
"""The names of two experiments."""


class Interval(NamedTuple):
    """The mean error of an experiment with the ends of its interval."""

    mean: float
    low: float
    high: float
    subset: str
    """Name of the subset on which it was evaluated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Intervals:
    """Intervals and p-values of a benchmark's leaderboard, from its kept predictions."""

    means: Mapping[str, Interval] = field(default_factory=dict)
    """By experiment; experiments without kept predictions are missing."""
    p_values: Mapping[Pair, float] | None = None
    """The p-value of every two experiments whose means can be compared; None: they were not compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """The file that keeps the intervals of a benchmark, for one set of results."""

    path: Path
    sha256: str
    """Hash of what the intervals are computed from: the results that count, and the benchmark file."""

    @classmethod
    def of(cls, connection: duckdb.DuckDBPyConnection, locations: Locations, benchmark: str, dataset: str) -> Self:
        """Return the keep for the results of *dataset* in *benchmark* that count now."""
        (found,) = connection.execute(_HASH, [benchmark, dataset]).fetchall()  # whole: a query may follow
        basis = repr((_METHOD, found, _sha256_of_file(locations, benchmark)))
        return cls(path=locations.intervals(benchmark, dataset), sha256=hashlib.sha256(basis.encode()).hexdigest())

    def read(self) -> Intervals | None:
        """Return the intervals; None if the file is missing, damaged, or for other results."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(self.path.read_bytes())
            if self._seal(content["intervals"]) == content["sha256"]:
                return _from_json(content["intervals"])
        return None

    def write(self, intervals: Intervals) -> None:
        """Keep *intervals*; if they cannot be written, they are computed again when they are needed."""
        content = _to_json(intervals)
        with suppress(OSError):
            write_atomically(
                self.path, json.dumps({"sha256": self._seal(content), "intervals": content}, indent=1).encode()
            )

    def _seal(self, content: object) -> str:
        """Return a hash of *content* and its inputs."""
        return hashlib.sha256(f"{self.sha256} {json.dumps(content, sort_keys=True)}".encode()).hexdigest()


def counted_rows(connection: duckdb.DuckDBPyConnection, benchmark: str, dataset: str) -> frozenset[tuple[object, ...]]:
    """Return the columns `BASIS` of the results that count."""
    return frozenset(connection.execute(_ROWS, [benchmark, dataset]).fetchall())


def add_intervals(table: Table, found: Sequence[Intervals]) -> Table:
    """Return the leaderboard *table* with the interval of each mean error.

    Args:
        table: The leaderboard, of one benchmark or of several.
        found: For each row, the intervals of its benchmark.
    """
    names, subsets, errors = (table.column(name) for name in ("experiment", "subset", "mean_error"))
    after = table.columns.index("mean_error") + 1
    ends = (
        _ends(intervals.means.get(name), subset, error)
        for intervals, name, subset, error in zip(found, names, subsets, errors, strict=True)
    )
    return Table(
        columns=(*table.columns[:after], "error_low", "error_high", *table.columns[after:]),
        rows=tuple((*row[:after], *each, *row[after:]) for row, each in zip(table.rows, ends, strict=True)),
    )


def _ends(found: Interval | None, subset: str, error: float | None) -> tuple[float | None, float | None]:
    """Return the ends of a row's interval.

    A mean error may cover cells without stored predictions. The stored interval does not apply to such a row.
    """
    if found is None or error is None or found.subset != subset or abs(found.mean - error) >= _TOLERANCE:
        return None, None
    return found.low, found.high


def _sha256_of_file(locations: Locations, benchmark: str) -> str:
    """Return the hash of the benchmark file, which determines photographs' names; empty if there is no file."""
    path = locations.benchmark_file(benchmark)
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest() if path else ""
    return ""


def _to_json(intervals: Intervals) -> dict[str, Any]:
    """Return *intervals* in JSON types."""
    p_values = intervals.p_values
    return {
        "means": {name: list(each) for name, each in intervals.means.items()},
        "p_values": None if p_values is None else [[*names, each] for names, each in p_values.items()],
    }


def _from_json(content: Any) -> Intervals:
    """Return the intervals in *content*, made by `_to_json`."""
    p_values = content["p_values"]
    return Intervals(
        means={name: Interval(*each) for name, each in content["means"].items()},
        p_values=None if p_values is None else {(a, b): each for a, b, each in p_values},
    )
