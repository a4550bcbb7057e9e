"""Shards that somebody else made are linked to and adopted: nothing of them is rewritten, and no label is guessed."""

import json
import subprocess
from pathlib import Path

import pytest
import webdataset
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline.cli.index_everything import index_everything
from tta_pipeline.data.images.existing_shards import ExistingShards, StatedClass, classes_in_label_order
from tta_pipeline.data.images.shard_files import find_shard_files, link_shards, shards_version
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import Cell, grid_of_cells
from tta_pipeline.errors import ClassMapError, ImagesError, ManifestError, PipelineError
from tta_pipeline.shards.adoption import adopt
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.progress import Progress
from tta_pipeline_tests.conftest import jpeg, write_tree
from tta_pipeline_tests.data.labels.test_label_files import write_devkit
from tta_pipeline_tests.shards.cell import CELL, QUIET

CELLS = grid_of_cells(("fog", "contrast"), (1, 5))


def write_labelled(folder: Path, labels: list[str], *, numbers: tuple[int, ...] = (0, 2, 7), prefix: str = "") -> None:
    """Write shards as webdataset's own writer does: numbered keys and `.cls` members, with gaps in the numbering."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        with webdataset.TarWriter(str(folder / f"train-{number:06d}.tar"), encoder=False) as writer:
            for sample, label in enumerate(labels):
                key = f"{prefix}{number:03d}{sample:04d}"
                writer.write({"__key__": key, "jpg": jpeg(sample), "cls": label.encode()})


def write_foldered(folder: Path, classes: tuple[str, ...]) -> None:
    """Write a shard with class folders by the `tar` program, its folder members and `./` included."""
    write_tree(folder.parent / "loose", classes=dict.fromkeys(classes, 3))
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-cf", folder / "shard-3.tar", "-C", folder.parent / "loose", "."], check=True)


def adopted(folder: Path, class_map: ClassMap | None = None) -> ShardSet:
    """Return the shard set that adoption makes of *folder*."""
    return adopt(folder, CELL, QUIET, benchmark_name="theirs", class_map=class_map).shard_set


def test_the_classes_are_those_of_the_whole_source(tmp_path: Path):
    """A cell that lacks a class does not shift the labels of the others; cells that are not there have none."""
    write_foldered(tmp_path / "fog" / "1", ("n01", "n03"))
    write_foldered(tmp_path / "contrast" / "5", ("n02", "n03"))

    assert ("n01", "n02", "n03") == ExistingShards(root=tmp_path, cells=CELLS).class_names()


def test_adopting_several_cells_gives_each_the_same_labels(tmp_path: Path):
    """The command line too ranks the classes of all cells together."""
    write_foldered(tmp_path / "fog" / "1", ("n01", "n03"))
    write_foldered(tmp_path / "contrast" / "5", ("n02", "n03"))

    manifests = [step.done.shard_set.manifest for step in index_everything(tmp_path, None, lambda *_: QUIET)]

    assert [("n01", "n02", "n03")] * 2 == [manifest.classes for manifest in manifests]


def test_integers_are_labels_as_they_stand(tmp_path: Path):
    """Of the labels 0, 2 and 10, none is renumbered by rank or by the order of their digits."""
    write_labelled(tmp_path / "fog" / "5", ["10", "2", "0"])

    shard_set = adopted(tmp_path / "fog" / "5")

    assert [10, 2, 0] * 3 == shard_set.index.labels.tolist()
    assert shard_set.manifest.classes == ExistingShards(root=tmp_path, cells=(CELL,)).class_names()


def test_integers_are_named_by_the_class_map(tmp_path: Path):
    """With a class map, a label means the class at its position."""
    write_labelled(tmp_path, ["1", "0"])

    shard_set = adopted(tmp_path, ClassMap(classes=("zebra", "ant")))

    assert [1, 0] * 3 == shard_set.index.labels.tolist()
    assert ("zebra", "ant") == shard_set.manifest.classes


def test_a_label_and_a_folder_that_disagree_are_refused(tmp_path: Path):
    """Folders whose sorted names are other labels than the `.cls` members say would shift every label in silence."""
    write_labelled(tmp_path, ["1"], prefix="ant/")

    with pytest.raises(ClassMapError, match=r"ant/0000000.*\b1\b.*\bant\b"):
        adopted(tmp_path)
    assert [1] * 3 == adopted(tmp_path, ClassMap(classes=("zebra", "ant"))).index.labels.tolist()


def test_a_folder_around_everything_is_no_class(tmp_path: Path):
    """Keys such as `train/0001` have their class in the `.cls` member."""
    write_labelled(tmp_path, ["0", "1"], prefix="train/")

    assert [0, 1] * 3 == adopted(tmp_path).index.labels.tolist()


@pytest.mark.parametrize(("label", "named"), [("2", r"0000001\b.*\b2\b"), ("bear", "bear"), ("9" * 11, "9" * 11)])
def test_a_label_beyond_the_class_map_is_refused(tmp_path: Path, label: str, named: str):
    """Neither an unknown name nor a number without a class is given one."""
    write_labelled(tmp_path, ["0", label])

    with pytest.raises(ClassMapError, match=named):
        adopted(tmp_path, ClassMap(classes=("zebra", "ant")))


def test_a_number_that_is_no_label_is_refused_before_names_are_made_for_all_below_it(tmp_path: Path):
    """Without a class map, an absurd label does not become a list of as many classes."""
    write_labelled(tmp_path, ["99999999999"])

    with pytest.raises(ClassMapError, match="99999999999"):
        adopted(tmp_path)
    with pytest.raises(ClassMapError, match=r"\b100000\b"):
        classes_in_label_order([StatedClass("", 100_000)], where=None)


def test_names_and_bare_labels_are_not_mixed(tmp_path: Path):
    """Which name a bare label would mean is for a class map to say."""
    write_labelled(tmp_path, ["ant", "0"])

    with pytest.raises(ClassMapError, match=r"\bant\b.*\b0\b"):
        adopted(tmp_path)


def test_links_leave_the_shards_alone_and_are_made_once(tmp_path: Path):
    """The cell's folder holds links that lead to the tars wherever one stands, and hidden files are none."""
    write_labelled(tmp_path / "theirs", ["0", "1"])
    (tmp_path / "theirs" / "._train-000000.tar").write_bytes(b"AppleDouble")
    before = {path: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}

    assert link_shards(find_shard_files(tmp_path / "theirs"), tmp_path / "cell")
    assert not link_shards(find_shard_files(tmp_path / "theirs"), tmp_path / "cell")

    assert all(path.is_symlink() and path.readlink().is_absolute() for path in (tmp_path / "cell").iterdir())
    assert shards_version(find_shard_files(tmp_path / "theirs")) == shards_version(find_shard_files(tmp_path / "cell"))
    assert 6 == adopted(tmp_path / "cell").manifest.num_samples
    assert before == {path: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}


def test_another_shard_is_linked_to_and_changes_the_version(tmp_path: Path):
    """A shard that came later is not missed."""
    write_labelled(tmp_path / "theirs", ["0", "1"])
    link_shards(find_shard_files(tmp_path / "theirs"), tmp_path / "cell")
    before = shards_version(find_shard_files(tmp_path / "theirs"))

    write_labelled(tmp_path / "theirs", ["1"], numbers=(9,))

    assert before != shards_version(find_shard_files(tmp_path / "theirs"))
    assert link_shards(find_shard_files(tmp_path / "theirs"), tmp_path / "cell")
    assert 7 == adopted(tmp_path / "cell").manifest.num_samples


def test_a_shard_replaced_after_adoption_is_refused(tmp_path: Path):
    """A reader notices another file behind the link, of the same size too, and a link to nothing."""
    write_labelled(tmp_path / "theirs", ["0", "1"])
    link_shards(find_shard_files(tmp_path / "theirs"), tmp_path / "cell")
    shard_set = adopted(tmp_path / "cell")
    path = tmp_path / "theirs" / "train-000002.tar"
    data = bytearray(path.read_bytes())
    data[int(shard_set.index.offsets[0]) + 100] ^= 1
    path.write_bytes(data)

    with pytest.raises(ManifestError, match=r"train-000002\.tar.*\b[0-9a-f]{64}\b"):
        shard_set.require_intact()
    path.unlink()
    with pytest.raises(ManifestError, match=r"train-000002\.tar.*\b10240\b"):
        shard_set.require_intact()
    with pytest.raises(ImagesError, match=r"train-000002\.tar"):
        shards_version(find_shard_files(tmp_path / "cell"))


def test_shards_that_change_while_they_are_adopted_get_no_manifest(tmp_path: Path):
    """Of a shard that is replaced after it was read, no manifest says that it is still there."""
    write_labelled(tmp_path, ["0", "1"])

    class Replacing(Progress):
        def advance(self, *_: int) -> None:
            path = tmp_path / "train-000000.tar"
            path.write_bytes(path.read_bytes())

    with pytest.raises(ManifestError, match=str(tmp_path)):
        adopt(tmp_path, CELL, Replacing(print, what="", total=0), benchmark_name="theirs", class_map=None)
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("num_bytes", [100, 700, 3000])
def test_a_cut_shard_is_named_and_gets_no_manifest(tmp_path: Path, num_bytes: int):
    """Cut in a header, in an image or between members: neither classes nor manifest come from such a shard."""
    write_labelled(tmp_path / "fog" / "5", ["0", "1"])
    path = tmp_path / "fog" / "5" / "train-000002.tar"
    path.write_bytes(path.read_bytes()[:num_bytes])

    with pytest.raises(ManifestError, match=r"train-000002\.tar"):
        adopted(tmp_path / "fog" / "5")
    with pytest.raises(PipelineError, match=r"train-000002\.tar"):
        ExistingShards(root=tmp_path, cells=(CELL,)).class_names()
    assert not (tmp_path / "fog" / "5" / "manifest.json").exists()


def test_a_folder_without_shards_is_named(tmp_path: Path):
    """A wrong root ends with its path."""
    with pytest.raises(ImagesError, match=r"fog/5.*\*\.tar"):
        ExistingShards(root=tmp_path, cells=(CELL,)).version(Cell(corruption="fog", severity=5))


def test_numbers_that_count_from_1_are_no_labels(tmp_path: Path):
    """A class 0 without a sample is named, with what to do, and nothing is adopted, whoever reads the classes."""
    write_labelled(tmp_path / "fog" / "5", ["1", "2", "3"])
    for adopting in (
        lambda: [*index_everything(tmp_path, None, lambda *_: QUIET)],
        lambda: adopted(tmp_path / "fog" / "5"),
        lambda: ExistingShards(root=tmp_path, cells=(CELL,)).class_names(),
    ):
        with pytest.raises(ClassMapError, match=r"\b1\b.*\b3\b.*\b0\b.*--devkit"):
            adopting()
    assert not (tmp_path / "fog" / "5" / "manifest.json").exists()


def test_class_folders_at_two_depths_in_shards_are_refused(tmp_path: Path):
    """Thumbnails would be a class of their own, and move the labels of the others; `train` is around all of them."""
    write_foldered(tmp_path / "fog" / "5", ("train/n01", "train/n02"))
    assert ("n01", "n02") == ExistingShards(root=tmp_path, cells=(CELL,)).class_names()

    write_foldered(tmp_path / "fog" / "5", ("n01/a-small",))

    for adopting in (
        lambda: [*index_everything(tmp_path, None, lambda *_: QUIET)],
        lambda: adopted(tmp_path / "fog" / "5"),
    ):
        with pytest.raises(ImagesError, match="n01/a-small"):
            adopting()


def test_a_folder_in_the_folder_of_a_class_is_not_taken_for_another(tmp_path: Path):
    """The images in `n01/images` are not of a class `images`, though there is one."""
    write_foldered(tmp_path / "fog" / "5", ("n01/images", "n02/images"))

    with pytest.raises(ClassMapError, match=r"images in n0[12]\b"):
        adopted(tmp_path / "fog" / "5", ClassMap(classes=("images", "n01", "n02")))


@pytest.mark.parametrize("form", ["class_{}", "{} cat", "label: {}", "{}L"])
def test_names_with_numbers_that_sort_otherwise_as_text_need_a_class_map(tmp_path: Path, form: str):
    """Nobody knows whether class_10 has the label 2 or 10; with a class map it is known."""
    names = [form.format(number) for number in range(11)]
    write_labelled(tmp_path / "fog" / "5", names)

    with pytest.raises(ClassMapError) as caught:
        adopted(tmp_path / "fog" / "5")

    assert names[2] in str(caught.value)
    assert [10, 2] == adopted(tmp_path / "fog" / "5", ClassMap(classes=tuple(names))).index.labels[[10, 2]].tolist()


def test_adopt_with_the_devkit_takes_numbers_that_count_from_1(tmp_path: Path):
    """The error of the command line names the option, and the option gives each number its own class."""
    write_labelled(tmp_path / "fog" / "5", ["1", "2", "3"])
    devkit = write_devkit(tmp_path / "meta.mat", [(1, "n02", 0), (2, "n03", 0), (3, "n01", 0), (4, "n00", 3)])

    refused = CliRunner().invoke(main, ["shards", "index", str(tmp_path / "fog")])
    assert 1 == refused.exit_code
    assert "--devkit" in refused.stderr
    assert 0 == CliRunner().invoke(main, ["shards", "index", str(tmp_path / "fog"), "--devkit", str(devkit)]).exit_code

    shard_set = ShardSet.open(tmp_path / "fog" / "5")
    assert ("n01", "n02", "n03") == shard_set.manifest.classes
    assert [1, 2, 0] * 3 == shard_set.index.labels.tolist()


def test_a_number_beyond_the_class_map_names_the_devkit(tmp_path: Path):
    """1,000 numbers from 1 on and a class map of 1,000 classes: the last one has no class."""
    write_labelled(tmp_path, ["1", "2", "3"])

    with pytest.raises(ClassMapError, match=r"0000002\b.*\b3\b.*--devkit"):
        adopted(tmp_path, ClassMap(classes=("n01", "n02", "n03")))


def test_adopt_names_the_classes_without_a_sample(tmp_path: Path):
    """With a class map too, numbers that begin at 1 are seen: the line names class 0."""
    write_labelled(tmp_path / "fog" / "5", ["1", "2"])
    (tmp_path / "map.json").write_text('["ant", "bee", "cow", "dog"]')

    finished = CliRunner().invoke(
        main, ["shards", "index", str(tmp_path / "fog"), "--class-map", str(tmp_path / "map.json")]
    )
    told = CliRunner().invoke(main, ["shards", "index", str(tmp_path / "fog"), "--json"])

    assert "ant, dog" in finished.output
    assert ["ant", "dog"] == json.loads(told.stdout)[0]["missing_classes"]
