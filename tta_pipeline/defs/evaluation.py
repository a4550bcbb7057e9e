"""`<benchmark>/evaluation/<experiment>`: one model with one method on one cell, and its checks."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.file_fingerprint import decided_parts
from tta_pipeline.defs.automation import out_of_date_condition
from tta_pipeline.defs.reporting import CheckReport, CheckRun, PartitionReport, PartitionRun, define_checks, picture
from tta_pipeline.defs.resources import Compute, MetricsStore, ShardStore
from tta_pipeline.defs.scope import Scope, Scopes, SetScope, asset_key
from tta_pipeline.domain.cells import CLEAN, Cell, PartitionKey
from tta_pipeline.results.evaluation_record import SHOWN, SHOWN_OF_SEGMENT, Evaluation, mean_error

if TYPE_CHECKING:
    from tta_pipeline.evaluation.experiment_results import ExperimentResults

EVERY_SAMPLE = "every_sample_evaluated_once"
_EVERY_SAMPLE_MEANS = "The result that counts belongs to the current manifest and has the same number of samples."
_PUBLISH_EVERY_S = 5.0
_PUBLISH_SHARE = 0.05
"""Largest share of a run's time for publishing before its end: each publication copies the database."""
_NOT_OF_EXPERIMENT = PartitionReport(
    summary="not among the severities of the experiment",
    metadata={"is_of_the_experiment": False},
    data_version="not of the experiment",
)


class EvaluationConfig(dg.Config):
    """Options of one run."""

    force: bool = Field(default=False, description="Evaluate finished cells again, for another timing")
    keep_predictions: bool = Field(
        default=True,
        description="Write the prediction for each sample next to the result as Parquet, less than 8 bytes per sample",
    )


def evaluation(scopes: Scopes) -> Iterator[dg.AssetsDefinition]:
    """Yield the assets of each experiment, and the check of the results that count against the manifest."""
    code_version = cache(
        partial(_code_version, scopes.cells.benchmark)
    )  # of an experiment's streams, and of clean images
    for scope, experiment_name in scopes.experiments:
        yield _asset(scope, experiment_name, code_version(experiment_name))
        yield _checks(scope, experiment_name)


def _asset(scope: Scope[PartitionKey], experiment_name: str, code_version: str | None) -> dg.AssetsDefinition:
    spec = scope.benchmark.experiments[experiment_name]

    @scope.asset(
        "evaluation",
        experiment_name,
        group_name=f"{scope.benchmark.group_of(experiment_name)}{'_clean' if isinstance(scope, SetScope) else ''}",
        deps=_dependencies(scope, experiment_name),
        kinds={"pytorch"},
        code_version=code_version,
        automation_condition=out_of_date_condition(),
        description=f"{spec.method_name} on {spec.model}, protocol {spec.protocol.name}. "
        "A finished cell is not evaluated again while data, weights and settings stay the same.",
    )
    def asset(
        context: dg.AssetExecutionContext,
        config: EvaluationConfig,
        store: ShardStore,
        metrics: MetricsStore,
        compute: Compute,
    ) -> Iterator[dg.MaterializeResult[Any]]:
        from tta_pipeline.evaluation.experiment_results import ExperimentResults
        from tta_pipeline.evaluation.run_experiment import run_experiment

        results = ExperimentResults(
            benchmark=scope.benchmark, experiment_name=experiment_name, locations=store.locations
        )
        try:
            with PartitionRun(context, scope) as run:
                for key in run.keys:
                    if key not in results.keys:
                        with run.reporting(key) as report:
                            report(_NOT_OF_EXPERIMENT)
                run_experiment(
                    results,
                    [key for key in run.keys if key in results.keys],
                    machine=compute.machine(),
                    run_id=context.run.run_id,
                    tell=context.log.info,
                    keeps_predictions=config.keep_predictions,
                    force=config.force,
                    listener=_Reporter(context, run, results, metrics),
                )
                yield run.result()
        finally:
            metrics.publish(context.log)

    return asset


def _checks(scope: Scope[PartitionKey], experiment_name: str) -> dg.AssetChecksDefinition:
    key = scope.key("evaluation", experiment_name)

    @define_checks(scope, key, {EVERY_SAMPLE: _EVERY_SAMPLE_MEANS})
    def checks(context: dg.AssetCheckExecutionContext, store: ShardStore) -> Iterator[Any]:
        from tta_pipeline.evaluation.experiment_results import ExperimentResults

        results = ExperimentResults(
            benchmark=scope.benchmark, experiment_name=experiment_name, locations=store.locations
        )
        run = CheckRun(context, scope, key)
        for own in run.keys:
            if own in results.keys:
                with run.hinting(own):
                    report = _sample_report(results, own)
                yield from run.results(own, [report])
        yield from run.outputs()

    return checks


_GROUPS = {
    "result": ("error", "ece", "nll", "num_samples", "diverged"),
    "timing": ("images_per_s", "wall_s", "data_wait_s", "compute_s"),
    "cost": ("num_forwards", "num_backwards", "num_updates", "peak_rss_gib", "peak_cuda_gib"),
}
"""Facts of an evaluation, as the web UI groups them."""
_FIRST = ("error", "ece", "images_per_s")
_HASHES = ("order_hash", "predictions_sha256")
_SHOWN = (*_FIRST, *(name for name in SHOWN if name not in (*_FIRST, *_HASHES)))
"""Numbers of a cell in the order of the web UI; hashes come last."""
_LONG_COLUMNS = ("bin_counts", "bin_confidence_sums", "bin_correct_counts")
"""Lists in a result that are shown as a picture."""


class _Reporter:
    """Reports each cell to Dagster, and publishes to the database every few seconds; see `Listener`."""

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        run: PartitionRun[PartitionKey],
        results: "ExperimentResults",
        metrics: MetricsStore,
    ) -> None:
        self._context = context
        self._run = run
        self._results = results
        self._metrics = metrics
        self._next_at = time.monotonic() + _PUBLISH_EVERY_S

    def planning(self, key: PartitionKey) -> AbstractContextManager[object]:
        """Return the context that finds the unfinished work at *key*."""
        return self._run.hinting(key)

    @contextmanager
    def evaluating(self, key: PartitionKey) -> Iterator[Callable[[Sequence[Evaluation], bool], None]]:
        """Yield a function that reports the evaluations at *key*, and whether any was evaluated in this run."""
        with self._run.reporting(key) as report:
            yield lambda rows, was_evaluated: report(self._report(rows, was_evaluated=was_evaluated))

    def _report(self, rows: Sequence[Evaluation], *, was_evaluated: bool) -> PartitionReport:
        self._publish_if_due()
        did = f"{sum(row.scores.num_samples for row in rows) / sum(row.time.wall_s for row in rows):,.0f} images/s"
        return PartitionReport(
            summary=f"error {mean_error(rows):.1%}, {did if was_evaluated else 'finished before'}",
            metadata={
                **(self._cell_metadata(rows[0]) if len(rows) == 1 else _stream_metadata(rows)),
                "was_evaluated": was_evaluated,
            },
            data_version=data_version_of(rows),
        )

    def _cell_metadata(self, row: Evaluation) -> dict[str, Any]:
        from tta_pipeline.report.pictures import encode_png, reliability_diagram, sample_row, timeline

        results = self._results
        cell = Cell(corruption=row.cell.corruption, severity=row.cell.severity)
        image_size = results.benchmark.image_size
        samples = sample_row(results.folder(cell), row, image_size=image_size)
        columns = row.by_column()
        shown = {name: _rounded(columns[name]) for name in _SHOWN}
        page = results.locations.report(results.benchmark.name) / "cells" / f"{cell.corruption}-{cell.severity}.html"
        return {
            "summary": dg.MetadataValue.md(_summary(row)),
            "page": dg.MetadataValue.path(f"{page}#experiment-{results.experiment_name}"),
            "samples": picture("first samples with their predictions", encode_png(samples)),
            "calibration": picture("accuracy at each confidence", encode_png(reliability_diagram(row))),
            "timeline": picture("where each batch spends its time", encode_png(timeline(row))),
            **{name: value for name, value in shown.items() if value is not None},
            "data_wait_share": _rounded(row.time.data_wait_s / row.time.wall_s),
            "record": dg.MetadataValue.json(
                {name: value for name, value in columns.items() if name not in _LONG_COLUMNS}
            ),
            **{name: columns[name] for name in _HASHES},
        }

    def _publish_if_due(self) -> None:
        started = time.monotonic()
        if started < self._next_at:
            return
        self._metrics.publish(self._context.log, is_last=False)
        ended = time.monotonic()
        self._next_at = ended + max(_PUBLISH_EVERY_S, (ended - started) / _PUBLISH_SHARE)


def _rounded(value: object) -> object:
    """Round a float *value* to six significant digits; the result keeps them all."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _summary(row: Evaluation) -> str:
    """Return the most important facts of *row* as a Markdown table of three lines."""
    from tta_pipeline.report.tables import column_title, format_value

    columns = row.by_column()
    lines = [
        f"| {group} | {', '.join(f'{column_title(name)} {format_value(name, columns[name])}' for name in names)} |"
        for group, names in _GROUPS.items()
    ]
    return "\n".join(["| | |", "|---|---|", *lines])


def _stream_metadata(rows: Sequence[Evaluation]) -> dict[str, Any]:
    """Return the metadata of several rows: sums, means, and a table of the rows."""
    from tta_pipeline.report.tables import Table, as_markdown, drop_obvious_columns

    wall_s = sum(row.time.wall_s for row in rows)
    table = Table(columns=SHOWN_OF_SEGMENT, rows=tuple(itemgetter(*SHOWN_OF_SEGMENT)(row.by_column()) for row in rows))
    return {
        "error": mean_error(rows),
        "images_per_s": sum(row.scores.num_samples for row in rows) / wall_s,
        "num_samples": sum(row.scores.num_samples for row in rows),
        "num_segments": len(rows),
        "wall_s": wall_s,
        "data_wait_share": sum(row.time.data_wait_s for row in rows) / wall_s,
        "diverged": any(row.scores.diverged for row in rows),
        "segments": dg.MetadataValue.md(as_markdown(drop_obvious_columns(table))),
    }


def data_version_of(rows: Sequence[Evaluation]) -> str:
    """Return the data version of the streams at one key; *rows* are the evaluations of their cells."""
    if len(rows) == 1:
        return rows[0].predicted.predictions_sha256
    return hashlib.sha256("".join(row.predicted.predictions_sha256 for row in rows).encode()).hexdigest()


def _code_version(benchmark: Benchmark, experiment_name: str) -> str | None:
    """Return the hash of an experiment's settings, model settings and method code; None if a run would refuse them.

    Results of another version are out of date. Data, weights and tuned hyperparameters have versions as assets.
    """
    from tta_pipeline.evaluation.fingerprint import EVALUATION_VERSION, Fingerprint, method_code_sha256

    spec = benchmark.experiments[experiment_name]
    try:
        parts = {
            **decided_parts(spec, seed=spec.seed, image_size=benchmark.image_size),
            "seeds": spec.seeds,
            "model": benchmark.models[spec.model].model_dump(mode="json", exclude_defaults=True),
            "code": method_code_sha256(spec),
            "version": EVALUATION_VERSION,
        }
    except (OSError, ValueError):  # the list of a subset, or the method's code, cannot be read
        return None
    return Fingerprint(parts=parts).sha256


def _dependencies(scope: Scope[PartitionKey], experiment_name: str) -> list[dg.AssetDep]:
    benchmark = scope.benchmark
    spec = benchmark.experiments[experiment_name]
    cells = scope.key("shard_manifest")
    others = []
    if spec.model in benchmark.trained_models:
        others.append(asset_key(benchmark, benchmark.source_model_asset(spec.model)))
    if benchmark.uses_clean_images(experiment_name):
        others.append(SetScope(benchmark=benchmark, cell=CLEAN).key("shard_manifest"))
    if tuned_as := spec.tuned_as(experiment_name):
        others.append(asset_key(benchmark, "tuning", tuned_as))
    found = [scope.depends_on(cells), *(dg.AssetDep(key) for key in dict.fromkeys(others) if key != cells)]
    if unknown := spec.protocol.unknown:
        found.append(scope.depends_on_other(unknown.benchmark, "shard_manifest"))
    return found


def _sample_report(results: "ExperimentResults", key: PartitionKey) -> CheckReport:
    from tta_pipeline.evaluation.sample_predictions import prediction_problems
    from tta_pipeline.shards.expected_shard_set import expected_for_cell
    from tta_pipeline.shards.shard_set import ShardSet

    results.rows(key)  # raises if any is missing
    found = results.counted_cells(key)
    manifests = {each.cell: results.manifest(each.cell) for each in found}
    # A subset and a slow stream have fewer samples than the manifest; the evaluation has checked them against its plan.
    is_whole = not results.spec.subset and results.spec.protocol.stream.has_every_sample
    passed = all(
        each.row.cell.manifest_sha256 == manifests[each.cell].sha256
        and (not is_whole or each.row.scores.num_samples == manifests[each.cell].num_samples)
        for each in found
    )
    sets = {
        cell: ShardSet.open(results.folder(cell), expected_for_cell(results.locations, results.benchmark.name, cell))
        for cell in manifests
    }
    kept = [each for each in found if each.predictions_path]
    problems = [problem for each in kept for problem in prediction_problems(each, sets[each.cell])]
    metadata: dict[str, int | str] = {
        "num_evaluated": sum(each.row.scores.num_samples for each in found),
        "num_samples": sum(manifests[each.cell].num_samples for each in found),
        "kept_predictions": "; ".join(problems) or "as recorded",
    }
    return CheckReport(check=EVERY_SAMPLE, passed=passed and not problems, metadata=metadata)
