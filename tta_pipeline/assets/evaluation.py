"""`<benchmark>/evaluation/<experiment>`: one model with one method on one cell, and the check of its completeness."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from tta_pipeline.assets.launching import launch
from tta_pipeline.assets.reporting import CellReport, CheckReport, check_cells, materialize_cells
from tta_pipeline.assets.scope import Scope
from tta_pipeline.benchmarks.spec import TrainedModel
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import CLEAN, Cell
from tta_pipeline.resources import Compute, MetricsStore, ShardStore

if TYPE_CHECKING:
    from tta_pipeline.evaluation.sweep import Subject

    Facts = Mapping[str, Any]

EVERY_SAMPLE = "every_sample_evaluated_once"
_PUBLISH_EVERY_S = 5.0
_SHOWN = (
    "error", "ece", "num_samples", "num_correct", "images_per_s", "wall_s", "data_wait_s", "compute_s",
    "time_to_first_batch_s", "first_batch_compute_s", "peak_rss_gib", "num_forwards", "num_backwards", "device",
    "diverged", "order_hash", "predictions_sha256",
)  # fmt: skip


class EvaluationConfig(dg.Config):
    """What a person can ask of one run."""

    remeasure: bool = Field(default=False, description="Evaluate cells again that are finished, for another timing")


def evaluation(scope: Scope, experiment: str) -> dg.AssetsDefinition:
    """Return the asset of *experiment*."""
    spec = scope.benchmark.experiments[experiment]

    @scope.asset(
        "evaluation",
        experiment,
        deps=_dependencies(scope, experiment),
        kinds={"pytorch"},
        code_version="1",
        description=f"Model `{spec.model}` with method `{spec.method}` under protocol `{spec.protocol}`. "
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
        cells = scope.cells(context)
        reporter = _Reporter(context, subject, metrics)
        try:
            with _results(context, subject, cells, config, compute) as results:
                yield from materialize_cells(context, scope, lambda cell: reporter.report(cell, *results(cell)))
        finally:
            metrics.publish(context.log)

    return asset


@contextmanager
def _results(
    context: dg.AssetExecutionContext,
    subject: "Subject",
    cells: Sequence[Cell],
    config: EvaluationConfig,
    compute: Compute,
) -> "Iterator[Callable[[Cell], tuple[Facts, bool]]]":
    """Yield what gives the facts of a cell and whether it was evaluated for them, here or by processes launched."""
    from tta_pipeline.evaluation.sweep import Sweep

    machine, tell = compute.machine(), context.log.info
    with Sweep(subject, cells, machine=machine, run_id=context.run_id, tell=tell) as sweep:
        todo = {cell for cell in cells if config.remeasure or not sweep.is_finished(cell)}
        sweep.cells = [cell for cell in cells if cell in todo]
        if compute.launch and todo:
            launch(context, compute.launch, subject, sweep.cells, machine)

        def result(cell: Cell) -> "tuple[Facts, bool]":
            if cell in todo and not compute.launch:
                return sweep.evaluate(cell), True
            latest = subject.latest(cell)
            assert latest is not None
            return latest, cell in todo

        yield result


def evaluation_check(scope: Scope, experiment: str) -> dg.AssetChecksDefinition:
    """Return the check that the newest result counts every sample of the manifest."""
    key = scope.key("evaluation", experiment)
    spec = dg.AssetCheckSpec(
        EVERY_SAMPLE,
        asset=key,
        description="The newest result is of the manifest as it is now and counts as many samples.",
        partitions_def=scope.partitions,
    )

    @dg.multi_asset_check(name=f"{key.to_python_identifier()}_check", specs=[spec])
    def check(context: dg.AssetCheckExecutionContext, store: ShardStore) -> Iterator[Any]:
        yield from check_cells(
            context, scope, key, [EVERY_SAMPLE], lambda cell: _check(scope, experiment, store.locations, cell)
        )

    return check


class _Reporter:
    """Tells Dagster of each cell, and the database now and then."""

    def __init__(self, context: dg.AssetExecutionContext, subject: "Subject", metrics: MetricsStore) -> None:
        self._context = context
        self._subject = subject
        self._metrics = metrics
        self._published = time.monotonic()

    def report(self, cell: Cell, facts: "Facts", was_evaluated: bool) -> CellReport:  # noqa: FBT001 - see `_results`
        """Return what became of *cell*."""
        from tta_pipeline.reports.pictures import prediction_grid, timeline

        subject = self._subject
        image_size = subject.benchmark.image_size_of(subject.experiment)
        picture = prediction_grid(subject.folder(cell), facts, image_size=image_size)
        did = f"{facts['images_per_s']:,.0f} images/s" if was_evaluated else "finished before"
        memory = {"peak_cuda_gib": facts["peak_cuda_gib"]} if facts["peak_cuda_gib"] is not None else {}
        self._publish_now_and_then()
        return CellReport(
            summary=f"error {facts['error']:.1%}, {did}",
            metadata={
                **{name: facts[name] for name in _SHOWN},
                **memory,
                "data_wait_share": facts["data_wait_s"] / facts["wall_s"],
                "was_evaluated": was_evaluated,
                "samples": dg.MetadataValue.md(f"![first samples with their predictions]({picture})"),
                "timeline": dg.MetadataValue.md(f"![where the time of each batch went]({timeline(facts)})"),
            },
            data_version=facts["predictions_sha256"],
        )

    def _publish_now_and_then(self) -> None:
        if time.monotonic() - self._published > _PUBLISH_EVERY_S:
            self._metrics.publish(self._context.log)
            self._published = time.monotonic()


def _dependencies(scope: Scope, experiment: str) -> list[dg.AssetKey]:
    benchmark = scope.benchmark
    spec = benchmark.experiments[experiment]
    keys = [scope.key("transformed_shards", spec.shards) if spec.shards else scope.key("shard_manifest")]
    if isinstance(benchmark.models[spec.model], TrainedModel):
        keys.append(dg.AssetKey([benchmark.name, "source_model"]))
    if benchmark.uses_clean_images(experiment):
        keys.append(Scope(benchmark=benchmark, single=CLEAN).key("shard_manifest"))
    return list(dict.fromkeys(keys))


def _check(scope: Scope, experiment: str, locations: Locations, cell: Cell) -> Sequence[CheckReport]:
    from tta_pipeline.evaluation.sweep import Subject

    subject = Subject(benchmark=scope.benchmark, experiment=experiment, locations=locations)
    manifest, latest = subject.manifest(cell), subject.latest(cell) or {}
    same = latest.get("manifest_sha256") == manifest.sha256 and latest.get("num_samples") == manifest.num_samples
    metadata = {"num_evaluated": latest.get("num_samples", 0), "num_samples": manifest.num_samples}
    return (CheckReport(check=EVERY_SAMPLE, passed=same, metadata=metadata),)
