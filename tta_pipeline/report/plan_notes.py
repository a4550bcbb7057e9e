"""Notes about the plans behind a table: edited files, unfinished experiments, replaced shards."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import duckdb

from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list

_PLANS = """
WITH counted AS (
    SELECT
        e.benchmark, e.experiment, count(*) AS num_counted,
        count(*) FILTER (s.manifest_sha256 <> e.manifest_sha256) AS num_on_other_shards
    FROM evaluations AS e LEFT JOIN shard_sets AS s USING (benchmark, dataset, corruption, severity)
    WHERE counts AND source IS NULL GROUP BY ALL
)
SELECT
    benchmark, experiment, any_value(file_sha256), any_value(own_files), sum(num_asked)::BIGINT,
    coalesce(any_value(num_counted), 0), coalesce(any_value(num_on_other_shards), 0)
FROM plans LEFT JOIN counted USING (benchmark, experiment)
WHERE source IS NULL AND benchmark = coalesce(?, benchmark)
GROUP BY benchmark, experiment
ORDER BY ALL
"""
_FEW = 3
"""Largest number of experiments that a command names."""
_NO_FILE = ""
"""Hash for a missing benchmark file, and in plans that were made without one."""


def plan_notes(
    connection: duckdb.DuckDBPyConnection, locations: Locations, benchmark: str | None = None
) -> Sequence[str]:
    """Return a sentence on each benchmark with edited files, unfinished experiments, or shards that were replaced.

    Args:
        connection: The database, up to date.
        locations: Folders of the benchmark files.
        benchmark: Only this benchmark; None: all.
    """
    edited: dict[str, dict[str, None]] = defaultdict(dict)
    out_of_date: dict[str, list[str]] = defaultdict(list)
    unfinished: dict[str, dict[str, str]] = defaultdict(dict)
    replaced: dict[str, dict[str, str]] = defaultdict(dict)
    for name, experiment, file_sha256, own_files, num_asked, num_counted, num_on_other_shards in connection.execute(
        _PLANS, [benchmark]
    ).fetchall():
        if files := _edited_files(locations, name, file_sha256, json.loads(own_files)):
            edited[name] |= dict.fromkeys(files)
            out_of_date[name].append(experiment)
        if num_counted < num_asked:
            unfinished[name][experiment] = f"{experiment} ({num_counted} of {num_asked} cells)"
        if num_on_other_shards:
            replaced[name][experiment] = f"{experiment} ({num_on_other_shards} of {num_counted} cells)"
    return [
        *(
            f"{abbreviate_list(list(files))} of {name} {'was' if len(files) == 1 else 'were'} edited since the last "
            f"run of {abbreviate_list(out_of_date[name])}, so these rows may show earlier settings; to check: "
            f"tta-pipeline run {name}{_only(out_of_date[name])} --dry-run"
            for name, files in edited.items()
        ),
        *(
            f"{_has(cells)} results on shards that were replaced: {abbreviate_list([*cells.values()])}; to evaluate "
            f"them again: tta-pipeline run {name}{_only([*cells])}"
            for name, cells in replaced.items()
        ),
        *(
            f"{_has(cells)} not all results by the current code, data and settings: "
            f"{abbreviate_list([*cells.values()])}; to evaluate the rest: tta-pipeline run {name}{_only([*cells])}"
            for name, cells in unfinished.items()
        ),
    ]


def _only(experiments: Sequence[str]) -> str:
    """Return the options that leave out all other experiments, unless they are long."""
    return "".join(f" --experiment {each}" for each in experiments) if len(experiments) <= _FEW else ""


def _has(experiments: Collection[str]) -> str:
    return f"{count_of(len(experiments), 'experiment')} {'has' if len(experiments) == 1 else 'have'}"


def _edited_files(
    locations: Locations, benchmark: str, file_sha256: str, own_files: Mapping[str, str]
) -> Sequence[str]:
    """Return the names of the benchmark file and of user files that have changed since the last run."""
    file = locations.benchmark_file(benchmark)
    expected = {Path(os.path.normpath(locations.root / path)): sha256 for path, sha256 in own_files.items()}
    if file and file_sha256 != _NO_FILE:
        expected = {file: file_sha256, **expected}
    return [path.name for path, sha256 in expected.items() if _sha256_of(path) not in (_NO_FILE, sha256)]


def _sha256_of(path: Path) -> str:
    """Return the sha256 of the file at *path*; `_NO_FILE` if it is missing, as on a machine with results only."""
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return _NO_FILE
