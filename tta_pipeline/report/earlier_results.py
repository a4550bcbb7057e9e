"""Experiments with results by earlier code, settings or shards, for a line beside a table of results."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

import duckdb

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.stream_plans import partition_keys
from tta_pipeline.evaluation.fingerprint import method_code_sha256
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list

# The newest results with the settings that the benchmark file has now.
_COUNTED = """
WITH made AS (
    SELECT
        benchmark, shift_set, corruption, severity, max(started_at) AS made_at,
        arg_max(manifest_sha256, started_at) AS present_sha256
    FROM shard_sets
    GROUP BY ALL
)
SELECT
    benchmark, shift_set, experiment, code_sha256,
    coalesce(present_sha256 <> manifest_sha256 AND made_at > started_at, FALSE) AS has_other_shards,
    count(*)
FROM evaluations
LEFT JOIN made USING (benchmark, shift_set, corruption, severity)
WHERE is_latest
GROUP BY ALL
"""
# Cells whose results all have other settings.
_UNCOUNTED = """
SELECT benchmark, shift_set, experiment, stream, seed, count(DISTINCT (position, corruption, severity))
FROM evaluations
ANTI JOIN (FROM evaluations WHERE is_latest)
    USING (benchmark, shift_set, experiment, stream, seed, position, corruption, severity)
GROUP BY ALL
"""


def earlier_notes(connection: duckdb.DuckDBPyConnection, benchmarks: Iterable[Benchmark]) -> Sequence[str]:
    """Return a sentence on each benchmark file with results by earlier code of a method, settings or shards.

    Weights are not compared, which takes reading them: `tta-pipeline why` does.

    Args:
        connection: The database, up to date.
        benchmarks: Benchmarks that the table is about.
    """
    counted = _numbers(connection, _COUNTED)
    uncounted = _numbers(connection, _UNCOUNTED)
    found: dict[str, list[str]] = {}
    for benchmark in benchmarks:
        for name, spec in benchmark.experiments.items():
            of_experiment = (benchmark.file, benchmark.shift_set.name, name)
            streams = {(key.key, seed) for key in partition_keys(benchmark, name) for seed in spec.all_seeds}
            num_left = sum(number for stream, number in uncounted[of_experiment].items() if stream in streams)
            num_earlier = num_left + _num_by_other(spec, counted[of_experiment])
            if num_earlier:
                num_cells = num_left + counted[of_experiment].total()
                found.setdefault(benchmark.file, []).append(f"{name} ({num_earlier} of {num_cells} cells)")
    return [_say(file, experiments) for file, experiments in found.items()]


def _numbers(
    connection: duckdb.DuckDBPyConnection, sql: str
) -> dict[tuple[str, str, str], Counter[tuple[object, ...]]]:
    """Return the number of cells of each experiment, by what else tells the rows of *sql* apart."""
    found: dict[tuple[str, str, str], Counter[tuple[object, ...]]] = defaultdict(Counter)
    for file, shift_set, experiment, *others, number in connection.execute(sql).fetchall():
        found[file, shift_set, experiment][tuple(others)] += number
    return found


def _num_by_other(spec: Experiment, counted: Counter[tuple[object, ...]]) -> int:
    """Return the number of cells by other code than the present one of *spec*, or on shards that were replaced."""
    if not counted:
        return 0  # hashing the code of each experiment would take longer
    with suppress(ValueError):  # code that cannot be read: a run says so
        return counted.total() - counted[method_code_sha256(spec), False]
    return sum(number for (_, has_other_shards), number in counted.items() if has_other_shards)


def _say(file: str, experiments: Sequence[str]) -> str:
    has = f"{count_of(len(experiments), 'experiment')} {'has' if len(experiments) == 1 else 'have'}"
    return (
        f"{has} results by earlier code, settings or shards: {abbreviate_list(experiments)}; to evaluate them again: "
        f"tta-pipeline run {file}"
    )
