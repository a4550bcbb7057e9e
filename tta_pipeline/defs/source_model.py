"""`<benchmark>/source_model`: a network trained on the benchmark's training images."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from tta_pipeline.defs.reporting import PartitionReport, PartitionRun, picture
from tta_pipeline.defs.resources import Compute, MetricsStore, ShardStore
from tta_pipeline.defs.scope import CellScope, Scopes, SetScope
from tta_pipeline.domain.cells import CLEAN, TRAIN
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.extras.training.source_training import SourceTraining
    from tta_pipeline.results.training_record import TrainingRun

_SHOWN = (
    "num_samples", "num_parameters", "num_epochs_done", "train_error", "validation_error", "validated_on",
    "images_per_s", "data_wait_s", "wall_s", "num_resumed", "device", "weights_sha256",
)  # fmt: skip


class TrainingConfig(dg.Config):
    """Options of one run."""

    launch: str = Field(
        default="",
        description="Command that starts the training processes, to which `-m <module>` is appended, such as "
        "`torchrun --nproc-per-node 4` or `srun --quit-on-interrupt python`; empty: none, this process trains",
    )


def source_model(scopes: Scopes) -> Iterator[dg.AssetsDefinition]:
    """Yield the asset of each source model that the benchmark trains."""
    return (_asset(scopes.cells, model) for model in scopes.benchmark.trained_models)


def _asset(scope: CellScope, model: str) -> dg.AssetsDefinition:
    benchmark = scope.benchmark
    settings = benchmark.trained_models[model]
    train, clean = (SetScope(benchmark=benchmark, cell=cell) for cell in (TRAIN, CLEAN))
    validates_on_clean = benchmark.has_clean and not settings.val_fraction

    @scope.asset(
        benchmark.source_model_asset(model),
        is_whole=True,
        group_name=train.group(),
        deps=[each.key("shard_manifest") for each in (train, *([clean] if validates_on_clean else []))],
        kinds={"pytorch"},
        code_version="1",
        description=f"{model}, trained for {settings.epochs} epochs on clean images. Network of kind "
        f"{settings.network.kind}. Cancel the run to pause it: the next run continues from the last checkpoint.",
    )
    def asset(
        context: dg.AssetExecutionContext,
        config: TrainingConfig,
        store: ShardStore,
        metrics: MetricsStore,
        compute: Compute,
    ) -> Iterator[dg.MaterializeResult[Any]]:
        from tta_pipeline.extras.training.source_training import SourceTraining

        training = SourceTraining(benchmark=benchmark, model=model, locations=store.locations)
        with metrics.publishing(context.log), PartitionRun(context, train) as run:
            run.report_each(lambda _: _train_and_record(context, training, metrics, compute, launch=config.launch))
            yield run.result()

    return asset


def _train_and_record(
    context: dg.AssetExecutionContext,
    training: "SourceTraining",
    metrics: MetricsStore,
    compute: Compute,
    *,
    launch: str,
) -> PartitionReport:
    """Train the model unless this training is finished, and record the training unless it is recorded."""
    from tta_pipeline.extras.training.source_training import TRAININGS
    from tta_pipeline.results.result_files import Result, utc_now
    from tta_pipeline.util.software_versions import software_versions

    started_at = utc_now()
    if not launch:
        training.train(machine=compute.machine(), say=context.log.info)
    elif training.find_finished() is None:
        _launch(context, launch, training, compute)
    run = training.require_finished()
    if not training.is_recorded(run):
        metrics.store(
            Result(
                kind="training",
                benchmark=training.benchmark.name,
                key=TRAININGS,
                fingerprint=run.fingerprint,
                run_id=context.run.run_id,
                started_at=started_at,
                finished_at=utc_now(),
                versions=software_versions(),
                training=run,
            )
        )
    return _report(run, training)


def _launch(context: dg.AssetExecutionContext, prefix: str, training: "SourceTraining", compute: Compute) -> None:
    """Train in processes started by the command *prefix*, over Dagster Pipes; return when the weights are written.

    The processes write the weights themselves; Dagster receives their log, and passes cancellation on to them.
    """
    dg.PipesSubprocessClient().run(
        command=[*shlex.split(prefix), "-m", "tta_pipeline.defs.launched_rank"],
        context=context,
        extras={
            "benchmark": training.benchmark.model_dump(mode="json"),
            "data_root": str(training.locations.root),
            "shards_root": str(training.locations.store or ""),
            "machine": asdict(compute.machine()),
            "model": training.model,
        },
    )


def _report(run: "TrainingRun", training: "SourceTraining") -> PartitionReport:
    from tta_pipeline.report.figure_style import as_png
    from tta_pipeline.report.training_figures import learning_curves_of_run

    learnt = "" if run.train_error is None else f", training error {run.train_error:.1%}"
    against = "" if run.validation_error is None else f", validation error {run.validation_error:.1%}"
    return PartitionReport(
        summary=f"trained on {count_of(run.num_samples, 'image')} in {count_of(run.num_epochs_done, 'epoch')}"
        f"{learnt}{against}",
        metadata={
            **{name: value for name in _SHOWN if (value := getattr(run, name)) is not None},
            "learning_curves": picture("error and loss of each epoch", as_png(learning_curves_of_run(run))),
            "path": dg.MetadataValue.path(training.path),
        },
        data_version=run.weights_sha256,
    )
