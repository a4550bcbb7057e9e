"""`<benchmark>/evaluation/<experiment>`: one model with one method on one cell, and the check of its completeness."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from tta_pipeline.assets.reporting import CellReport, CheckReport, check_cells, materialize_cells
from tta_pipeline.assets.scope import Scope
from tta_pipeline.benchmarks.spec import Benchmark, TrainedModel
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import Cell
from tta_pipeline.resources import Compute, MetricsStore, ShardStore

if TYPE_CHECKING:
    from tta_pipeline.evaluation.evaluate import Evaluator

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
    trained = isinstance(scope.benchmark.models[spec.model], TrainedModel)

    @scope.asset(
        "evaluation",
        experiment,
        deps=[_evaluated_key(scope, spec.shards), *([[scope.benchmark.name, "source_model"]] if trained else [])],
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
        sweep = _Sweep(
            context,
            scope=scope,
            experiment=experiment,
            config=config,
            locations=store.locations,
            metrics=metrics,
            compute=compute,
        )
        try:
            yield from materialize_cells(context, scope, sweep.work)
        finally:
            metrics.publish(context.log)

    return asset


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
    def check(context: dg.AssetCheckExecutionContext, store: ShardStore, metrics: MetricsStore) -> Iterator[Any]:
        yield from check_cells(
            context, scope, key, [EVERY_SAMPLE], lambda cell: _check(scope, experiment, store.locations, metrics, cell)
        )

    return check


class _Sweep:
    """The cells of one run, with the model loaded when the first cell needs it and kept for the others."""

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        *,
        scope: Scope,
        experiment: str,
        config: EvaluationConfig,
        locations: Locations,
        metrics: MetricsStore,
        compute: Compute,
    ) -> None:
        self._context = context
        self._benchmark = scope.benchmark
        self._experiment = experiment
        self._config = config
        self._locations = locations
        self._metrics = metrics
        self._compute = compute
        self._published = time.monotonic()

    def work(self, cell: Cell) -> CellReport:
        """Evaluate *cell*, unless its newest record has this fingerprint."""
        from tta_pipeline.shards.manifest import MANIFEST_FILE, Manifest, read_record

        folder = _folder(self._locations, self._benchmark, self._experiment, cell)
        manifest = read_record(folder / MANIFEST_FILE, Manifest)
        fingerprint = self._evaluator.fingerprint(manifest)
        latest = self._metrics.latest(
            self._benchmark.name, kind="evaluations", name=_record_name(self._experiment, cell)
        )
        if latest is not None and latest["fingerprint"] == fingerprint and not self._config.remeasure:
            return self._report(cell, latest, was_evaluated=False)
        return self._evaluate(cell, num_images=manifest.num_samples)

    def _evaluate(self, cell: Cell, *, num_images: int) -> CellReport:
        from tta_pipeline.evaluation.evaluate import open_cell
        from tta_pipeline.metrics.records import now
        from tta_pipeline.progress import Progress

        folder = _folder(self._locations, self._benchmark, self._experiment, cell)
        started_at = now()
        progress = Progress(self._context.log.info, what=cell.key, num_images=num_images)
        facts = asdict(self._evaluator.evaluate(open_cell(folder), progress.advance))
        self._metrics.record(
            self._benchmark.name,
            kind="evaluations",
            name=_record_name(self._experiment, cell),
            run_id=self._context.run_id,
            started_at=started_at,
            facts=facts,
        )
        self._publish_now_and_then()
        return self._report(cell, facts, was_evaluated=True)

    def _publish_now_and_then(self) -> None:
        if time.monotonic() - self._published > _PUBLISH_EVERY_S:
            self._metrics.publish(self._context.log)
            self._published = time.monotonic()

    def _report(self, cell: Cell, facts: Mapping[str, Any], *, was_evaluated: bool) -> CellReport:
        from tta_pipeline.reports.pictures import prediction_grid

        folder = _folder(self._locations, self._benchmark, self._experiment, cell)
        picture = prediction_grid(folder, facts, image_size=self._benchmark.image_size_of(self._experiment))
        did = f"{facts['images_per_s']:,.0f} images/s" if was_evaluated else "finished before"
        memory = {"peak_cuda_gib": facts["peak_cuda_gib"]} if facts["peak_cuda_gib"] is not None else {}
        return CellReport(
            summary=f"error {facts['error']:.1%}, {did}",
            metadata={
                **{name: facts[name] for name in _SHOWN},
                **memory,
                "data_wait_share": facts["data_wait_s"] / facts["wall_s"],
                "was_evaluated": was_evaluated,
                "samples": dg.MetadataValue.md(f"![first samples with their predictions]({picture})"),
            },
            data_version=facts["predictions_sha256"],
        )

    @cached_property
    def _evaluator(self) -> "Evaluator":
        from tta_pipeline.evaluation.evaluate import Evaluator
        from tta_pipeline.evaluation.models import load_model
        from tta_pipeline.sources import benchmark_class_map

        benchmark = self._benchmark
        spec = benchmark.experiments[self._experiment]
        class_map = benchmark_class_map(benchmark, self._locations)
        return Evaluator(
            benchmark=benchmark.name,
            name=self._experiment,
            experiment=spec,
            model=load_model(
                spec.model,
                benchmark.models[spec.model],
                source_model=self._locations.source_model(benchmark.name),
                num_classes=len(class_map.classes),
            ),
            image_size=benchmark.image_size_of(self._experiment),
            device=self._compute.torch_device(),
            num_threads=self._compute.num_threads,
        )


def _evaluated_key(scope: Scope, transform: str | None) -> dg.AssetKey:
    return scope.key("transformed_shards", transform) if transform else scope.key("shard_manifest")


def _folder(locations: Locations, benchmark: Benchmark, experiment: str, cell: Cell) -> Path:
    transform = benchmark.experiments[experiment].shards
    if transform:
        return locations.transformed(benchmark.name, transform, cell)
    return locations.shards(benchmark.name, cell)


def _record_name(experiment: str, cell: Cell) -> str:
    return f"{experiment}/{cell.corruption}-{cell.severity}"


def _check(
    scope: Scope, experiment: str, locations: Locations, metrics: MetricsStore, cell: Cell
) -> Sequence[CheckReport]:
    from tta_pipeline.shards.manifest import MANIFEST_FILE, Manifest, read_record

    manifest = read_record(_folder(locations, scope.benchmark, experiment, cell) / MANIFEST_FILE, Manifest)
    latest = metrics.latest(scope.benchmark.name, kind="evaluations", name=_record_name(experiment, cell)) or {}
    same = latest.get("manifest_sha256") == manifest.sha256 and latest.get("num_samples") == manifest.num_samples
    metadata = {"num_evaluated": latest.get("num_samples", 0), "num_samples": manifest.num_samples}
    return (CheckReport(check=EVERY_SAMPLE, passed=same, metadata=metadata),)
