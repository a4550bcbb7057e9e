"""Folders of class folders become listings that do not change unless the files do."""

import os
from pathlib import Path

import pytest

from tta_pipeline.errors import ClassMapError, SourceError
from tta_pipeline.partitions import Cell
from tta_pipeline.sources.class_map import pin_class_map
from tta_pipeline.sources.folder_tree import FolderTree
from tta_pipeline_tests.conftest import write_tree

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

    with pytest.raises(SourceError, match=r"0 images under .*fog/5"):
        tree.listing(FOG)
    with pytest.raises(SourceError, match=r"snow/1 does not exist"):
        tree.listing(Cell(corruption="snow", severity=1))


def test_labels_come_from_the_whole_source_and_are_pinned(tree: FolderTree, tmp_path: Path):
    """Once pinned, no other set of folders changes a label."""
    path = tmp_path / "class_map.json"
    pinned = pin_class_map(path, tree.class_names)
    write_tree(tree.folder(FOG), classes={"a_new_one": 1})

    assert ("n01", "n02", "n03") == pinned.classes
    assert pinned == pin_class_map(path, tree.class_names)
    with pytest.raises(ClassMapError, match=r"a_new_one.*expected only its 3 classes"):
        pinned.require(tree.class_names(), where=tree.root)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1, 2]", b'{"classes": ["x"], "sha256": "0"}'])
def test_a_damaged_class_map_is_refused(tmp_path: Path, damage: bytes):
    """A class map that was edited or cut is named, and not replaced in silence."""
    path = tmp_path / "class_map.json"
    path.write_bytes(damage)

    with pytest.raises(ClassMapError, match=r"class_map\.json"):
        pin_class_map(path, lambda: ("n01",))
