"""The jobs, executed for a cell and for a range."""

from pathlib import Path

import dagster as dg

from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import SMALL, SMALL_CELLS, Project, write_tree
from tta_pipeline_tests.defs.in_process import code_location

GENERATED = """
title: Six images, without images to train on
images: {{kind: generated, clean: {clean}, severity_table: imagenet_c}}
corruptions: [gaussian_noise, contrast]
severities: [3, 5]
image_size: 32
shards: {{num_shards: 1}}
models: {{r18: {{kind: torchvision, architecture: resnet18}}}}
experiments: {{source: {{model: r18, method: source}}}}
"""
STREAMS = """
  continual: {model: cnn, method: norm, protocol: continual}
  gradual: {model: cnn, method: norm, protocol: gradual}
  worst: {model: cnn, method: norm, protocol: continual, severities: [5]}
"""


def execute(project: Project, instance: dg.DagsterInstance, **tags: str) -> None:
    """Execute the job that shards, with the *tags* by which Dagster knows partitions."""
    job = code_location(project.locations).resolve_job_def("small__shard_everything")
    named = {f"dagster/{name}": value for name, value in tags.items()}
    quiet = {"resources": {"metrics": {"config": {"publishes": False}}}}
    assert job.execute_in_process(instance=instance, tags=named, run_config=quiet).success


def test_a_job_shards_one_cell_or_a_range_in_one_run(project: Project, tmp_path: Path):
    """Of what was named there are shards and manifests afterwards, and of nothing else."""
    write_tree(tmp_path / "clean", classes={"n01": 3, "n02": 3})
    project.add_benchmark("small", GENERATED.format(clean=tmp_path / "clean"))

    both = {"asset_partition_range_start": "gaussian_noise|5", "asset_partition_range_end": "contrast|5"}
    with dg.DagsterInstance.ephemeral() as instance:
        execute(project, instance, partition="contrast|5")
        first = [cell.key for cell in SMALL_CELLS if project.locations.shards("small", cell).exists()]
        execute(project, instance, **both)
        assert 2 == instance.get_runs_count()

    assert ["contrast|5"] == first
    assert [6, 6] == [
        ShardSet.open(project.locations.shards("small", cell)).manifest.num_samples
        for cell in SMALL_CELLS
        if cell.severity == 5
    ]


def test_a_backfill_of_a_job_is_one_run_for_a_range(project: Project):
    """Every asset of every job takes a range in one run, by which Dagster cuts a backfill into runs."""
    project.add_benchmark("small", SMALL + STREAMS)
    repository = code_location(project.locations).get_repository_def()

    for name in ("shard_everything", "evaluate_everything", "evaluate_streams", "evaluate_streams_5"):
        layer = repository.get_job(f"small__{name}").asset_layer
        policies = {layer.get(key).backfill_policy for key in layer.executable_asset_keys}
        assert {dg.BackfillPolicy.single_run()} == policies


def test_together_the_jobs_make_everything(project: Project):
    """Each asset of a benchmark that is made is in one of its jobs; measuring loaders is not made by the way."""
    project.add_benchmark("small", SMALL + STREAMS)
    repository = code_location(project.locations).get_repository_def()
    names = [name for name in repository.job_names if name.startswith("small__")]

    made = [key for name in names for key in repository.get_job(name).asset_layer.executable_asset_keys]

    every = {key for key in repository.asset_graph.materializable_asset_keys if key.path[0] == "small"}
    assert {dg.AssetKey(["small", "loader_benchmark"])} == every - set(made)
    assert len(set(made)) == len(made)
