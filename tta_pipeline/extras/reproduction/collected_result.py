"""Collects the verified records of an experiment into one published result."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tta_pipeline.benchmarks.places import Place
from tta_pipeline.domain.cells import CLEAN, WHOLE
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.extras.reproduction.result import (
    SAMPLE_LIST,
    CellOutcome,
    Cost,
    ExperimentResult,
    Preprocessing,
    PublishedMethod,
    PublishedModel,
    errors_of,
)
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.records import Record

_MACHINE = ("device", "gpu_name", "cpu_model", "num_cores", "decode_threads", "compute_threads")
_UNIFORM_FACTS = ("config", "weights_sha256", "code_sha256", "mean", "std", "subset_sha256")
"""Facts that must be the same in all cells of one result."""


@dataclass(frozen=True, kw_only=True)
class CollectedResult:
    """A result, and the records of its evaluations."""

    result: ExperimentResult
    records: Sequence[Record]
    sample_list: bytes | None
    """Content of the file that lists the samples of the subset; None: there is no such file."""
    predictions: Sequence[Path]
    """Files with the prediction of each sample, one for each cell; empty unless they are published."""

    @property
    def rows(self) -> Sequence[Evaluation]:
        """The evaluations, in the order of the streams."""
        return [_evaluation(record) for record in self.records]


def collect_result(results: ExperimentResults, *, with_predictions: bool = False) -> CollectedResult | None:
    """Return an experiment's published result, from records of its present settings; None if no stream is recorded.

    All stored predictions are read and counted again.

    Args:
        results: The experiment.
        with_predictions: Whether the prediction of each sample is published, as a paired test needs it.

    Raises:
        RecordError: a record or its predictions are damaged, cells were evaluated with different settings, the list
            of the subset's samples has changed, or predictions to be published were not kept.
    """
    recorded = results.recorded_keys()
    places = [place for key in results.keys if key in recorded for place in results.places(key)]
    if not places:
        return None
    sample_list = _sample_list(results, places[0])
    records = [results.current_record(place) for place in places]
    rows = [_evaluation(record) for record in records]
    _require_verified(results, rows)
    _require_uniform(results, rows)
    missing = tuple(key.key for key in results.keys if key not in recorded)
    return CollectedResult(
        result=_make_result(results, places, records, missing, with_predictions=with_predictions),
        records=records,
        sample_list=sample_list,
        predictions=[_kept_file(results, *each) for each in zip(places, rows, strict=True)] if with_predictions else [],
    )


def _kept_file(results: ExperimentResults, place: Place, row: Evaluation) -> Path:
    if row.samples_sha256 is None:
        raise RecordError(
            f"{results.experiment_name} at {place.cell.key} kept no predictions; expected one for each sample: "
            "evaluate it again with keep_predictions, or publish without --predictions"
        )
    return results.samples_path(results.record_name(place), row.samples_sha256)


def _evaluation(record: Record) -> Evaluation:
    assert record.evaluation is not None
    return record.evaluation


def _require_verified(results: ExperimentResults, rows: Sequence[Evaluation]) -> None:
    for row in rows:
        for problem in results.prediction_problems(row):
            raise RecordError(problem)


def _require_uniform(results: ExperimentResults, rows: Sequence[Evaluation]) -> None:
    for name in _UNIFORM_FACTS:
        found = {getattr(row, name): f"{row.corruption}|{row.severity}" for row in rows}
        if len(found) > 1:
            cells = " and ".join(list(found.values())[:2])
            raise RecordError(
                f"{results.experiment_name} has {len(found)} values of {name}, such as in {cells}; expected one in all "
                "cells of a published result: run it again, which evaluates what is out of date"
            )


def _sample_list(results: ExperimentResults, place: Place) -> bytes | None:
    """Return the content of the file that lists the samples; it must be the list of the evaluation at *place*."""
    subset = results.spec.subset
    if not (subset and subset.listed):
        return None
    path = subset.listed.expanduser()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(
            f"{path} cannot be read ({error.strerror}); expected the list of samples that {results.experiment_name} "
            "was evaluated on: put it back, or nobody can repeat it"
        ) from error
    newest = results.newest_record(place)
    parts = newest.evaluation.fingerprint_parts if newest and newest.evaluation else None
    now = {"listed_sha256": sha256(content).hexdigest()}
    if parts and json.loads(parts)["settings"].get("subset") != now:
        raise RecordError(
            f"{path} is not the list that {results.experiment_name} was evaluated on; expected the same: put it back, "
            "or run the experiment again"
        )
    return content


def _published_settings(config: str) -> dict[str, Any]:
    """Return the settings of an evaluation, with the path of the list of samples below the published folder."""
    settings: dict[str, Any] = json.loads(config)
    if settings["subset"] and (path := settings["subset"]["listed"]):
        settings["subset"]["listed"] = f"{SAMPLE_LIST}/{Path(path).name}"
    return settings


def _make_result(
    results: ExperimentResults,
    places: Sequence[Place],
    records: Sequence[Record],
    missing: tuple[str, ...],
    *,
    with_predictions: bool,
) -> ExperimentResult:
    rows = [_evaluation(record) for record in records]
    cells = tuple(_outcome(*each, with_predictions=with_predictions) for each in zip(places, records, strict=True))
    first, benchmark = rows[0], results.benchmark
    return ExperimentResult(
        benchmark=benchmark.name,
        title=benchmark.title,
        shift_set=first.shift_set,
        generated=any(row.generated for row in rows),
        experiment=results.experiment_name,
        is_complete=not missing,
        missing=missing,
        model=PublishedModel(
            name=first.model,
            architecture=first.architecture,
            weights=first.weights,
            weights_sha256=first.weights_sha256,
        ),
        method=PublishedMethod(
            name=first.method,
            code_sha256=first.code_sha256,
            hyperparameters_origin=first.hyperparameters_origin,
            tuning=json.loads(first.tuning) if first.tuning else None,
        ),
        protocol=first.protocol,
        subset=first.subset,
        subset_sha256=first.subset_sha256,
        seeds=tuple(sorted({row.seed for row in rows})),
        preprocessing=Preprocessing(
            image_size=benchmark.image_size, mean=first.mean, std=first.std
        ),
        precision=first.precision,
        compile=first.compile,
        settings=_published_settings(first.config),
        errors=errors_of(cells),
        cost=_cost(rows),
        machine=machine_of(rows) | {"host": _values([record.versions.get("host") for record in records])},
        versions=dict(records[-1].versions),
        command=evaluation_command(results),
        cells=cells,
    )  # fmt: skip


def evaluation_command(results: ExperimentResults) -> str:
    """Return the command that evaluates the experiment in a project that has the benchmark."""
    asset = f"{results.benchmark.name}/evaluation/{results.experiment_name}"
    keys = [key for key in results.keys if key != CLEAN]
    if keys == [WHOLE]:
        return f"dg launch --assets '{asset}'"
    where = f"--partition '{keys[0].key}'" if len(keys) == 1 else f"--partition-range '{keys[0].key}...{keys[-1].key}'"
    return f"dg launch --assets '{asset}' {where}"


def _outcome(place: Place, record: Record, *, with_predictions: bool) -> CellOutcome:
    row = _evaluation(record)
    names = (
        "corruption", "severity", "num_samples", "num_correct", "error", "top5_error", "nll", "ece", "manifest_sha256",
        "order_hash", "predictions_sha256",
    )  # fmt: skip
    return CellOutcome(
        partition=place.plan.key.key,
        seed=place.plan.seed,
        position=place.segment.position,
        in_mean=row.in_mean is not False,
        samples_sha256=row.samples_sha256 if with_predictions else None,
        record_sha256=record.sha256,
        fingerprint_parts=json.loads(row.fingerprint_parts),
        **{name: getattr(row, name) for name in names},
    )


def _cost(rows: Sequence[Evaluation]) -> Cost:
    num_samples, wall_s = sum(row.num_samples for row in rows), sum(row.wall_s for row in rows)
    cuda = [row.peak_cuda_gib for row in rows if row.peak_cuda_gib is not None]
    return Cost(
        forwards_per_sample=sum(row.num_forwards for row in rows) / num_samples,
        backwards_per_sample=sum(row.num_backwards for row in rows) / num_samples,
        num_updates=sum(row.num_updates for row in rows),
        wall_s=wall_s,
        images_per_s=num_samples / wall_s,
        peak_cuda_gib=max(cuda, default=None),
        peak_rss_gib=max(row.peak_rss_gib for row in rows),
    )


def machine_of(rows: Sequence[Evaluation]) -> dict[str, str]:
    """Return descriptions of the machines that computed *rows*, by fact."""
    return {name: _values([getattr(row, name) for row in rows]) for name in _MACHINE}


def _values(found: Sequence[object]) -> str:
    """Return the distinct values in *found*, separated by commas."""
    return ", ".join(dict.fromkeys(str(value) for value in found if value is not None))
