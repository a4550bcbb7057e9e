"""Shard sets of others, which no conversion made, materialized by Dagster."""

import gc
import gzip
import json
from pathlib import Path

import dagster as dg
import pytest
import torch
import webdataset
from torchvision.models import ShuffleNet_V2_X0_5_Weights, shufflenet_v2_x0_5

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import LEAVES_RECORDS, Project, jpeg
from tta_pipeline_tests.defs.in_process import execute, what_failed

CELLS = tuple(Cell(corruption="fog", severity=severity) for severity in (1, 5))
RANGE = ("--partition-range", "fog|1...fog|5")
KEYS = tuple(cell.key for cell in CELLS)
LABELS = (7, 3, 999, 3)
FILE = """
title: Shards of others
subset: true
images: {{kind: shards, root: {root}/theirs, clean: {root}/theirs/val}}
class_map: {root}/names.json
corruptions: [fog]
severities: [1, 5]
image_size: 32
models:
  net: {{kind: torchvision, architecture: shufflenet_v2_x0_5, weights: IMAGENET1K_V1}}
experiments:
  source: {{model: net, method: source}}
"""
MANIFESTS = ("theirs/tar_shards", "theirs/shard_manifest")


def write_shards(root: Path) -> None:
    """Write two cells and clean images as webdataset's own writer does, with gaps in the numbering."""
    for folder in (*(root / "theirs" / cell.path for cell in CELLS), root / "theirs" / "val"):
        folder.mkdir(parents=True)
        for number in (0, 4):
            with webdataset.TarWriter(str(folder / f"{number:05d}.tar"), encoder=False) as writer:
                for sample, label in enumerate(LABELS):
                    key = f"{number}{sample}"
                    writer.write({"__key__": key, "jpg": jpeg(10 * number + sample), "cls": str(label).encode()})
    gc.collect()


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return time of change and bytes of every file under *root*."""
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*.tar")}


@pytest.fixture
def theirs(project: Project, tmp_path: Path) -> Project:
    """A project whose benchmark is shards of others, which lie outside of it."""
    write_shards(tmp_path)
    (tmp_path / "names.json").write_text(json.dumps([f"class {label}" for label in range(1000)]))
    project.add_benchmark("theirs", FILE.format(root=tmp_path))
    return project


@pytest.fixture
def _weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights in the place of the published ones, which cannot be downloaded here."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    weights = tmp_path / "torch" / "hub" / "checkpoints" / Path(ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1.url).name
    weights.parent.mkdir(parents=True)
    torch.manual_seed(0)
    torch.save(shufflenet_v2_x0_5().state_dict(), weights)


@pytest.mark.usefixtures("_weights")
def test_shards_of_others_are_adopted_and_evaluated(theirs: Project, tmp_path: Path):
    """One run over the range goes from their tars to results, and rewrites none of their bytes; another adds none."""
    before = contents(tmp_path / "theirs")

    finished = theirs.materialize("+group:theirs or +group:theirs_clean", *RANGE, *LEAVES_RECORDS)

    assert 0 == finished.returncode, finished.stderr[-5000:]
    assert before == contents(tmp_path / "theirs")
    for cell in (*CELLS, CLEAN):
        folder = theirs.locations.shards("theirs", cell)
        first = ShardSet.open(folder)
        assert all(path.is_symlink() for path in folder.glob("*.tar"))
        assert [*LABELS, *LABELS] == first.index.labels.tolist()
        assert "class 999" == first.manifest.classes[999]
    again = execute(theirs, MANIFESTS, KEYS, publishes=True)
    assert again.success, what_failed(again)
    with open_metrics(theirs.locations.metrics) as connection:
        sets = connection.execute(
            "SELECT source_kind, write_wall_s IS NULL, num_samples, num_shards FROM shard_sets"
        ).fetchall()
        evaluated = connection.execute(
            "SELECT experiment, corruption, severity, manifest_sha256 FROM evaluations WHERE counts"
        ).fetchall()
    assert [("shards", True, 8, 2)] * 3 == sets  # of two cells and the clean images: the second run added none
    assert {
        (
            "source",
            cell.corruption,
            cell.severity,
            ShardSet.open(theirs.locations.shards("theirs", cell)).manifest.sha256,
        )
        for cell in (*CELLS, CLEAN)
    } == set(evaluated)
    assert {
        "shards_match_manifest": {"SUCCEEDED"},
        "source_count_equals_manifest": {"SUCCEEDED"},
        "every_class_present": {"FAILED"},
    } == checks(theirs)


def checks(project: Project) -> dict[str, set[str]]:
    """Return the newest results, over the cells, of each check of the manifest."""
    names = ("shards_match_manifest", "source_count_equals_manifest", "every_class_present")
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        found = {}
        for name in names:
            key = dg.AssetCheckKey(dg.AssetKey(["theirs", "shard_manifest"]), name)
            history = instance.event_log_storage.get_asset_check_execution_history(key, limit=len(CELLS))
            found[name] = {record.status.value for record in history}
        return found


@pytest.mark.slow
@pytest.mark.usefixtures("_weights")
def test_a_shard_replaced_after_adoption_is_noticed_and_adopted_by_the_next_run(theirs: Project, tmp_path: Path):
    """Evaluation refuses it, the checks fail, and materializing again takes it as it is."""
    theirs.materialize(",".join(MANIFESTS), *RANGE)
    before = ShardSet.open(theirs.locations.shards("theirs", CELLS[0])).manifest
    with webdataset.TarWriter(str(tmp_path / "theirs" / "fog" / "1" / "00004.tar"), encoder=False) as writer:
        writer.write({"__key__": "another", "jpg": jpeg(77), "cls": b"12"})
    gc.collect()

    refused = theirs.materialize("theirs/evaluation/source", "--partition", "fog|1")
    again = theirs.materialize(",".join(MANIFESTS), "--partition", "fog|1")

    assert refused.returncode != 0
    assert "00004.tar" in refused.stderr
    assert not list((theirs.locations.root / "theirs" / "results").rglob("evaluations"))
    assert 0 == again.returncode, again.stderr[-3000:]
    after = ShardSet.open(theirs.locations.shards("theirs", CELLS[0])).manifest
    assert (8, 5) == (before.num_samples, after.num_samples)
    assert before.source.version != after.source.version


def test_shards_of_fewer_images_than_were_published_are_refused(theirs: Project):
    """By the manifest, and by an evaluation of what is linked already."""
    path = theirs.locations.benchmark_files / "theirs.yaml"
    path.write_text(path.read_text().replace("subset: true", ""))

    refused = [what_failed(execute(theirs, assets, KEYS)) for assets in (MANIFESTS, ["theirs/evaluation/source"])]

    assert all("has 8 images of fog|1; expected 50,000" in each for each in refused)


def test_a_damaged_shard_is_named_and_no_manifest_of_it_appears(theirs: Project, tmp_path: Path):
    """The run ends with the name of the cut shard; the cell before it stands."""
    path = tmp_path / "theirs" / "fog" / "5" / "00004.tar"
    path.write_bytes(path.read_bytes()[:-12000])

    finished = execute(theirs, MANIFESTS, KEYS)

    assert "fog/5/00004.tar" in what_failed(finished)
    assert 8 == ShardSet.open(theirs.locations.shards("theirs", CELLS[0])).manifest.num_samples
    assert not (theirs.locations.shards("theirs", CELLS[1]) / "manifest.json").exists()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("image_size: 32", "image_size: 32\nshards: {num_shards: 2}", "shards is given"),
        ("method: source}", "method: source, shards: small}", "unknown field shards"),
        ("image_size: 32", "image_size: 32\ntransforms: {small: {resize: 16}}", "unknown field transforms"),
        ("kind: shards", "kind: folder", "shards is missing"),
    ],
)
def test_a_file_that_asks_for_what_cannot_be_is_refused(theirs: Project, old: str, new: str, named: str):
    """The error names file, field, value and choices."""
    path = theirs.locations.benchmark_files / "theirs.yaml"
    assert load_benchmark(path).has_shards
    path.write_text(path.read_text().replace(old, new))

    with pytest.raises(BenchmarkFileError) as caught:
        load_benchmark(path)

    assert named in str(caught.value)
    assert str(path) in str(caught.value)


def test_one_of_two_sets_side_by_side_is_named_and_unpacked(theirs: Project, tmp_path: Path):
    """Without a choice nothing is linked; with one, its shards alone are, and compressed ones are unpacked."""
    folders = [tmp_path / "theirs" / cell.path for cell in CELLS]
    for folder in folders:
        (folder / "00000.tar").rename(folder / "train-00000.tar")
        (folder / "val-00000.tar.gz").write_bytes(gzip.compress((folder / "00004.tar").read_bytes()))
        (folder / "00004.tar").unlink()

    refused = execute(theirs, ["theirs/tar_shards"], KEYS)
    text = FILE.format(root=tmp_path).replace("kind: shards,", 'kind: shards, files: ["val-*.tar", "0*"],')
    theirs.add_benchmark("theirs", text)
    done = execute(theirs, MANIFESTS, KEYS)

    assert "shards with 2 different names: train-*.tar, val-*.tar" in what_failed(refused)
    assert done.success, what_failed(done)
    for cell, folder in zip(CELLS, folders, strict=True):
        linked = theirs.locations.shards("theirs", cell)
        assert list(LABELS) == ShardSet.open(linked).index.labels.tolist()
        assert gzip.decompress((folder / "val-00000.tar.gz").read_bytes()) == (linked / "val-00000.tar").read_bytes()
        assert ["train-00000.tar", "val-00000.tar.gz"] == sorted(path.name for path in folder.iterdir())
    assert {"every_class_present"} == {
        each.check_name for each in done.get_asset_check_evaluations() if not each.passed
    }
