"""Folders of class folders become listings that do not change unless the files do."""

import os
from pathlib import Path

import pytest

from tta_pipeline.data.images.folder_tree import FolderTree, discover_tree
from tta_pipeline.data.labels.class_map import pin_class_map
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ClassMapError, ImagesError
from tta_pipeline_tests.conftest import jpeg, write_tree

FOG = Cell(corruption="fog", severity=5)


@pytest.fixture
def tree(tmp_path: Path) -> FolderTree:
    """Three classes with two images each under fog, severity 5."""
    write_tree(tmp_path / FOG.path, classes={"n01": 2, "n02": 2, "n03": 2})
    return FolderTree(root=tmp_path, cells=(FOG,))


def test_images_are_sorted_and_the_rest_is_counted(tree: FolderTree):
    """Hidden files and strays are passed over and reported."""
    folder = tree.folder(FOG)
    (folder / "n01" / "._image_000.JPEG").touch()
    (folder / "n01" / "notes.txt").touch()
    (folder / "thumbnail.png").touch()

    listing = tree.listing(FOG)

    assert [f"n0{c}/image_00{i}.JPEG" for c in (1, 2, 3) for i in (0, 1)] == [image.name for image in listing.images]
    assert 1 == listing.num_hidden
    assert {"notes.txt", "thumbnail.png"} == {path.name for path in listing.strays}


def test_the_version_changes_when_a_file_does(tree: FolderTree):
    """Listing twice gives one version; a touched, a grown and a removed file give another."""
    before = tree.listing(FOG).version
    assert before == tree.listing(FOG).version
    image = tree.folder(FOG) / "n01" / "image_000.JPEG"

    os.utime(image, ns=(1, 1))
    touched = tree.listing(FOG).version
    image.unlink()

    assert 3 == len({before, touched, tree.listing(FOG).version})


def test_an_empty_split_is_refused(tree: FolderTree):
    """No image under a cell, or no folder, is an error that names the folder."""
    for path in tree.folder(FOG).glob("*/*"):
        path.unlink()

    with pytest.raises(ImagesError, match=r"fog/5.*\.jpeg.*\.webp"):
        tree.listing(FOG)
    with pytest.raises(ImagesError, match=r"snow/1.*snow\|1"):
        tree.listing(Cell(corruption="snow", severity=1))


def test_labels_come_from_the_whole_source_and_are_pinned(tree: FolderTree, tmp_path: Path):
    """Once pinned, no other set of folders changes a label."""
    path = tmp_path / "class_map.json"
    pinned = pin_class_map(path, tree.class_names)
    write_tree(tree.folder(FOG), classes={"a_new_one": 1})

    assert ("n01", "n02", "n03") == pinned.classes
    assert pinned == pin_class_map(path, tree.class_names)
    with pytest.raises(ClassMapError, match=r"a_new_one.*n01, n02, n03"):
        pinned.require_known(tree.class_names(), where=tree.root)


def test_links_become_images_and_loops_are_not_followed(tree: FolderTree, tmp_path: Path):
    """A link to a file outside, a hard link and a linked folder are images; a link to the parent folder is nothing."""
    folder = tree.folder(FOG)
    outside = tmp_path / "outside.JPEG"
    outside.write_bytes(jpeg(7))
    (folder / "n01" / "linked.JPEG").symlink_to(outside)
    (folder / "n01" / "hard.JPEG").hardlink_to(outside)
    (folder / "n01" / "loop").symlink_to(folder)
    (folder / "n04").symlink_to(folder / "n03")

    names = [image.name for image in tree.listing(FOG).images]

    assert {"n01/linked.JPEG", "n01/hard.JPEG", "n04/image_000.JPEG"} <= set(names)
    assert 6 + 2 + 2 == len(names)


def test_a_link_to_nothing_is_named(tree: FolderTree):
    """A dangling link is an error, not one image less."""
    (tree.folder(FOG) / "n01" / "gone.JPEG").symlink_to("/nowhere/at_all.JPEG")

    with pytest.raises(ImagesError, match=r"n01/gone\.JPEG.*/nowhere/at_all\.JPEG"):
        tree.listing(FOG)


def test_a_class_has_an_image_in_some_cell(tree: FolderTree, tmp_path: Path):
    """Empty folders are none, nor is one that only leads back to the others; they are reported as strays."""
    for path in (tmp_path / "fog" / severity / name for severity in "15" for name in ("a", "n00/deep", "n04")):
        path.mkdir(parents=True)
    (tree.folder(FOG) / "back").mkdir()
    (tree.folder(FOG) / "back" / "up").symlink_to(tree.folder(FOG))
    (tmp_path / "fog" / "1" / "n04" / "1.png").write_bytes(jpeg(1))
    both = FolderTree(root=tmp_path, cells=(Cell(corruption="fog", severity=1), FOG))

    assert ("n01", "n02", "n03", "n04") == both.class_names()
    assert ("n01", "n02", "n03") == tree.class_names()
    assert ["a", "n00/deep", "n04"] == sorted(
        str(path.relative_to(tree.folder(FOG))) for path in tree.listing(FOG).strays
    )


@pytest.mark.parametrize("wrapped", ["val/n01/a.JPEG", "n01/images/a.JPEG", "test/n01/images/a.JPEG"])
def test_extra_levels_are_no_classes(tmp_path: Path, wrapped: str):
    """`val/` around and `images/` inside the class folders, as some copies have them, change no label."""
    path = tmp_path / FOG.path / wrapped
    path.parent.mkdir(parents=True)
    path.write_bytes(jpeg(1))
    tree = FolderTree(root=tmp_path, cells=(FOG,))

    assert ["n01/a.JPEG"] == [image.name for image in tree.listing(FOG).images]
    assert ("n01",) == tree.class_names()


@pytest.mark.parametrize(
    ("depth", "prefixes", "expected"),
    [
        (0, [], ["clean|0"]),
        (2, [], ["fog|1", "fog|5", "foggy|5"]),
        (2, ["fog"], ["fog|1", "fog|5"]),
        (2, ["fog/5", "./foggy/"], ["fog|5", "foggy|5"]),
    ],
)
def test_groups_are_found_at_their_depth(tmp_path: Path, depth: int, prefixes: list[str], expected: list[str]):
    """Prefixes match whole leading parts, so `fog` is not `foggy`."""
    for group in ("fog/1", "fog/5", "foggy/5"):
        write_tree(tmp_path / group, classes={"n01": 1})

    assert sorted(expected) == sorted(
        cell.key for cell in discover_tree(tmp_path, class_dir_depth=depth, prefixes=prefixes).cells
    )


def test_archives_unpacked_in_folders_of_their_own_are_found(tmp_path: Path):
    """With a level of groups, corruption and severity are the last two; the same cell twice is refused."""
    write_tree(tmp_path / "weather" / "fog" / "5", classes={"n01": 2})
    tree = discover_tree(tmp_path, class_dir_depth=3)

    assert (FOG,) == tree.cells
    assert 2 == len(tree.listing(FOG).images)
    write_tree(tmp_path / "again" / "fog" / "5", classes={"n01": 2})
    with pytest.raises(ImagesError, match=r"weather/fog/5.*again/fog/5.*fog\|5"):
        discover_tree(tmp_path, class_dir_depth=3)


def test_a_prefix_without_a_match_is_refused(tmp_path: Path):
    """The error says what was looked for and where."""
    write_tree(tmp_path / "fog" / "5", classes={"n01": 1})

    with pytest.raises(ImagesError, match=r"snow.*--class-dir-depth.*--only"):
        discover_tree(tmp_path, class_dir_depth=2, prefixes=["snow"])
