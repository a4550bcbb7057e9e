"""A published data set, read by those that it is for; and what is not published."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.cli import main
from tta_pipeline.data.shifts.shift_set_files import shipped_set
from tta_pipeline.errors import ManifestError
from tta_pipeline.extras.publishing.published_cell import PublishedCell, verify_cell
from tta_pipeline.extras.publishing.terms import terms_of
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set import SAMPLES_FILE
from tta_pipeline_tests.shards.cell import CLASS_MAP, QUIET, flip_sample

CROISSANT = """
import json, mlcroissant

data_set = mlcroissant.Dataset("croissant.json")
assert not data_set.metadata.issues.errors and not data_set.metadata.issues.warnings
names = ("key", "label", "corruption", "severity")
rows = [[row[f"fog_5/{name}"] for name in names] + [row["fog_5/image"].size] for row in data_set.records("fog_5")]
print(json.dumps([[key.decode(), label, shift.decode(), severity, size] for key, label, shift, severity, size in rows]))
"""
HUB = """
import datasets, json, os

rows = datasets.load_dataset(os.getcwd(), "fog_5", split="test")
print(json.dumps([[row["__key__"], row["cls"], "fog", 5, row["JPEG"].size] for row in rows]))
"""


@pytest.fixture
def cell(write: Callable[..., object], tmp_path: Path) -> PublishedCell:
    """A cell of three shards without labels beside the images."""
    write(settings=ShardSettings(num_shards=3, seed=7))
    publish_shard_set(tmp_path / "shards", CLASS_MAP, QUIET)
    return verify_cell(tmp_path / "shards")


def published(shards: Path, target: Path, *options: str) -> Result:
    """Publish the shard sets below *shards* with the command line."""
    arguments = ["shards", "publish", "--shards", str(shards), str(target), "--shift-set", "imagenet_c", *options]
    return CliRunner().invoke(main, arguments)


def rows_of(cell: PublishedCell) -> list[list[object]]:
    """Return key, label, corruption, severity and size of each sample, by its key."""
    index = cell.shard_set.index
    return [
        [key, label, "fog", 5, [32, 32]] for key, label in sorted(zip(index.keys, index.labels.tolist(), strict=True))
    ]


@pytest.mark.parametrize(("package", "reader"), [("mlcroissant", CROISSANT), ("datasets", HUB)])
def test_other_programs_read_every_sample(
    cell: PublishedCell, tmp_path: Path, *, monkeypatch: pytest.MonkeyPatch, package: str, reader: str
):
    """With its key, image, label, corruption and severity; `datasets` has no version for the pins of this project."""
    pytest.importorskip(package)
    monkeypatch.setenv("CROISSANT_CACHE", str(tmp_path / "cache"))  # it names copies by relative addresses alone
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    done = published(cell.shard_set.folder, tmp_path / "out")
    assert done.exit_code == 0, done.output

    command = [sys.executable, "-c", reader]
    read = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path / "out")

    assert rows_of(cell) == sorted(json.loads(read.stdout.splitlines()[-1]))


def test_what_is_published_proves_itself(cell: PublishedCell, tmp_path: Path):
    """`sha256sum` knows every file but its own, the shard sets are whole, and the picture is one."""
    assert published(cell.shard_set.folder, tmp_path / "out").exit_code == 0

    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    checked = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path / "out")

    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files - {"SHA256SUMS"} == {line.removesuffix(": OK") for line in checked.stdout.splitlines()}
    assert rows_of(cell) == rows_of(verify_cell(tmp_path / "out" / "shards" / "fog" / "5"))
    with Image.open(tmp_path / "out" / "preview.png") as preview:
        assert min(preview.size) > 96


def test_shards_with_labels_take_no_room_again(cell: PublishedCell, tmp_path: Path):
    """They are the same files under a second name; those without labels are written anew."""
    assert published(cell.shard_set.folder, tmp_path / "labelled").exit_code == 0
    labelled = tmp_path / "labelled" / "shards" / "fog" / "5"

    assert published(labelled, tmp_path / "out").exit_code == 0

    again = tmp_path / "out" / "shards" / "fog" / "5"
    assert all(path.samefile(again / path.name) for path in labelled.iterdir())
    assert not (again / SAMPLES_FILE).samefile(cell.shard_set.folder / SAMPLES_FILE)


def test_the_title_is_the_one_that_was_given(cell: PublishedCell, tmp_path: Path):
    """It stands on the card and in Croissant; with --quiet nothing but what is wrong is said."""
    done = published(cell.shard_set.folder, tmp_path / "out", "--title", "Fog of mine", "--quiet")

    assert (0, "") == (done.exit_code, done.stdout)
    assert "Fog of mine" in (tmp_path / "out" / "README.md").read_text()
    assert "Fog of mine" in (tmp_path / "out" / "croissant.json").read_text()


def test_the_same_shards_give_the_same_bytes(cell: PublishedCell, tmp_path: Path):
    """Written anew at another time and on another day, and from shards with labels; the date is the data's or given."""
    shutil.copytree(cell.shard_set.folder, tmp_path / "copy")
    made_on = datetime(2026, 2, 3, 12, tzinfo=UTC).timestamp()
    for folder in (cell.shard_set.folder, tmp_path / "copy"):
        os.utime(folder / "manifest.json", (made_on, made_on))
    for shards, target in (
        (cell.shard_set.folder, "a/out"), (tmp_path / "copy", "b/out"), (tmp_path / "a/out/shards", "c/out"),
    ):  # fmt: skip
        (tmp_path / target).parent.mkdir()
        options = ("--published-on", "2026-02-03") if target == "c/out" else ()
        done = published(shards, tmp_path / target, *options)
        assert done.exit_code == 0, done.output

    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) > 8
    for other in ("b", "c"):
        assert files == sorted(path.relative_to(tmp_path / other) for path in (tmp_path / other).rglob("*")
                               if path.is_file())  # fmt: skip
        assert [] == [str(path) for path in files if (tmp_path / "a" / path).read_bytes() !=
                      (tmp_path / other / path).read_bytes()]  # fmt: skip
    assert "2026-02-03" == json.loads((tmp_path / "a/out/croissant.json").read_text())["datePublished"]


def test_nothing_is_written_over(cell: PublishedCell, tmp_path: Path):
    """A folder that exists, even an empty one, is refused by name."""
    (tmp_path / "out").mkdir()

    done = published(cell.shard_set.folder, tmp_path / "out")

    assert (1, []) == (done.exit_code, list((tmp_path / "out").iterdir()))
    assert "out exists already" in done.output


def test_a_cell_that_is_not_there_is_refused(cell: PublishedCell, tmp_path: Path):
    """And nothing is left behind."""
    done = published(cell.shard_set.folder, tmp_path / "out", "--cell", "snow|5")

    assert done.exit_code == 1
    assert "found no cell 'snow|5'" in done.output
    assert not (tmp_path / "out").exists()


def test_a_damaged_shard_is_refused(cell: PublishedCell):
    """One bit is enough, and the message names the shard."""
    damaged = flip_sample(cell.shard_set, 0)

    with pytest.raises(ManifestError, match=damaged.name):
        verify_cell(cell.shard_set.folder)


@pytest.mark.parametrize(
    ("name", "is_generated", "stated", "warns"),
    [
        ("imagenet_c", False, None, False),
        ("imagenet_a", False, None, True),
        ("tiny_imagenet_c", False, None, True),
        ("imagenet_c", True, None, True),
        ("imagenet_c", True, "CC BY 4.0", False),
    ],
)
def test_a_licence_that_does_not_allow_it_is_named(name: str, is_generated: bool, stated: str | None, warns: bool):  # noqa: FBT001
    """Neither a repository's licence, nor that of a published set for images made here, allows anything."""
    assert warns == bool(terms_of(shipped_set(name), is_generated=is_generated, stated=stated).warning)
