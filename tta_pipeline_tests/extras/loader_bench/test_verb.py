"""`tta-pipeline shards bench` as people and programs use it."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import Project, launcher


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


@pytest.mark.slow
@pytest.mark.parametrize("lacks", HALF)
def test_a_loader_that_is_half_installed_takes_no_other_with_it(
    shard_set: ShardSet, project: Project, tmp_path: Path, lacks: str
):
    """Its row says why it was not measured; the other has its figures.

    Of one that fails while it is imported, and of one whose process ends, the tests below say so too.
    """
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


def test_every_option_of_a_pass_holds(
    shard_set: ShardSet, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two processes with a half of the samples each, normalisation on the host, the shards staged: the row says so."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    half_installed(tmp_path / "packages", HALF["an import"][0])

    done = benched(
        project, tmp_path / "packages", shard_set.folder, "--loader", "indexed", "--processes", 2, "--batch-size", 6,
        "--normalization", "host", "--device", "cpu", "--stage", "--json", "-q",
    )  # fmt: skip

    assert (1, "") == (done.returncode, done.stderr)  # the other loader was asked for
    row, other = json.loads(done.stdout)
    assert (2, "host", "uint8", "cpu", 20, 6, 1) == (
        row["num_processes"], row["normalization"], row["output"], row["device"], row["num_samples"],
        row["batch_size"], row["repeats"],
    )  # fmt: skip
    assert min(row["images_per_s"], row["time_to_first_batch_s"], row["staging_mb_per_s"]) > 0
    assert "litdata" == other["loader"]
    assert HALF["an import"][1] in other["not_measured"]


def test_people_get_a_table_of_generated_data_and_are_told_in_a_line(project: Project, tmp_path: Path):
    """Without a shard set, images are made for it; what ended while it read stands below the table."""
    half_installed(tmp_path / "packages", HALF["its process"][0])

    done = benched(project, tmp_path / "packages", "--generate", 12, "--image-size", 16, "--loader", "indexed")

    assert 1 == done.returncode
    *heading, row, line = done.stdout.splitlines()
    assert {"loader", "images", "time"} <= set(" ".join(heading).split())
    assert row.startswith("indexed")
    assert re.match(f"litdata  not measured: loader 'litdata': .*({HALF['its process'][1]})", line)
    assert "of 2 passes: indexed, 1 threads: " in done.stderr
    assert "Traceback" not in done.stderr


def test_only_a_loader_that_cannot_be_measured_is_an_error(shard_set: ShardSet, project: Project, tmp_path: Path):
    """One line says what it raised and what to do."""
    half_installed(tmp_path / "packages", HALF["a library"][0])

    done = benched(project, tmp_path / "packages", shard_set.folder)

    assert done.returncode == 1
    assert "LoaderError: loader 'litdata' raised OSError: libno-such.so" in done.stderr
    assert "pip install litdata" in done.stderr
    assert len(done.stderr.splitlines()) == 1
