"""`<benchmark>/evaluation/<experiment>`: one model with one method on one cell, and its checks."""

import gc
import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from tta_pipeline.assets.automation import out_of_date
from tta_pipeline.assets.history import HISTORY_CHECKS, history_reports
from tta_pipeline.assets.launching import launch
from tta_pipeline.assets.reporting import CellReport, CheckReport, check_keys, checks_of, materialize_keys, way_out
from tta_pipeline.assets.scope import Scope
from tta_pipeline.benchmarks.models import TrainedModel
from tta_pipeline.benchmarks.streams import stream_keys
from tta_pipeline.evaluation.record import SHOWN, SHOWN_OF_VISIT, Evaluation
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import CLEAN, Cell
from tta_pipeline.resources import Compute, MetricsStore, ShardStore

if TYPE_CHECKING:
    from PIL.Image import Image

    from tta_pipeline.evaluation.sweep import Subject

EVERY_SAMPLE = "every_sample_evaluated_once"
_PUBLISH_EVERY_S = 5.0
_NOT_ITS = CellReport(
    summary="not among the severities of the experiment",
    metadata={"is_of_the_experiment": False},
    data_version="not of the experiment",
)


class EvaluationConfig(dg.Config):
    """What a person can ask of one run."""

    remeasure: bool = Field(default=False, description="Evaluate cells again that are finished, for another timing")
    keep_predictions: bool = Field(
        default=True,
        description="Write what is predicted for each sample to <benchmark>/predictions/ as Parquet, less than 8 bytes "
        "a sample, named after its hash, which the record has",
    )


def evaluation(scope: Scope, experiment: str) -> dg.AssetsDefinition:
    """Return the asset of *experiment*."""
    spec = scope.benchmark.experiments[experiment]

    @scope.asset(
        "evaluation",
        experiment,
        group_name=scope.group(spec.group),
        deps=_dependencies(scope, experiment),
        kinds={"pytorch"},
        code_version="1",
        automation_condition=out_of_date(),
        description=f"Model `{spec.model}` with method `{spec.method}` under protocol `{spec.protocol.name}`. "
        "A finished cell is not evaluated again while data, weights and settings stay the same.",
    )
    def asset(
        context: dg.AssetExecutionContext,
        config: EvaluationConfig,
        store: ShardStore,
        metrics: MetricsStore,
        compute: Compute,
    ) -> Iterator[dg.MaterializeResult[Any]]:
        from tta_pipeline.evaluation.sweep import Subject

        subject = Subject(benchmark=scope.benchmark, experiment=experiment, locations=store.locations)
        keys, reporter = scope.keys(context), _Reporter(context, subject, metrics)
        own = [key for key in keys if key in (*stream_keys(scope.benchmark, experiment), CLEAN.key)]
        try:
            with _evaluated(context, scope, subject, own, config=config, compute=compute) as evaluate:
                yield from materialize_keys(
                    context,
                    scope,
                    keys,
                    lambda key: reporter.report(key, was_evaluated=evaluate(key)) if key in own else _NOT_ITS,
                )
        finally:
            metrics.publish(context.log)

    return asset


@contextmanager
def _evaluated(
    context: dg.AssetExecutionContext,
    scope: Scope,
    subject: "Subject",
    keys: Sequence[str],
    *,
    config: EvaluationConfig,
    compute: Compute,
) -> Iterator[Callable[[str], bool]]:
    """Yield what sees to it that the streams at a key are recorded, and says whether they had to be evaluated."""
    from tta_pipeline.evaluation.sweep import Sweep

    # A process that ends looks through all that was imported for garbage: with torch a second, and a run that is
    # cancelled shall be gone. DuckDB, if it is there already, would report its own as leaked.
    if "duckdb" not in sys.modules:
        gc.freeze()
    machine, tell = compute.machine(), context.log.info
    with Sweep(
        subject, machine=machine, run_id=context.run.run_id, tell=tell, keeps_predictions=config.keep_predictions
    ) as sweep:
        todo = {}
        for key in keys:
            with way_out(scope, context.asset_key, key):
                todo[key] = subject.plans(key) if config.remeasure else sweep.unfinished(key)
        sweep.say_what_is_unproven()
        to_come = [key for key, plans in todo.items() if plans]
        if compute.launch and to_come:
            launch(context, compute.launch, subject, to_come, machine, config=config.model_dump())
        sweep.expect([plan for plans in todo.values() for plan in plans])

        def evaluate(key: str) -> bool:
            if not compute.launch:
                for plan in todo[key]:
                    sweep.evaluate(plan, anew=config.remeasure)
            return bool(todo[key])

        yield evaluate


def evaluation_checks(scope: Scope, experiment: str) -> dg.AssetChecksDefinition:
    """Return the checks of the newest result: against the manifest, and against the results before it."""
    key = scope.key("evaluation", experiment)
    descriptions = {
        EVERY_SAMPLE: "The newest result is of the manifest as it is now and counts as many samples.",
        **HISTORY_CHECKS,
    }

    @checks_of(scope, key, descriptions)
    def checks(context: dg.AssetCheckExecutionContext, store: ShardStore) -> Iterator[Any]:
        yield from check_keys(
            context,
            scope,
            key,
            keys=[own for own in scope.keys(context) if own in (*stream_keys(scope.benchmark, experiment), CLEAN.key)],
            work=lambda own: _check(scope, experiment, store.locations, own),
        )

    return checks


class _Reporter:
    """Tells Dagster of each cell, and the database now and then."""

    def __init__(self, context: dg.AssetExecutionContext, subject: "Subject", metrics: MetricsStore) -> None:
        self._context = context
        self._subject = subject
        self._metrics = metrics
        self._published = time.monotonic()

    def report(self, key: str, *, was_evaluated: bool) -> CellReport:
        """Return what became of the streams at *key*."""
        rows = self._subject.rows(key)
        self._publish_now_and_then()
        error = sum(row.error for row in rows) / len(rows)
        did = f"{sum(row.num_samples for row in rows) / sum(row.wall_s for row in rows):,.0f} images/s"
        return CellReport(
            summary=f"error {error:.1%}, {did if was_evaluated else 'finished before'}",
            metadata={
                "was_evaluated": was_evaluated,
                **(self._of_cell(rows[0]) if len(rows) == 1 else _of_stream(rows)),
            },
            data_version=_data_version(rows),
        )

    def _of_cell(self, row: Evaluation) -> dict[str, Any]:
        from tta_pipeline.reports.pictures import reliability_diagram, sample_row, timeline

        subject = self._subject
        cell = Cell(corruption=row.corruption, severity=row.severity)
        image_size = subject.benchmark.image_size_of(subject.experiment)
        samples = sample_row(subject.folder(cell), row, image_size=image_size)
        shown = {name: getattr(row, name) for name in SHOWN}
        return {
            **{name: value for name, value in shown.items() if value is not None},
            "data_wait_share": row.data_wait_s / row.wall_s,
            "samples": _picture("first samples with their predictions", samples),
            "calibration": _picture("accuracy at each confidence", reliability_diagram(row)),
            "timeline": _picture("where the time of each batch went", timeline(row)),
        }

    def _publish_now_and_then(self) -> None:
        if time.monotonic() - self._published > _PUBLISH_EVERY_S:
            self._metrics.publish(self._context.log, is_last=False)
            self._published = time.monotonic()


def _picture(what: str, image: "Image") -> dg.MarkdownMetadataValue:
    from tta_pipeline.reports.pictures import as_data_uri, picture_png

    return dg.MetadataValue.md(f"![{what}]({as_data_uri(picture_png(image))})")


def _of_stream(rows: Sequence[Evaluation]) -> dict[str, Any]:
    """Return what is shown of several rows: sums, means, and each of them."""
    from tta_pipeline.reports.tables import Table, as_markdown

    wall_s = sum(row.wall_s for row in rows)
    table = Table(columns=SHOWN_OF_VISIT, rows=tuple(attrgetter(*SHOWN_OF_VISIT)(row) for row in rows))
    return {
        "error": sum(row.error for row in rows) / len(rows),
        "num_samples": sum(row.num_samples for row in rows),
        "num_visits": len(rows),
        "wall_s": wall_s,
        "images_per_s": sum(row.num_samples for row in rows) / wall_s,
        "data_wait_share": sum(row.data_wait_s for row in rows) / wall_s,
        "diverged": any(row.diverged for row in rows),
        "visits": dg.MetadataValue.md(as_markdown(table)),
    }


def _data_version(rows: Sequence[Evaluation]) -> str:
    if len(rows) == 1:
        return rows[0].predictions_sha256
    return hashlib.sha256("".join(row.predictions_sha256 for row in rows).encode()).hexdigest()


def _dependencies(scope: Scope, experiment: str) -> list[dg.AssetDep]:
    benchmark = scope.benchmark
    spec = benchmark.experiments[experiment]
    cells = scope.key("transformed_shards", spec.shards) if spec.shards else scope.key("shard_manifest")
    others = []
    if isinstance(benchmark.models[spec.model], TrainedModel):
        others.append(dg.AssetKey([benchmark.name, "source_model"]))
    if benchmark.uses_clean_images(experiment):
        others.append(Scope(benchmark=benchmark, single=CLEAN).key("shard_manifest"))
    return [scope.depends_on(cells), *(dg.AssetDep(key) for key in dict.fromkeys(others) if key != cells)]


def _check(scope: Scope, experiment: str, locations: Locations, key: str) -> Sequence[CheckReport]:
    from tta_pipeline.evaluation.sweep import Subject

    subject = Subject(benchmark=scope.benchmark, experiment=experiment, locations=locations)
    rows = subject.rows(key)
    manifests = {cell: subject.manifest(cell) for plan in subject.plans(key) for cell in plan.cells}
    found = [(row, manifests[Cell(corruption=row.corruption, severity=row.severity)]) for row in rows]
    # A subset and a slow stream have fewer samples, which the evaluation itself has counted against its plan.
    is_whole = not subject.spec.subset and subject.spec.protocol.shift != "slow"
    passed = all(
        row.manifest_sha256 == manifest.sha256 and (not is_whole or row.num_samples == manifest.num_samples)
        for row, manifest in found
    )
    problems = [problem for row in rows for problem in subject.sample_problems(row)]
    metadata = {
        "num_evaluated": sum(row.num_samples for row, _ in found),
        "num_samples": sum(manifest.num_samples for _, manifest in found),
        "kept_predictions": "; ".join(problems) or "as recorded",
    }
    passed = passed and not problems
    return (CheckReport(check=EVERY_SAMPLE, passed=passed, metadata=metadata), *history_reports(subject, key))
