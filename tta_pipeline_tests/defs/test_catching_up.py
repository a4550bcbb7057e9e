"""Dagster is told of what was made without it, from files."""

import json
import shutil
from pathlib import Path

import dagster as dg
import pytest

from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.definitions import build_definitions
from tta_pipeline.defs.evaluation import _stream_metadata
from tta_pipeline.defs.sync_history import _evaluation_output, covered_places, sync_history
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.work.pieces import Piece
from tta_pipeline_tests.conftest import SMALL_CELLS, Project
from tta_pipeline_tests.evaluation.small import SEVERITY_5, evaluated, results_of
from tta_pipeline_tests.results.database.made import evaluation_of

KEYS = tuple(cell.key for cell in SMALL_CELLS)
PIECES = (
    Piece(stage="sets", assets=("clean/source_split", "clean/tar_shards", "clean/shard_manifest")),
    Piece(stage="shards", assets=("source_split", "tar_shards", "shard_manifest"), keys=KEYS),
    Piece(stage="training", assets=("source_model",)),
    Piece(stage="evaluations", assets=("evaluation/source", "evaluation/tent"), keys=KEYS),
    Piece(stage="evaluations", assets=("clean/evaluation/tent",)),
    Piece(stage="report", assets=("robustness_report",)),
)


@pytest.fixture(scope="module")
def told(sweep: Project):
    """Two new histories of the sweep: as its runs wrote it, and as `sync_history` tells an empty one."""
    benchmark = load_all_benchmarks(sweep.locations).benchmark("small")
    graph = build_definitions(sweep.locations).resolve_asset_graph()

    def tell(instance: dg.DagsterInstance) -> int:
        places = [place for piece in PIECES for place in covered_places(graph, benchmark, piece)]
        return sync_history(instance, graph, benchmark, sweep.locations, places=places, tell=lambda _: None)

    with dg.DagsterInstance.from_config(str(sweep.home)) as run, dg.DagsterInstance.ephemeral() as empty:
        yield run, empty, tell(empty), tell(empty)


def test_every_partition_is_news_once(told):
    """What is told again is not reported again."""
    _, _, first, second = told

    assert len(SMALL_CELLS) * 5 + 3 + 1 + 1 + 1 == first
    assert 0 == second


def test_what_the_benchmark_file_no_longer_has_is_left_out(sweep: Project):
    """A cell, an experiment and a model that were renamed meanwhile: the others are told."""
    benchmark = load_all_benchmarks(sweep.locations).benchmark("small")
    gone = [("evaluation/renamed", KEYS[0]), ("shard_manifest", "renamed|3"), ("source_model/renamed", "")]
    with dg.DagsterInstance.ephemeral() as instance:
        graph = build_definitions(sweep.locations).resolve_asset_graph()
        places = [*gone, ("shard_manifest", KEYS[0])]
        assert 1 == sync_history(instance, graph, benchmark, sweep.locations, places=places, tell=lambda _: None)
    piece = Piece(stage="evaluations", assets=("evaluation/tent",), keys=("renamed|3", "renamed|5"))
    assert [] == list(covered_places(graph, benchmark, piece))


@pytest.mark.parametrize(
    "asset", ["source_split", "tar_shards", "shard_manifest", "evaluation/source", "evaluation/tent"]
)
def test_each_partition_has_the_version_that_a_run_gives_it(told, asset: str):
    """So nothing shows as out of date, and a later run finds nothing changed."""
    run, empty, *_ = told
    key = dg.AssetKey(["small", *asset.split("/")])

    for partition in KEYS:
        assert version(run, key, partition) == version(empty, key, partition)


@pytest.mark.parametrize(
    "asset", ["clean/source_split", "clean/tar_shards", "clean/shard_manifest", "clean/evaluation/tent", "source_model"]
)
def test_what_has_no_partitions_is_told_too(told, asset: str):
    """With the version that a run gives it."""
    run, empty, *_ = told
    key = dg.AssetKey(["small", *asset.split("/")])

    assert version(run, key) == version(empty, key) is not None


def test_the_error_of_a_stream_is_the_one_that_a_run_shows(sweep: Project, tmp_path: Path):
    """Clean images that a stream returns to enter no mean, whoever tells Dagster of it."""
    locations = Locations(root=tmp_path)
    shutil.copytree(sweep.locations.root / "small", tmp_path / "small", ignore=shutil.ignore_patterns("results"))
    protocol = {"shift": "continual", "clean": "after_each"}
    own = results_of(locations, protocol=protocol, subset={"first": 32})
    rows = [evaluation_of(json.loads(json.dumps(facts))) for facts in evaluated(own, SEVERITY_5)]

    made = _evaluation_output(own.benchmark, locations, "own", SEVERITY_5.key)

    assert made is not None
    shifted = [row.error for row in rows if row.cell.corruption != "clean"]
    assert len(shifted) < len(rows)
    assert sum(shifted) / len(shifted) == made.metadata["error"] == _stream_metadata(rows)["error"]


def version(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None = None) -> str:
    """Return the data version that *instance* has."""
    record = instance.get_latest_data_version_record(key, is_source=False, partition_key=partition)
    return record.event_log_entry.tags["dagster/data_version"]
