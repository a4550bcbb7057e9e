"""Conversion of records to database rows, by table and in columns."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

import pyarrow as pa

from tta_pipeline.benchmarks.file_fingerprint import decided_sha256_of
from tta_pipeline.results.database.record_listing import ListedRecord, Stamp
from tta_pipeline.results.database.schema import arrow_schema
from tta_pipeline.results.evaluation_record import LABEL_FREE, columns
from tta_pipeline.results.records import Record
from tta_pipeline.results.training_record import epoch_columns, run_columns
from tta_pipeline.results.tuning_record import choice_columns, trial_columns, tuning_columns

Tables = Sequence[tuple[str, pa.Table]]
Read = tuple[ListedRecord, Record]
_FACTS = attrgetter(*(field.path for field in columns()))
_RUN = attrgetter(*(field.path for field in run_columns()))
_EPOCH = attrgetter(*(field.path for field in epoch_columns()))
_TUNING = attrgetter(*(field.path for field in tuning_columns()))
_TRIAL = attrgetter(*(field.path for field in trial_columns()))
_CHOICE = attrgetter(*(field.path for field in choice_columns()))
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
_KEY = pa.schema([("folder", pa.string()), ("sequence", pa.int64())])
_STAMPS = pa.schema([(name, pa.int64()) for name in Stamp._fields])


def rows_of_records(read: Sequence[Read]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of *read* by table."""
    yield "ingested", _to_table(
        (*(listed[:2] for listed, _ in read),), _KEY, [(record.sha256, *listed.stamp) for listed, record in read],
        pa.schema([("sha256", pa.string()), *_STAMPS]),
    )  # fmt: skip
    evaluations = [(listed, record) for listed, record in read if record.evaluation is not None]
    if evaluations:
        yield from _evaluations(evaluations)
    trainings = [(listed, record) for listed, record in read if record.training is not None]
    if trainings:
        yield from _trainings(trainings)
    tunings = [(listed, record) for listed, record in read if record.tuning is not None]
    if tunings:
        yield from _tunings(tunings)
    others: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for _, record in read:
        if record.kind in ("loader_benchmarks", "shard_sets"):
            for table, row in _other_rows(record):
                others.setdefault((table, *sorted(row)), []).append(row)
    for (table, *_), rows in others.items():
        yield table, pa.Table.from_pylist(rows)


def _evaluations(read: Sequence[Read]) -> Iterator[tuple[str, pa.Table]]:
    found = [(listed, record, row) for listed, record in read if (row := record.evaluation)]
    rows = [
        (
            listed.folder, listed.sequence, record.run_id, decided_sha256_of(row.fingerprint_parts), *_FACTS(row),
            row.conditions, _parse_utc(record.started_at), _as_json(record.versions),
        )
        for listed, record, row in found
    ]  # fmt: skip
    yield "evaluations", _to_table(rows, arrow_schema("evaluations"))
    keys = [listed[:2] for listed, *_ in found]
    counts = [(row.class_counts.num_samples, row.class_counts.num_correct) for *_, row in found]
    yield "class_results", _to_table(keys, _KEY, counts, _COUNTS)
    timed = [(key, row.batches) for key, (*_, row) in zip(keys, found, strict=True) if row.batches.num_samples]
    if timed:
        yield "batch_results", _to_table([key for key, _ in timed], _KEY, [_BATCHES(b) for _, b in timed], _TIMES)


def _trainings(read: Sequence[Read]) -> Iterator[tuple[str, pa.Table]]:
    found = [(listed, record, run) for listed, record in read if (run := record.training)]
    yield (
        "training_runs",
        _to_table(
            [
                (*listed[:2], record.run_id, *_RUN(run), _parse_utc(record.started_at), _as_json(record.versions))
                for listed, record, run in found
            ],
            arrow_schema("training_runs"),
        ),
    )
    yield (
        "training_epochs",
        _to_table(
            [
                (*listed[:2], run.benchmark, run.shift_set, run.model, *_EPOCH(epoch))
                for listed, _, run in found
                for epoch in run.epochs
            ],
            arrow_schema("training_epochs"),
        ),
    )


def _tunings(read: Sequence[Read]) -> Iterator[tuple[str, pa.Table]]:
    found = [(listed, record, run) for listed, record in read if (run := record.tuning)]
    yield (
        "tunings",
        _to_table(
            [
                (*listed[:2], record.run_id, *_TUNING(run), _parse_utc(record.started_at), _as_json(record.versions))
                for listed, record, run in found
            ],
            arrow_schema("tunings"),
        ),
    )
    yield (
        "tuning_criteria",
        _to_table(
            [
                (*listed[:2], run.benchmark, run.shift_set, run.experiment, *_CHOICE(choice))
                for listed, _, run in found
                for choice in run.choices
            ],
            arrow_schema("tuning_criteria"),
        ),
    )
    yield (
        "tuning_trials",
        _to_table(
            [
                (
                    *listed[:2], run.benchmark, run.shift_set, run.experiment, trial.hyperparameters == run.chosen,
                    *_TRIAL(trial),
                )
                for listed, _, run in found
                for trial in run.trials
            ],
            arrow_schema("tuning_trials"),
        ),
    )  # fmt: skip


def _to_table(
    rows: Sequence[Sequence[Any]], schema: pa.Schema, more: Sequence[Sequence[Any]] = (), its: pa.Schema | None = None
) -> pa.Table:
    """Return *rows* of *schema* as a table, with the columns of *more* beside them."""
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)]
    if its is None:
        return pa.Table.from_arrays(arrays, schema=schema)
    return pa.Table.from_arrays([*arrays, *_to_table(more, its).columns], schema=pa.schema([*schema, *its]))


def _other_rows(record: Record) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a record of shards or loaders, each with its table."""
    common = {
        "run_id": record.run_id,
        "sequence": record.sequence,
        "started_at": _parse_utc(record.started_at),
        "versions": _as_json(record.versions),
    }
    facts = dict(record.facts)
    if record.kind == "loader_benchmarks":
        for loader in facts.pop("loaders"):
            yield "loader_benchmarks", {**common, **facts, **loader}
        return
    shards = facts.pop("shards")
    yield "shard_sets", {**common, **facts}
    identity = {name: facts[name] for name in ("benchmark", "shift_set", "corruption", "severity")}
    for shard in shards:
        yield "shards", {**identity, "sequence": record.sequence, **shard}


def set_aside_rows(refused: Sequence[tuple[ListedRecord, str, str | None]]) -> pa.Table:
    """Return the rows of records that are set aside, each with the reason and the hash of its file."""
    schema = pa.schema([("reason", pa.string()), ("sha256", pa.string()), *_STAMPS])
    rows = [(reason, sha256, *listed.stamp) for listed, reason, sha256 in refused]
    return _to_table([listed[:2] for listed, *_ in refused], _KEY, rows, schema)


def _parse_utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _as_json(versions: Mapping[str, str]) -> str:
    return _json_of(tuple(versions.items()))


@lru_cache(maxsize=64)
def _json_of(versions: tuple[tuple[str, str], ...]) -> str:
    return json.dumps(dict(versions))
