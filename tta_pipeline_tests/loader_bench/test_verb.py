"""`tta-pipeline loader-bench` as people and programs use it."""

import json
from pathlib import Path

import pytest

from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline_tests.conftest import Project


def test_json_is_one_array_with_a_row_for_each_loader(shard_set: ShardSet, project: Project):
    """Nothing else stands on standard output; progress goes to standard error."""
    finished = project.run(
        "tta-pipeline", "loader-bench", str(shard_set.folder), "--loader", "indexed", "--loader", "imagefolder",
        "--batch-size", "6", "--threads", "1", "--repeats", "1", "--json",
    )  # fmt: skip

    assert 0 == finished.returncode, finished.stderr
    rows = json.loads(finished.stdout)
    assert ["indexed", "imagefolder"] == [row["loader"] for row in rows]
    assert all((20, 1, 6) == (row["num_samples"], row["repeats"], row["batch_size"]) for row in rows)
    assert all(row["images_per_s"] > 0 and row["time_to_first_batch_s"] > 0 for row in rows)
    assert "2 of 2 passes: imagefolder, 1 threads" in finished.stderr


def test_people_get_a_table_of_generated_data(project: Project):
    """Without a shard set, images are made for it."""
    finished = project.run(
        "tta-pipeline", "loader-bench", "--generate", "12", "--image-size", "16", "--loader", "indexed",
        "--repeats", "1",
    )  # fmt: skip

    assert 0 == finished.returncode, finished.stderr
    assert "images per s" in finished.stdout
    assert "indexed" in finished.stdout


def test_every_option_of_a_pass_holds(shard_set: ShardSet, project: Project, tmp_path: Path, monkeypatch):
    """Two processes, normalisation on the host, the shards staged on this device: each row says so."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    finished = project.run(
        "tta-pipeline", "loader-bench", str(shard_set.folder), "--loader", "indexed", "--processes", "2",
        "--normalization", "host", "--device", "cpu", "--stage", "--threads", "1", "--repeats", "1", "--json", "-q",
    )  # fmt: skip

    assert (0, "") == (finished.returncode, finished.stderr)
    (row,) = json.loads(finished.stdout)
    assert (2, "host", "cpu", 20) == (
        row["num_processes"], row["normalization"], row["device"], row["num_samples"],
    )  # fmt: skip
    assert row["staging_mb_per_s"] > 0


@pytest.mark.parametrize("options", [("--loader", "indexd"), ("--generate", "5"), ("--threads", "-1")])
def test_a_wrong_option_ends_with_status_2(options: tuple[str, str], shard_set: ShardSet, project: Project):
    """The error says what there is, without a traceback."""
    finished = project.run("tta-pipeline", "loader-bench", str(shard_set.folder), *options)

    assert 2 == finished.returncode
    assert "Traceback" not in finished.stderr
    if options[0] == "--loader":
        assert "'indexd' is not a loader; expected one of indexed, webdataset, tar, imagefolder" in finished.stderr


def test_a_folder_without_a_manifest_is_refused(project: Project):
    """The error names the file that is missing."""
    project.locations.root.mkdir()
    finished = project.run("tta-pipeline", "loader-bench", str(project.locations.root), "--loader", "indexed")

    assert 1 == finished.returncode
    assert "manifest.json cannot be read" in finished.stderr
