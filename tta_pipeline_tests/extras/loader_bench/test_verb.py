"""`tta-pipeline shards bench` as people and programs use it."""

import json
from pathlib import Path

import pytest

from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import Project, in_one_line


@pytest.mark.parametrize(
    "options",
    [
        ("--loader", "indexd"),
        ("--generate", "5"),
        ("--threads", "-1"),
        ("--model", "torchvision:resnet18", "--processes", "2"),
        ("--model", "torchvision:resnet18", "--normalization", "host"),
    ],
)
def test_a_wrong_option_ends_with_status_2(options: tuple[str, ...], shard_set: ShardSet, project: Project):
    """The error says what there is, without a traceback."""
    finished = project.run("tta-pipeline", "shards", "bench", str(shard_set.folder), *options)

    assert 2 == finished.returncode
    assert "Traceback" not in finished.stderr
    if options[0] == "--loader":
        assert "'indexd' is not a loader; expected one of indexed, webdataset, imagefolder" in in_one_line(
            finished.stderr
        )


def test_a_folder_without_a_manifest_is_refused(project: Project):
    """The error names the file that is missing."""
    project.locations.root.mkdir()
    finished = project.run("tta-pipeline", "shards", "bench", str(project.locations.root), "--loader", "indexed")

    assert 1 == finished.returncode
    assert "manifest.json cannot be read" in finished.stderr


def test_every_option_of_a_pass_holds(
    shard_set: ShardSet, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two processes with a half of the samples each, normalisation on the host, the shards staged: the row says so."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    done = project.run(
        "tta-pipeline", "shards", "bench", str(shard_set.folder), "--loader", "indexed", "--threads", "1",
        "--repeats", "1", "--processes", "2", "--batch-size", "6", "--normalization", "host", "--device", "cpu",
        "--stage", "--json", "-q",
    )  # fmt: skip

    assert (0, "") == (done.returncode, done.stderr)
    (row,) = json.loads(done.stdout)
    assert (2, "host", "uint8", "cpu", 20, 6, 1) == (
        row["num_processes"], row["normalization"], row["output"], row["device"], row["num_samples"],
        row["batch_size"], row["repeats"],
    )  # fmt: skip
    assert min(row["images_per_s"], row["time_to_first_batch_s"], row["staging_mb_per_s"]) > 0


def test_people_get_a_table_of_generated_data(project: Project):
    """Without a shard set, images are made for it; without --loader, every reader has a row."""
    done = project.run(
        "tta-pipeline", "shards", "bench", "--generate", "12", "--image-size", "16", "--threads", "1", "--repeats", "1"
    )

    assert 0 == done.returncode, done.stderr
    *heading, ours, webdataset, loose = done.stdout.splitlines()
    assert {"loader", "images", "time"} <= set(" ".join(heading).split())
    assert ["indexed", "webdataset", "imagefolder"] == [row.split()[0] for row in (ours, webdataset, loose)]
    assert "1 of 3 passes: indexed, 1 threads: " in done.stderr
    assert "Traceback" not in done.stderr
