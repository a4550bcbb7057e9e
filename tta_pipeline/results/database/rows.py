"""Conversion of results to database rows, by table and in columns."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

import pyarrow as pa

from tta_pipeline.results.database.counting import source_of
from tta_pipeline.results.database.listing import ListedFile
from tta_pipeline.results.database.schema import arrow_schema
from tta_pipeline.results.evaluation_parts import LABEL_FREE
from tta_pipeline.results.record_fields import values_of
from tta_pipeline.results.result_files import StoredResult

Tables = Sequence[tuple[str, pa.Table]]
Read = tuple[ListedFile, StoredResult]
_COUNTS = pa.schema([(name, pa.list_(pa.int32())) for name in ("num_samples", "num_correct")])
_TIMES = pa.schema(
    [
        ("num_samples", pa.list_(pa.int32())),
        *((name, pa.list_(pa.float64())) for name in ("data_wait_s", "host_to_device_s", "compute_s")),
        *((name, pa.list_(pa.int32())) for name in ("num_correct", "num_unadapted", "num_resets", "num_unknown")),
        *((name, pa.list_(pa.float64())) for name in LABEL_FREE),
    ]
)
_BATCHES = attrgetter(*_TIMES.names)
_KEY = pa.schema([("file", pa.string()), ("corruption", pa.string()), ("severity", pa.int32())])
_RESULTS = pa.schema(
    [
        ("file", pa.string()), ("source", pa.string()), ("kind", pa.string()), ("sha256", pa.string()),
        ("size_bytes", pa.int64()), ("fingerprint", pa.string()), ("previous", pa.string()),
        ("finished_at", pa.string()), ("device", pa.string()), ("versions", pa.string()),
        ("void", pa.string()),
    ]
)  # fmt: skip


def rows_of_results(read: Sequence[Read]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of *read* by table."""
    yield "results", _to_table([_result_row(*each) for each in read], _RESULTS)
    if evaluations := [each for each in read if each[1].result.evaluations]:
        yield from _evaluations(evaluations)
    if trainings := [each for each in read if each[1].result.training]:
        yield from _trainings(trainings)
    if tunings := [each for each in read if each[1].result.tuning]:
        yield from _tunings(tunings)
    if loaders := [row for listed, stored in read for row in _loader_rows(listed, stored)]:
        yield "loader_benchmarks", pa.Table.from_pylist(loaders)


def _result_row(listed: ListedFile, stored: StoredResult) -> tuple[Any, ...]:
    result = stored.result
    device = result.evaluations[0].machine.device if result.evaluations else None
    return (
        listed.file, source_of(listed.file), result.kind, stored.sha256, listed.size_bytes, result.fingerprint,
        result.previous, result.finished_at, device, _as_json(result.versions), listed.void,
    )  # fmt: skip


def _evaluations(read: Sequence[Read]) -> Iterator[tuple[str, pa.Table]]:
    found = [(listed, stored.result, row) for listed, stored in read for row in stored.result.evaluations]
    rows = [
        (
            listed.file, source_of(listed.file), result.run_id, row.labels.experiment, *values_of(row),
            row.machine.conditions, _parse_utc(result.started_at),
        )
        for listed, result, row in found
    ]  # fmt: skip
    yield "evaluations", _to_table(rows, arrow_schema("evaluations"))
    keys = [(listed.file, row.cell.corruption, row.cell.severity) for listed, _, row in found]
    counts = [(row.scores.class_counts.num_samples, row.scores.class_counts.num_correct) for *_, row in found]
    yield "class_results", _to_table(keys, _KEY, counts, _COUNTS)
    timed = [
        (key, row.time.batches) for key, (*_, row) in zip(keys, found, strict=True) if row.time.batches.num_samples
    ]
    if timed:
        yield "batch_results", _to_table([key for key, _ in timed], _KEY, [_BATCHES(b) for _, b in timed], _TIMES)


def _trainings(read: Sequence[Read]) -> Iterator[tuple[str, pa.Table]]:
    found = [(listed.file, stored.result, run) for listed, stored in read if (run := stored.result.training)]
    rows = [(file, result.run_id, *values_of(run), _parse_utc(result.started_at)) for file, result, run in found]
    yield "training_runs", _to_table(rows, arrow_schema("training_runs"))
    rows = [(file, *values_of(epoch)) for file, _, run in found for epoch in run.epochs]
    yield "training_epochs", _to_table(rows, arrow_schema("training_epochs"))


def _tunings(read: Sequence[Read]) -> Iterator[tuple[str, pa.Table]]:
    found = [(listed.file, stored.result, run) for listed, stored in read if (run := stored.result.tuning)]
    rows = [(file, result.run_id, *values_of(run), _parse_utc(result.started_at)) for file, result, run in found]
    yield "tunings", _to_table(rows, arrow_schema("tunings"))
    rows = [(file, *values_of(choice)) for file, _, run in found for choice in run.choices]
    yield "tuning_criteria", _to_table(rows, arrow_schema("tuning_criteria"))
    rows = [
        (file, trial.hyperparameters == run.chosen, *values_of(trial)) for file, _, run in found for trial in run.trials
    ]
    yield "tuning_trials", _to_table(rows, arrow_schema("tuning_trials"))


def _loader_rows(listed: ListedFile, stored: StoredResult) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a measurement of loaders, if it is one."""
    result = stored.result
    facts: dict[str, Any] = dict(result.loaders or {})
    for loader in facts.pop("loaders", ()):
        yield {
            "file": listed.file,
            "run_id": result.run_id,
            "started_at": _parse_utc(result.started_at),
            **facts,
            **loader,
        }


def _to_table(
    rows: Sequence[Sequence[Any]], schema: pa.Schema, more: Sequence[Sequence[Any]] = (), its: pa.Schema | None = None
) -> pa.Table:
    """Return *rows* of *schema* as a table, with the columns of *more* after them."""
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)]
    if its is None:
        return pa.Table.from_arrays(arrays, schema=schema)
    return pa.Table.from_arrays([*arrays, *_to_table(more, its).columns], schema=pa.schema([*schema, *its]))


def set_aside_rows(refused: Sequence[tuple[ListedFile, str]]) -> pa.Table:
    """Return the rows of files that are set aside, each with the reason."""
    schema = pa.schema([("file", pa.string()), ("size_bytes", pa.int64()), ("reason", pa.string())])
    return _to_table([(listed.file, listed.size_bytes, reason) for listed, reason in refused], schema)


def _parse_utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _as_json(versions: Mapping[str, str]) -> str:
    return _json_of(tuple(versions.items()))


@lru_cache(maxsize=64)
def _json_of(versions: tuple[tuple[str, str], ...]) -> str:
    return json.dumps(dict(versions))
