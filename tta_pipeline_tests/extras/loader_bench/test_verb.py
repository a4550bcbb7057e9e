"""`tta-pipeline shards bench` as people and programs use it."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import Project, launcher


def test_json_is_one_array(shard_set: ShardSet, project: Project):
    """Nothing else stands on standard output; progress goes to standard error."""
    finished = project.run(
        "tta-pipeline", "shards", "bench", str(shard_set.folder), "--loader", "imagefolder", "--batch-size", "6",
        "--threads", "1", "--repeats", "1", "--json",
    )  # fmt: skip

    assert 0 == finished.returncode, finished.stderr
    (row,) = json.loads(finished.stdout)
    assert ("imagefolder", 20, 1, 6) == (row["loader"], row["num_samples"], row["repeats"], row["batch_size"])
    assert row["images_per_s"] > 0
    assert row["time_to_first_batch_s"] > 0
    assert "1 of 1 passes: imagefolder, 1 threads" in finished.stderr


def test_every_option_of_a_pass_holds(shard_set: ShardSet, project: Project, tmp_path: Path, monkeypatch):
    """Two processes with a half of the samples each, normalisation on the host, the shards staged: the row says so."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    finished = project.run(
        "tta-pipeline", "shards", "bench", str(shard_set.folder), "--loader", "indexed", "--processes", "2",
        "--normalization", "host", "--device", "cpu", "--stage", "--threads", "1", "--repeats", "1", "--json", "-q",
    )  # fmt: skip

    assert (0, "") == (finished.returncode, finished.stderr)
    (row,) = json.loads(finished.stdout)
    assert (2, "host", "uint8", "cpu", 20) == (
        row["num_processes"], row["normalization"], row["output"], row["device"], row["num_samples"],
    )  # fmt: skip
    assert row["staging_mb_per_s"] > 0


@pytest.mark.parametrize("options", [("--loader", "indexd"), ("--generate", "5"), ("--threads", "-1")])
def test_a_wrong_option_ends_with_status_2(options: tuple[str, str], shard_set: ShardSet, project: Project):
    """The error says what there is, without a traceback."""
    finished = project.run("tta-pipeline", "shards", "bench", str(shard_set.folder), *options)

    assert 2 == finished.returncode
    assert "Traceback" not in finished.stderr
    if options[0] == "--loader":
        assert "'indexd' is not a loader; expected one of indexed, webdataset, tar, imagefolder" in finished.stderr


def test_a_folder_without_a_manifest_is_refused(project: Project):
    """The error names the file that is missing."""
    project.locations.root.mkdir()
    finished = project.run("tta-pipeline", "shards", "bench", str(project.locations.root), "--loader", "indexed")

    assert 1 == finished.returncode
    assert "manifest.json cannot be read" in finished.stderr


HALF = {
    "an import": ("raise ImportError('cannot import name Chunks')", "ImportError: cannot import name Chunks"),
    "a name": ("import json\njson.no_such_name", "AttributeError: module 'json' has no attribute 'no_such_name'"),
    "a library": ("import ctypes\nctypes.CDLL('libno-such.so')", "OSError: libno-such.so: cannot open shared object"),
    "a module": ("class StreamingDataLoader: ...\nclass StreamingDataset: ...", "ModuleNotFoundError: No module named"),
    "its writer": ("RAISES", "RuntimeError: no writer here"),
    "its reader": ("READS", "RuntimeError: no reader here"),
    "its process": ("ENDS", "its process ended|ended with status"),
}
"""What the package of a loader may lack, and what is then said."""
USUAL = {"its process"}
"""Found while it reads; before the loader is known: the two tests at the end."""
WRITER = {
    "RAISES": "class Cache:\n    def __init__(self, *_, **__): raise RuntimeError('no writer here')\n",
    "READS": "class Cache:\n    def __init__(self, *_, **__): ...\n    __setitem__ = done = merge = __init__\n",
}
READER = "class StreamingDataLoader: ...\nclass StreamingDataset:\n    def __init__(self, *_):\n        "


def half_installed(folder: Path, code: str) -> None:
    """Install a distribution named litdata into *folder*, as pip leaves it, whose code is not what it should be."""
    (folder / "litdata-0.2.50.dist-info").mkdir(parents=True)
    (folder / "litdata-0.2.50.dist-info" / "METADATA").write_text("Name: litdata\nVersion: 0.2.50\n")
    package = folder / "litdata" / "streaming"
    ends = {"RAISES": "...", "READS": "raise RuntimeError('no reader here')", "ENDS": "import os; os._exit(139)"}
    if code in ends:
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "cache.py").write_text(WRITER.get(code, WRITER["READS"]))
        code = f"{READER}{ends[code]}"
    (folder / "litdata").mkdir(exist_ok=True)
    (folder / "litdata" / "__init__.py").write_text(f"{code}\n")


def benched(project: Project, packages: Path, *options: object) -> subprocess.CompletedProcess[str]:
    """Measure with what is installed in *packages*, too."""
    python_path = f"{packages}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = ("tta-pipeline", "shards", "bench", "--loader", "litdata", "--threads", "1", "--repeats", "1", *options)
    return launcher().run([*map(str, command)], project.environment | {"PYTHONPATH": python_path}, timeout_s=600)


@pytest.mark.parametrize(
    "lacks", [pytest.param(lacks, marks=() if lacks in USUAL else pytest.mark.slow) for lacks in HALF]
)
def test_a_loader_that_is_half_installed_takes_no_other_with_it(
    shard_set: ShardSet, project: Project, tmp_path: Path, lacks: str
):
    """Its row says why it was not measured; the other has its figures."""
    code, said = HALF[lacks]
    half_installed(tmp_path / "packages", code)

    done = benched(project, tmp_path / "packages", shard_set.folder, "--loader", "indexed", "--json")

    assert "Traceback" not in done.stderr
    measured, other = json.loads(done.stdout)
    assert ("indexed", None) == (measured["loader"], measured["not_measured"])
    assert measured["images_per_s"] > 0
    assert "litdata" == other["loader"]
    assert re.search(said, other["not_measured"]), other
    assert done.returncode == 1  # since it was asked for


def test_people_get_a_table_of_generated_data_and_are_told_in_a_line(project: Project, tmp_path: Path):
    """Without a shard set, images are made for it; what was not measured stands below the table."""
    half_installed(tmp_path / "packages", HALF["an import"][0])

    generated = ("--generate", 12, "--image-size", 16)
    *heading, row, line = benched(project, tmp_path / "packages", *generated, "--loader", "indexed").stdout.splitlines()

    assert {"loader", "images", "time"} <= set(" ".join(heading).split())
    assert row.startswith("indexed")
    assert line.startswith("litdata  not measured: loader 'litdata' raised ImportError: cannot import name Chunks; exp")


def test_only_a_loader_that_cannot_be_measured_is_an_error(shard_set: ShardSet, project: Project, tmp_path: Path):
    """One line says what it raised and what to do."""
    half_installed(tmp_path / "packages", HALF["a library"][0])

    done = benched(project, tmp_path / "packages", shard_set.folder)

    assert done.returncode == 1
    assert "LoaderError: loader 'litdata' raised OSError: libno-such.so" in done.stderr
    assert "pip install litdata" in done.stderr
    assert len(done.stderr.splitlines()) == 1
