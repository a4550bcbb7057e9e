"""One run over a range of cells, through the real command line."""

from pathlib import Path

import dagster as dg
import duckdb
import pytest

from tta_pipeline.domain.cells import CLEAN, TRAIN
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import SMALL_CELLS, SMALL_RANGE, Project, copied_results
from tta_pipeline_tests.defs.in_process import execute, what_failed
from tta_pipeline_tests.result_paths import result_paths


@pytest.fixture
def instance(sweep: Project):
    """The Dagster instance with the history of the sweep."""
    with dg.DagsterInstance.from_config(str(sweep.home)) as instance:
        yield instance


@pytest.fixture
def database(sweep: Project):
    """The database of the sweep, open for reading."""
    with open_metrics(sweep.locations.metrics) as connection:
        yield connection


def test_every_sample_of_every_cell_is_evaluated_by_every_experiment(
    sweep: Project, database: duckdb.DuckDBPyConnection
):
    """For each cell and the clean images, every experiment has one row with as many samples as the manifest."""
    rows = database.execute(
        "SELECT experiment, corruption, severity, num_samples FROM evaluations WHERE counts"
    ).fetchall()
    manifests = {cell: ShardSet.open(sweep.locations.shards("small", cell)).manifest for cell in (*SMALL_CELLS, CLEAN)}

    assert {
        (experiment, cell.corruption, cell.severity, manifest.num_samples)
        for experiment in ("source", "norm", "tent")
        for cell, manifest in manifests.items()
    } == set(rows)


def test_adaptation_recovers_what_contrast_takes(database: duckdb.DuckDBPyConnection):
    """Under contrast, norm and tent make less than half of the source model's errors."""
    errors = dict(
        database.execute(
            "SELECT experiment, mean_error FROM corruption_errors WHERE corruption = 'contrast'"
        ).fetchall()
    )

    assert errors["norm"] < errors["source"] / 2
    assert errors["tent"] < errors["source"] / 2


def test_each_partition_has_its_own_data_version(sweep: Project, instance: dg.DagsterInstance):
    """After a run over a range, the version of a partition is the hash of its manifest."""
    for cell in SMALL_CELLS:
        record = instance.get_latest_data_version_record(dg.AssetKey(["small", "shard_manifest"]), False, cell.key)

        manifest = ShardSet.open(sweep.locations.shards("small", cell)).manifest
        assert manifest.sha256 == record.event_log_entry.tags["dagster/data_version"]


@pytest.mark.parametrize(
    ("asset", "check"),
    [
        (["shard_manifest"], "shards_match_manifest"),
        (["shard_manifest"], "source_count_equals_manifest"),
        (["shard_manifest"], "every_class_present"),
        (["evaluation", "tent"], "every_sample_evaluated_once"),
    ],
)
def test_each_partition_has_its_own_check_results(instance: dg.DagsterInstance, asset: list[str], check: str):
    """After a run over a range, every check has passed once for each partition, and none is left planned."""
    key = dg.AssetCheckKey(dg.AssetKey(["small", *asset]), check)
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=100)

    assert {(cell.key, "SUCCEEDED") for cell in SMALL_CELLS} == {(r.partition, r.status.value) for r in records}
    assert len(SMALL_CELLS) == len(records)


def test_train_and_test_images_are_different_ones(sweep: Project):
    """No image is in both the training set and the clean test set, and together they are all 1,797."""
    train, clean = (
        {key.rpartition("/")[2] for key in ShardSet.open(sweep.locations.shards("small", cell)).index.keys}
        for cell in (TRAIN, CLEAN)
    )

    assert not train & clean
    assert 1797 == len(train | clean)


def test_a_cell_alone_has_the_predictions_it_had_after_others(sweep: Project, tmp_path: Path):
    """Evaluated alone and with one decoding thread, a cell predicts what it predicted at the end of a sweep."""
    project = copied_results(sweep, tmp_path)

    finished = execute(
        project, ["small/evaluation/tent"], ["contrast|5"], publishes=True, compute={"decode_threads": 1},
        config={"small__evaluation__tent": {"config": {"force": True}}},
    )  # fmt: skip

    assert finished.success, what_failed(finished)
    with open_metrics(project.locations.metrics) as connection:
        compared = connection.execute(
            "SELECT DISTINCT corruption, severity, same_predictions FROM run_comparison WHERE experiment = 'tent'"
        ).fetchall()
    assert [("contrast", 5, True)] == compared


def test_a_finished_cell_is_not_evaluated_again(sweep: Project, tmp_path: Path):
    """A repeated run over the range shards, trains, evaluates and stores nothing new."""
    project = copied_results(sweep, tmp_path)
    made = ("tar_shards", "shard_manifest", "evaluation/tent", "clean/shard_manifest", "clean/evaluation/tent")
    small = project.locations.root / "small"
    (small / "source").symlink_to(sweep.locations.root / "small" / "source")

    def written() -> dict[Path, int]:
        # The note of verified files names inodes, and a copy has others.
        files = [*(small / "shards").rglob("*"), *(small / "source_models").rglob("*")]
        return {path: path.stat().st_mtime_ns for path in files if path.is_file() and path.name != "verified.json"}

    before = written()

    finished = execute(project, [f"small/{name}" for name in (*made, "source_model")], SMALL_RANGE.split("..."))

    assert finished.success, what_failed(finished)
    assert len(result_paths(sweep.locations.root)) == len(result_paths(project.locations.root))
    assert before == written()
