"""`<benchmark>/source_model`: a small classifier trained on the benchmark's clean training images."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from tta_pipeline.assets.reporting import PartitionReport, PartitionRun
from tta_pipeline.assets.scope import CellScope, SetScope
from tta_pipeline.benchmarks.models import TrainedModel
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import CLEAN, TRAIN
from tta_pipeline.resources import ShardStore


def source_model(scope: CellScope, settings: TrainedModel) -> dg.AssetsDefinition:
    """Return the asset of the trained source model."""
    whole = SetScope(benchmark=scope.benchmark, cell=CLEAN)

    @dg.asset(
        key=scope.key("source_model"),
        group_name=scope.group(),
        backfill_policy=dg.BackfillPolicy.single_run(),
        deps=[SetScope(benchmark=scope.benchmark, cell=TRAIN).key("shard_manifest")],
        kinds={"pytorch"},
        code_version="1",
        description="A small convolutional network with batch norm, trained on uncorrupted images only; saved as "
        "safetensors with its hash. Every experiment starts from it.",
    )
    def asset(context: dg.AssetExecutionContext, store: ShardStore) -> Iterator[dg.MaterializeResult[Any]]:
        with PartitionRun(context, whole) as run:
            for cell in run.keys:
                with run.reporting(cell) as report:
                    report(_train(context, scope, settings, store.locations))
            yield run.result()

    return asset


def _train(
    context: dg.AssetExecutionContext, scope: CellScope, settings: TrainedModel, locations: Locations
) -> PartitionReport:
    from tta_pipeline.shards.belonging import belonging_of
    from tta_pipeline.shards.manifest import ShardSet
    from tta_pipeline.training.source_model import train_source_model

    benchmark = scope.benchmark
    shard_set = ShardSet.open(locations.shards(benchmark.name, TRAIN), belonging_of(locations, benchmark.name, TRAIN))
    shard_set.require_intact()
    path = locations.source_model(benchmark.name)
    facts = train_source_model(path, shard_set, settings, image_size=benchmark.image_size, say=context.log.info)
    return PartitionReport(
        summary=f"trained on {facts.num_samples:,} images, training error {facts.train_error:.1%}",
        metadata={
            "num_samples": facts.num_samples,
            "train_error": facts.train_error,
            "wall_s": facts.wall_s,
            "weights_sha256": facts.weights_sha256,
            "path": dg.MetadataValue.path(path),
        },
        data_version=facts.weights_sha256,
    )
