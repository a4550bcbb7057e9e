"""A manifest is that of its folder's cell, benchmark and class map, and adoption believes no shard against it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import webdataset

from tta_pipeline.cli.index_everything import index_everything
from tta_pipeline.cli.shard_everything import ShardRequest, shard_everything
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.data.images.kinds import FolderSection
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ClassMapError, ManifestError
from tta_pipeline.evaluation.open_stream import open_stream
from tta_pipeline.shards.adoption import adopt
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.expected_shard_set import ExpectedShardSet, expected_for_cell
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.verification import find_shard_problems, verify_shard_sets
from tta_pipeline_tests.conftest import jpeg, write_tree
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, LIMITS, QUIET, flip_sample

OTHER = Cell(corruption="contrast", severity=5)


def shard(tree: Path, output: Path) -> list[ShardSet]:
    """Shard every cell of *tree*."""
    source = FolderSection(kind="folder", root=tree)
    order = ShardRequest(images=source, output=output, settings=LIMITS, dataset=shipped_sets()["imagenet_c"])
    return [step.done.shard_set for step in shard_everything(order, lambda *_: QUIET)]


def exchange(one: Path, other: Path) -> None:
    """Let two folders change their names."""
    one.rename(one.with_name("aside"))
    other.rename(one)
    one.with_name("aside").rename(other)


def problems(root: Path) -> list[str]:
    """Return what verification says of everything under *root*."""
    folders = sorted({path.parent for path in root.rglob("manifest.json")})
    return [problem for verdict in verify_shard_sets(folders, lambda *_: QUIET) for problem in verdict.problems]


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """A folder of two cells, sharded."""
    for number, cell in enumerate((CELL, OTHER)):
        write_tree(tmp_path / "tree" / cell.path, classes={"n01": 3, "n02": 3 + number})
    shard(tmp_path / "tree", tmp_path / "out")
    return tmp_path / "out"


def test_folders_that_were_exchanged_are_noticed_and_made_again(cells: Path, tmp_path: Path):
    """Each is sound in itself: verification, opening and evaluation tell by what is expected there."""
    assert not problems(cells)
    exchange(cells / CELL.path, cells / OTHER.path)

    assert 2 == len(problems(cells))
    assert any(str(cells / CELL.path) in problem and OTHER.key in problem for problem in problems(cells))
    expected = ExpectedShardSet(cell=CELL)
    with pytest.raises(ManifestError, match=r"contrast\|5.*fog\|5"):
        ShardSet.open(cells / CELL.path, expected)
    with pytest.raises(ManifestError, match=r"contrast\|5.*fog\|5"):
        open_stream([cells / CELL.path], belonging=[expected])
    assert find_shard_problems(ShardSet.open(cells / CELL.path), expected)

    shard(tmp_path / "tree", cells)

    assert not problems(cells)
    assert CELL == ShardSet.open(cells / CELL.path, expected).manifest.cell


def test_the_manifest_alone_of_another_cell_is_noticed(cells: Path, tmp_path: Path):
    """With its index, beside the right shards; it is made again from the shards that are there."""
    for name in ("manifest.json", "samples.parquet", "checksums.xxh64"):
        shutil.copy(cells / OTHER.path / name, cells / CELL.path / name)

    assert any("expected fog|5" in problem for problem in problems(cells))
    shard(tmp_path / "tree", cells)
    assert not problems(cells)


def test_another_class_map_than_the_pinned_one_is_noticed(cells: Path, tmp_path: Path):
    """Labels of another class map are not those of the benchmark, and its sets are made again."""
    (cells / "class_map.json").unlink()
    write_tree(tmp_path / "tree" / OTHER.path, classes={"a_class_before": 1})
    shutil.move(cells / CELL.path, tmp_path / "kept")
    shard(tmp_path / "tree", cells)
    shutil.rmtree(cells / CELL.path)
    shutil.move(tmp_path / "kept", cells / CELL.path)

    (problem,) = problems(cells)
    assert str(cells / CELL.path) in problem
    assert ClassMap(classes=("n01", "n02")).sha256 in problem
    shard(tmp_path / "tree", cells)
    assert not problems(cells)


def test_a_data_root_knows_cell_benchmark_and_class_map(cells: Path, tmp_path: Path):
    """Whatever lies above the folder of the cell."""
    locations = Locations(root=tmp_path / "data")
    shutil.copytree(cells / CELL.path, locations.shards("mine", CELL))
    shutil.copy(cells / "class_map.json", locations.class_map("mine"))
    pinned = ClassMap(classes=("n01", "n02")).sha256

    assert ExpectedShardSet(cell=CELL, benchmark="mine", class_map_sha256=pinned) == expected_for_cell(
        locations, "mine", CELL
    )
    (problem,) = problems(locations.root)
    assert "benchmark is out" in problem


def test_a_folder_of_ones_own_choice_is_no_cell(write: Callable, tmp_path: Path):
    """Clean images in `val/0`, and parts of a set, have names that say nothing of a corruption."""
    tree = tmp_path / "images"
    write_tree(tree, classes={"n01": 2})
    source, output = FolderSection(kind="folder", root=tree, class_dir_depth=0), tmp_path / "val" / "0"
    order = ShardRequest(images=source, output=output, settings=LIMITS, dataset=shipped_sets()["imagenet_c"])

    (step,) = shard_everything(order, lambda *_: QUIET)

    assert CLEAN == step.done.shard_set.manifest.cell
    assert not problems(tmp_path / "val")


def adopt_all(root: Path, class_map: ClassMap | None = None) -> list[bool]:
    """Adopt everything under *root*, and return which sets got a manifest."""
    return [step.done.was_built for step in index_everything(root, class_map, lambda *_: QUIET)]


def contents(root: Path) -> dict[Path, bytes]:
    """Return every file under *root*."""
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def write_theirs(folder: Path, *, num_shards: int, labels: list[str]) -> None:
    """Write shards of somebody else."""
    folder.mkdir(parents=True)
    for number in range(num_shards):
        with webdataset.TarWriter(str(folder / f"{number}.tar"), encoder=False) as writer:
            for sample, label in enumerate(labels):
                key = f"{label}{number}/{number:03d}{sample:04d}"
                writer.write({"__key__": key, "jpg": jpeg(10 * number + sample)})


@pytest.mark.parametrize("whose", ["ours", "theirs"])
@pytest.mark.parametrize("damage", ["flip", "remove", "add"])
def test_adoption_does_not_launder(shard_set: ShardSet, tmp_path: Path, whose: str, damage: str):
    """Over a set with a manifest every byte is hashed; if one is another, nothing changes and it is said what to do."""
    if whose == "theirs":
        write_theirs(tmp_path / "theirs", num_shards=3, labels=["a", "b"])
        shard_set = adopt(tmp_path / "theirs", CELL, QUIET, benchmark_name="theirs", class_map=None).shard_set
    folder = shard_set.folder
    assert [False] == adopt_all(folder)
    path = folder / shard_set.manifest.shards[0].name
    if damage == "flip":
        flip_sample(shard_set, 0)
    elif damage == "remove":
        path.unlink()
    else:
        shutil.copy(path, folder / "another.tar")
    before = contents(folder)

    with pytest.raises(ManifestError, match=r"tta-pipeline shards verify.*manifest\.json") as caught:
        adopt_all(folder)

    assert ("another.tar" if damage == "add" else path.name) in str(caught.value)
    assert before == contents(folder)
    assert problems(folder)


def test_a_missing_shard_ranks_no_class_anew(tmp_path: Path):
    """The classes of the shards that are left are not taken for those of the set."""
    folder = tmp_path / "fog" / "5"
    write_theirs(folder, num_shards=2, labels=["a", "b"])
    adopt_all(tmp_path)
    before = ShardSet.open(folder).manifest
    (folder / "0.tar").unlink()

    with pytest.raises(ManifestError, match=r"\b0\.tar"):
        adopt_all(tmp_path)
    with pytest.raises(ManifestError, match=r"\b0\.tar"):
        adopt(folder, CELL, QUIET, benchmark_name="theirs", class_map=None)

    assert before == ShardSet.open(folder).manifest
    assert ("a0", "a1", "b0", "b1") == before.classes


def test_shards_with_a_writers_record_alone_are_not_adopted(shard_set: ShardSet):
    """What their writer says of them counts, and is compared by another command."""
    (shard_set.folder / "manifest.json").unlink()
    flip_sample(shard_set, 0)

    with pytest.raises(ManifestError, match=r"writer\.json.*tta-pipeline shards make"):
        adopt_all(shard_set.folder)
    assert not (shard_set.folder / "manifest.json").exists()


def test_another_class_map_is_not_put_in_the_place_of_the_first(shard_set: ShardSet):
    """Unless a person takes the manifest away."""
    before = contents(shard_set.folder)
    other = ClassMap(classes=("other", *CLASS_MAP.classes))

    with pytest.raises(ManifestError, match=other.sha256):
        adopt_all(shard_set.folder, other)
    assert before == contents(shard_set.folder)


def test_a_person_can_adopt_what_was_replaced_on_purpose(tmp_path: Path):
    """As the error says: by removing manifest and index."""
    write_theirs(tmp_path / "theirs", num_shards=2, labels=["a", "b"])
    adopt_all(tmp_path / "theirs")
    (tmp_path / "theirs" / "0.tar").unlink()
    with pytest.raises(ManifestError) as caught:
        adopt_all(tmp_path / "theirs")

    for name in ("manifest.json", "samples.parquet"):
        assert name in str(caught.value)
        (tmp_path / "theirs" / name).unlink()

    assert [True] == adopt_all(tmp_path / "theirs")


def test_a_cell_that_came_later_gets_the_labels_of_the_others(tmp_path: Path):
    """It has no class of its own that would shift them: that is an error."""
    write_theirs(tmp_path / "fog" / "5", num_shards=1, labels=["a", "b"])
    adopt_all(tmp_path)
    write_theirs(tmp_path / "contrast" / "5", num_shards=1, labels=["b"])

    assert [True, False] == adopt_all(tmp_path)
    assert [1] == ShardSet.open(tmp_path / "contrast" / "5").index.labels.tolist()
    write_theirs(tmp_path / "snow" / "5", num_shards=1, labels=["Z"])
    with pytest.raises(ClassMapError, match="Z0"):
        adopt_all(tmp_path)


def test_a_damaged_index_is_made_again_of_shards_that_the_manifest_proves(tmp_path: Path):
    """Every shard hashes to what the manifest says, so nothing is believed that is not proven."""
    write_theirs(tmp_path / "theirs", num_shards=2, labels=["a", "b"])
    first = adopt(tmp_path / "theirs", CELL, QUIET, benchmark_name="theirs", class_map=None).shard_set
    (tmp_path / "theirs" / "samples.parquet").unlink()

    again = adopt(tmp_path / "theirs", CELL, QUIET, benchmark_name="theirs", class_map=None)

    assert again.was_built
    assert first.manifest == again.shard_set.manifest


def test_a_manifest_of_other_shards_is_not_believed_by_its_publication(shard_set: ShardSet):
    """What it says besides the shards counts too: it is made again if the writer says otherwise."""
    path = shard_set.folder / "manifest.json"
    good = path.read_bytes()
    path.write_text(json.dumps({**json.loads(good), "severity": 3}))

    publish_shard_set(shard_set.folder, CLASS_MAP, QUIET)

    assert good == path.read_bytes()
