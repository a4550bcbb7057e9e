"""Archives become cells in one pass, and nothing is unpacked."""

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tta_pipeline.errors import SourceError
from tta_pipeline.partitions import CLEAN, CORRUPTIONS, SEVERITIES, Cell, cells
from tta_pipeline.sources.archive import ArchiveSource
from tta_pipeline_tests.conftest import Project, jpeg

FOG, SNOW = Cell(corruption="fog", severity=5), Cell(corruption="snow", severity=1)
IMAGES = {
    f"{cell.path}/n0{c}/image_{i}.JPEG": jpeg(10 * c + i) for cell in (FOG, SNOW) for c in (1, 2) for i in range(3)
}


def archive(path: Path, members: Mapping[str, bytes | str], *, mode: str = "w") -> Path:
    """Write a tar whose members are files, or links where the body is text, and return its path."""
    with tarfile.open(path, mode) as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(body, str):
                info.type, info.linkname = (tarfile.LNKTYPE, body[1:]) if body[0] == "=" else (tarfile.SYMTYPE, body)
                tar.addfile(info)
            else:
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
    return path


def source(*paths: Path, **changes) -> ArchiveSource:
    """Return a source over *paths* with the two cells."""
    return ArchiveSource(
        **{"archives": paths, "cells": (FOG, SNOW), "spill_root": paths[0].parent / "spill", **changes}
    )


def contents(found: ArchiveSource, cell: Cell) -> dict[str, bytes]:
    """Return the images of a cell by name."""
    with found.prepared([cell]):
        return {image.name: image.read() for image in found.listing(cell).images}


def expected(cell: Cell) -> dict[str, bytes]:
    """Return the images of *cell* by name, as they went into the archive."""
    return {name.removeprefix(f"{cell.path}/"): data for name, data in IMAGES.items() if name.startswith(cell.path)}


@pytest.mark.parametrize("prefix", ["", "./", "Tiny-ImageNet-C/", "/"], ids=["bare", "dot", "folder", "root member"])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_cells_are_found_wherever_they_lie(tmp_path: Path, prefix: str, mode: str):
    """A folder around the corruptions, `./` and a root member are harmless, compressed or not."""
    members = {("" if prefix == "/" else prefix) + name: data for name, data in IMAGES.items()}
    path = tmp_path / "noise.tar"
    with tarfile.open(path, mode) as tar:
        root = tarfile.TarInfo(prefix or "./")
        root.type = tarfile.DIRTYPE
        tar.addfile(root)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

    assert expected(FOG) == contents(source(path), FOG)
    assert expected(SNOW) == contents(source(path), SNOW)


def test_what_gnu_tar_packs_is_found(tmp_path: Path):
    """An archive of a folder, as GNU tar makes it, is read, long names and all."""
    for name, data in {**IMAGES, f"{FOG.path}/n01/{'x' * 150}.JPEG": jpeg(5)}.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(data)
    subprocess.run(["tar", "cf", tmp_path / "a.tar", "-C", tmp_path / "tree", "."], check=True)

    assert 7 == len(contents(source(tmp_path / "a.tar"), FOG))


def test_links_resolve_inside_the_archive(tmp_path: Path):
    """A hard link and a symbolic link, to a file before, behind or in no cell, are that file under another name."""
    members = {
        **IMAGES,
        f"{FOG.path}/n01/hard.JPEG": f"={SNOW.path}/n01/image_0.JPEG",
        f"{FOG.path}/n01/soft.JPEG": "../n02/image_1.JPEG",
        f"{FOG.path}/n02/later.JPEG": "../../../shared/one.JPEG",
        "shared/one.JPEG": jpeg(77),
    }
    found = contents(source(archive(tmp_path / "a.tar", members)), FOG)

    assert IMAGES[f"{SNOW.path}/n01/image_0.JPEG"] == found["n01/hard.JPEG"]
    assert IMAGES[f"{FOG.path}/n02/image_1.JPEG"] == found["n01/soft.JPEG"]
    assert jpeg(77) == found["n02/later.JPEG"]


@pytest.mark.parametrize("link", ["../../../../etc/passwd", "/etc/passwd", "../n01/nowhere.JPEG"])
def test_a_link_that_leads_outside_or_nowhere_is_refused(tmp_path: Path, link: str):
    """The error names the link."""
    path = archive(tmp_path / "a.tar", {**IMAGES, f"{FOG.path}/n01/bad.JPEG": link})

    with pytest.raises(SourceError, match=r"a\.tar"):
        contents(source(path), FOG)


@pytest.mark.parametrize("name", ["../../etc/x.JPEG", "/etc/x.JPEG"])
def test_a_name_that_leads_outside_is_refused(tmp_path: Path, name: str):
    """Such an archive is not read on, though nothing is unpacked."""
    with pytest.raises(SourceError, match="outside|absolute"):  # noqa: RUF043 - a choice
        contents(source(archive(tmp_path / "a.tar", {**IMAGES, name: b"x"})), FOG)


def test_hidden_files_and_strays_are_counted(tmp_path: Path):
    """AppleDouble files are hidden, other files are strays, and neither is an image."""
    extra = {f"{FOG.path}/n01/._image_0.JPEG": b"x", f"{FOG.path}/n01/notes.txt": b"x", f"{FOG.path}/loose.JPEG": b"x"}
    found = source(archive(tmp_path / "a.tar", {**IMAGES, **extra}))

    with found.prepared([FOG]):
        listing = found.listing(FOG)
    assert (6, 1, 2) == (len(listing.images), listing.num_hidden, len(listing.strays))


def test_a_name_that_stands_twice_is_refused(tmp_path: Path):
    """Python's tarfile would read the last of the two in silence."""
    name = f"{FOG.path}/n01/image_0.JPEG"
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for data in (b"one", b"other"):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

    with pytest.raises(SourceError, match="stands twice"):
        contents(source(path), FOG)


def test_an_archive_cut_anywhere_is_refused(tmp_path: Path):
    """At every block edge the cut is found, never a smaller cell."""
    path = archive(tmp_path / "a.tar", IMAGES)
    data = path.read_bytes()
    end = data.rstrip(b"\0")
    for cut in range(0, len(end), 512):
        path.write_bytes(data[:cut])
        with pytest.raises(SourceError, match=r"a\.tar"):
            contents(source(path), FOG)


def test_the_md5_is_compared_while_reading(tmp_path: Path):
    """The right sum passes, another is an error with both, and without one none is asked for."""
    path = archive(tmp_path / "noise.tar", IMAGES)
    right = hashlib.md5(path.read_bytes()).hexdigest()

    assert expected(FOG) == contents(source(path, expected_md5={"noise.tar": right}), FOG)
    with pytest.raises(SourceError, match=rf"noise\.tar has md5 {right}; expected 0000"):
        contents(source(path, expected_md5={"noise.tar": "0" * 32}), FOG)


def test_a_class_archive_of_archives_is_read_through(tmp_path: Path):
    """ILSVRC2012's training archive holds an archive for each class; both levels are streamed."""
    inner = {name: archive(tmp_path / f"{name}.tar", {f"{name}_{i}.JPEG": jpeg(i) for i in range(3)}) for name in "ab"}
    outer = archive(tmp_path / "train.tar", {f"{name}.tar": path.read_bytes() for name, path in inner.items()})

    found = contents(source(outer, cells=(CLEAN,), layout="nested"), CLEAN)

    assert {f"{name}/{name}_{i}.JPEG": jpeg(i) for name in "ab" for i in range(3)} == found


def test_a_flat_archive_takes_its_classes_from_the_ground_truth(tmp_path: Path):
    """ILSVRC2012's validation archive has no folders; a file the list does not know is an error."""
    path = archive(tmp_path / "val.tar", {f"val_{i}.JPEG": jpeg(i) for i in range(3)})
    truth = {"val_0.JPEG": "b", "val_1.JPEG": "a", "val_2.JPEG": "b"}

    found = contents(source(path, cells=(CLEAN,), layout="flat", classes_by_file=truth), CLEAN)
    assert {"a/val_1.JPEG", "b/val_0.JPEG", "b/val_2.JPEG"} == set(found)
    short = {name: truth[name] for name in ("val_0.JPEG", "val_1.JPEG")}
    with pytest.raises(SourceError, match=r"val_2\.JPEG has no class"):
        contents(source(path, cells=(CLEAN,), layout="flat", classes_by_file=short), CLEAN)


@pytest.mark.parametrize("mode", ["w:xz", "w:bz2"])
def test_other_compressions_are_refused_by_name(tmp_path: Path, mode: str):
    """Small files that expand without bound are not opened on trust."""
    with pytest.raises(SourceError, match="is compressed by"):
        contents(source(archive(tmp_path / "a.tar", IMAGES, mode=mode)), FOG)


def test_a_cell_in_two_archives_and_a_cell_in_none_are_refused(tmp_path: Path):
    """Each cell lies in one archive; which one is found by reading them."""
    one, other = archive(tmp_path / "a.tar", IMAGES), archive(tmp_path / "b.tar", IMAGES)
    with pytest.raises(SourceError, match="expected each cell in one archive"):
        source(one, other).together(FOG, [FOG])
    empty = archive(tmp_path / "c.tar", {"readme.txt": b"x"})
    with pytest.raises(SourceError, match=r"0 images of snow\|1"):
        source(empty, empty.with_name("a.tar"), cells=(FOG,)).together(SNOW, [SNOW])


def test_95_cells_come_from_one_archive_without_other_files(project: Project, tmp_path: Path):
    """One archive in Zenodo's layout becomes 95 verified cells by the command line; no loose file is ever made."""
    members = {
        f"{cell.path}/n0{c}/ILSVRC2012_val_{i:08d}.JPEG": jpeg(i)
        for cell in cells(CORRUPTIONS, SEVERITIES)
        for c in (1, 2)
        for i in range(2)
    }
    path = archive(tmp_path / "all.tar", members)

    finished = project.run("tta-pipeline", "shard", str(path), str(tmp_path / "shards"), "--num-shards", "1")

    assert 0 == finished.returncode, finished.stderr
    found = [Path(folder) / name for folder, _, names in os.walk(tmp_path / "shards") for name in names]
    assert 95 == len([file for file in found if file.suffix == ".tar"])
    assert 95 * 5 + 1 == len(found), "a shard and four files of its manifest for each cell, and the class map"
    verified = project.run("tta-pipeline", "verify", str(tmp_path / "shards"))
    assert 0 == verified.returncode
    assert 95 == verified.stdout.count(": intact")


def test_spill_files_are_one_for_each_cell_and_gone_afterwards(tmp_path: Path):
    """While cells are prepared there is a file for each, and none when they are done or the reading failed."""
    found = source(archive(tmp_path / "a.tar", IMAGES))
    with found.prepared([FOG, SNOW]):
        assert 2 == len([path for path in (tmp_path / "spill").rglob("*") if path.is_file()])

    assert not [path for path in (tmp_path / "spill").rglob("*") if path.name != "archive_index.json"]
