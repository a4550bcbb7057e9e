"""Archives become cells in one pass, and nothing is unpacked."""

import gzip
import hashlib
import io
import os
import random
import re
import signal
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tta_pipeline.cli import main
from tta_pipeline.data.images import archived_images as archive_module
from tta_pipeline.data.images.archived_images import ArchivedImages
from tta_pipeline.data.images.listing import read_ahead
from tta_pipeline.domain.cells import CLEAN, Cell, grid_of_cells
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.progress import Progress
from tta_pipeline_tests.conftest import jpeg, start_python
from tta_pipeline_tests.imagenet_c import CORRUPTIONS, SEVERITIES

FOG, SNOW = Cell(corruption="fog", severity=5), Cell(corruption="snow", severity=1)
IMAGES = {
    f"{cell.path}/n0{c}/image_{i}.JPEG": jpeg(10 * c + i) for cell in (FOG, SNOW) for c in (1, 2) for i in range(3)
}
KILLED = """
import sys, time
from pathlib import Path
from tta_pipeline.domain.cells import Cell
from tta_pipeline.data.images.archived_images import ArchivedImages
fog = Cell(corruption="fog", severity=5)
source = ArchivedImages(archives=(Path(sys.argv[1]),), cells=(fog,), spill_root=Path(sys.argv[2]))
with source.prepared([fog]):
    print("prepared", flush=True)
    time.sleep(60)
"""


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


def source(*paths: Path, **changes) -> ArchivedImages:
    """Return a source over *paths* with the two cells."""
    return ArchivedImages(
        **{"archives": paths, "cells": (FOG, SNOW), "spill_root": paths[0].parent / "spill", **changes}
    )


def contents(found: ArchivedImages, cell: Cell) -> dict[str, bytes]:
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


@pytest.mark.parametrize(
    ("link", "named"),
    [
        ("../../../../etc/passwd", "'../../../../etc/passwd'"),
        ("/etc/passwd", "'/etc/passwd'"),
        ("=../etc/passwd", "'../etc/passwd'"),
        ("../n01/nowhere.JPEG", "fog/5/n01/nowhere.JPEG"),
        ("../n01", "fog/5/n01"),
        ("bad.JPEG", "fog/5/n01/bad.JPEG"),
    ],
)
def test_a_link_that_leads_outside_or_nowhere_is_refused(tmp_path: Path, link: str, named: str):
    """The error names the link and what it leads to, be that a folder, itself or nothing."""
    path = archive(tmp_path / "a.tar", {**IMAGES, f"{FOG.path}/n01/bad.JPEG": link})

    with pytest.raises(ImagesError, match=rf"a\.tar.*fog/5/n01/bad\.JPEG.*{re.escape(named)}"):
        contents(source(path), FOG)


@pytest.mark.parametrize("name", ["../../etc/x.JPEG", "/etc/x.JPEG", "fog/5/../../x.JPEG", f"{FOG.path}/n01/.."])
def test_a_name_that_leads_outside_is_refused(tmp_path: Path, name: str):
    """Such an archive is not read on, though nothing is unpacked, not even if the name comes back inside."""
    with pytest.raises(ImagesError, match=re.escape(f"'{name}'")):
        contents(source(archive(tmp_path / "a.tar", {**IMAGES, name: b"x"})), FOG)


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_what_is_neither_file_nor_link_nor_folder_is_refused(tmp_path: Path, kind: bytes):
    """A device or a pipe has no place among images."""
    path = archive(tmp_path / "a.tar", IMAGES)
    with tarfile.open(path, "a") as tar:
        info = tarfile.TarInfo(f"{FOG.path}/n01/device.JPEG")
        info.type = kind
        tar.addfile(info)

    with pytest.raises(ImagesError, match=rf"n01/device\.JPEG.*{kind!r}"):
        contents(source(path), FOG)


def test_hidden_files_and_strays_are_counted(tmp_path: Path):
    """AppleDouble files are hidden, other files are strays, and neither is an image."""
    extra = {f"{FOG.path}/n01/._image_0.JPEG": b"x", f"{FOG.path}/n01/notes.txt": b"x", f"{FOG.path}/loose.JPEG": b"x"}
    found = source(archive(tmp_path / "a.tar", {**IMAGES, **extra}))

    with found.prepared([FOG]):
        listing = found.listing(FOG)
    assert (6, 1, 2) == (len(listing.images), listing.num_hidden, len(listing.strays))


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_format_are_read(tmp_path: Path, tar_format: int):
    """A name, or the name a link leads to, may be as long as the format allows."""
    folder = f"{'around/' * 12}{FOG.path}/n01"
    target = f"{folder}/{'y' * 90}.JPEG"
    is_short = tar_format == tarfile.USTAR_FORMAT  # which has no room for a long link
    with tarfile.open(tmp_path / "a.tar", "w", format=tar_format) as tar:
        info = tarfile.TarInfo(target)
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
        info = tarfile.TarInfo(f"{folder}/{'z' * 90}.JPEG")
        info.type, info.linkname = (tarfile.SYMTYPE, f"{'y' * 90}.JPEG") if is_short else (tarfile.LNKTYPE, target)
        tar.addfile(info)

    assert {f"n01/{letter * 90}.JPEG": b"abc" for letter in "yz"} == contents(source(tmp_path / "a.tar"), FOG)


def test_folders_around_class_folders_are_looked_through(tmp_path: Path):
    """Class is the last folder that is no wrapper, and the cell the last pair that is one, hidden folders around it."""
    members = {
        "fog/5/.backup/snow/1/val/n01/images/a.JPEG": b"1",
        ".cache/snow/1/n02/train/b.JPEG": b"2",
        "snow/1/n03/.thumbnails/c.JPEG": b"3",
        "fog/1/n04/no_such_cell.JPEG": b"4",
    }
    found = source(archive(tmp_path / "a.tar", members))

    assert {"n01/a.JPEG": b"1", "n02/b.JPEG": b"2"} == contents(found, SNOW)
    with found.prepared([SNOW]):
        assert 1 == found.listing(SNOW).num_hidden


def test_one_name_in_two_wrappers_is_refused(tmp_path: Path):
    """Two files that would be one sample are told, though their names in the archive differ."""
    members = {f"{FOG.path}/n01/a.JPEG": b"1", f"{FOG.path}/n01/images/a.JPEG": b"2"}

    with pytest.raises(ImagesError, match=r"n01/a\.JPEG.*fog\|5"):
        contents(source(archive(tmp_path / "a.tar", members)), FOG)


def test_a_name_that_stands_twice_is_refused(tmp_path: Path):
    """Python's tarfile would read the last of the two in silence."""
    name = f"{FOG.path}/n01/image_0.JPEG"
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for data in (b"one", b"other"):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

    with pytest.raises(ImagesError, match=r"n01/image_0\.JPEG.*fog\|5"):
        contents(source(path), FOG)


def test_an_archive_cut_anywhere_is_refused(tmp_path: Path):
    """At every block edge the cut is found, also inside the end mark, never a smaller cell; what fills up may lack."""
    path = archive(tmp_path / "a.tar", {name: data[:700] for name, data in IMAGES.items()})
    data = path.read_bytes()
    end = len(IMAGES) * 3 * 512 + 2 * 512
    for cut in range(0, end, 512):
        path.write_bytes(data[:cut])
        with pytest.raises(ImagesError, match=r"a\.tar.*\b\d+\b"):
            contents(source(path), FOG)
    path.write_bytes(data[:end])
    assert 6 == len(contents(source(path), FOG))


@pytest.mark.parametrize("cell", [FOG, SNOW])
def test_a_cut_or_damaged_gzip_is_refused(tmp_path: Path, cell: Cell):
    """Wherever the compressed bytes end, and when its sum is wrong, though the tar within is whole."""
    members = {name: random.Random(name).randbytes(9000) for name in IMAGES}
    path = archive(tmp_path / "a.tar.gz", members, mode="w:gz")
    data = path.read_bytes()
    for damaged in [data[:cut] for cut in range(0, len(data), 997)] + [data[:-8] + b"\1\2\3\4" + data[-4:]]:
        path.write_bytes(damaged)
        with pytest.raises(ImagesError, match=r"a\.tar\.gz.*\b\d+\b"):
            contents(source(path), cell)


@pytest.mark.parametrize("index", [0, 3, 11])
@pytest.mark.parametrize(
    ("damage", "found"),
    [(bytes(512), ""), (b"x" * 512, "b'xxxxxxxx'")],
    ids=["zeros", "letters"],
)
def test_a_damaged_header_does_not_look_like_the_end(tmp_path: Path, index: int, damage: bytes, found: str):
    """A hole in a download is no end mark, as it is for Python's tarfile."""
    path = archive(tmp_path / "a.tar", {name: data[:700] for name, data in IMAGES.items()})
    start = index * 3 * 512
    data = path.read_bytes()
    path.write_bytes(data[:start] + damage + data[start + 512 :])

    with pytest.raises(ImagesError, match=rf"a\.tar.*\b{start}\b.*{found}"):
        contents(source(path), FOG)


def test_a_download_with_room_kept_for_it_is_refused(tmp_path: Path):
    """A file that was made as long as it will be ends with more zeros than any tar writes."""
    path = archive(tmp_path / "a.tar", IMAGES)
    os.truncate(path, path.stat().st_size + 2**21)

    with pytest.raises(ImagesError, match=rf"a\.tar.*\b{2**20}\b"):
        contents(source(path), FOG)


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (2**33 - 1, r"n01/huge\.JPEG.*\b8589934591\b.*\b33554432\b"),
        (2**40, r"n01/huge\.JPEG.*\b1099511627776\b.*\b33554432\b"),
        (2**70, r"\b512\b.*\b1180591620717411303424\b"),
    ],
)
@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_what_a_header_claims_is_not_asked_of_the_memory(tmp_path: Path, name: str, size: int, found: str):
    """No image is that large; where such a member is not wanted it is passed over, and the end is missing."""
    for cell in (FOG, SNOW):
        info = tarfile.TarInfo(f"{cell.path}/n01/huge.JPEG")
        info.size = size
        data = info.tobuf(tarfile.GNU_FORMAT) + bytes(5000)
        (tmp_path / f"{cell.corruption}-{name}").write_bytes(gzip.compress(data) if name.endswith("gz") else data)

    with pytest.raises(ImagesError, match=found):
        contents(source(tmp_path / f"fog-{name}"), FOG)
    with pytest.raises(ImagesError, match=rf"snow-{name}.*\b\d+\b") as raised:
        contents(source(tmp_path / f"snow-{name}"), FOG)
    assert "huge.JPEG" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html><html>" * 50])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes):
    """An empty file, a page that says the download failed and a missing file are told by name."""
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(ImagesError, match=r"a\.tar.*\b0\b"):
        contents(source(tmp_path / "a.tar"), FOG)
    with pytest.raises(ImagesError, match=r"b\.tar"):
        contents(source(tmp_path / "b.tar"), FOG)


def test_the_md5_is_compared_while_reading(tmp_path: Path):
    """The right sum passes, another is an error with both, and without one none is asked for."""
    path = archive(tmp_path / "noise.tar", IMAGES)
    right = hashlib.md5(path.read_bytes()).hexdigest()

    assert expected(FOG) == contents(source(path, expected_md5={"noise.tar": right}), FOG)
    with (
        pytest.raises(ImagesError, match=rf"noise\.tar.*{right}.*0{{32}}"),
        source(path, expected_md5={"noise.tar": "0" * 32}).prepared([FOG]),
    ):
        pytest.fail("the block must not begin")


def test_the_md5_of_a_gzip_is_that_of_the_file(tmp_path: Path):
    """Compressed bytes are hashed, to the last one, whatever of the archive is wanted."""
    members = {**IMAGES, f"{SNOW.path}/n01/large.JPEG": os.urandom(2**21)}
    path = archive(tmp_path / "a.tgz", members, mode="w:gz")
    right = hashlib.md5(path.read_bytes()).hexdigest()

    assert expected(FOG) == contents(source(path, expected_md5={"a.tgz": right.upper()}), FOG)
    with pytest.raises(ImagesError, match=right):
        contents(source(path, expected_md5={"a.tgz": "f" * 32}), FOG)


def test_a_class_archive_of_archives_is_read_through(tmp_path: Path):
    """ILSVRC2012's training archive holds an archive for each class; both levels are streamed."""
    inner = {name: archive(tmp_path / f"{name}.tar", {f"{name}_{i}.JPEG": jpeg(i) for i in range(3)}) for name in "ab"}
    outer = archive(tmp_path / "train.tar", {f"{name}.tar": path.read_bytes() for name, path in inner.items()})

    found = contents(source(outer, cells=(CLEAN,), layout="nested"), CLEAN)

    assert {f"{name}/{name}_{i}.JPEG": jpeg(i) for name in "ab" for i in range(3)} == found


def test_what_else_lies_in_an_archive_of_archives_is_counted(tmp_path: Path):
    """Hidden files and files beside the inner archives are no archives; a damaged inner one is told with both names."""
    inner = archive(tmp_path / "a.tar", {"./a_0.JPEG": b"0", "a_1.JPEG": "a_0.JPEG"}).read_bytes()
    outer = archive(tmp_path / "train.tar", {"._a.tar": b"x", "a.tar": inner, "readme.txt": b"x"})
    found = source(outer, cells=(CLEAN,), layout="nested")

    assert {"a/a_0.JPEG": b"0", "a/a_1.JPEG": b"0"} == contents(found, CLEAN)
    with found.prepared([CLEAN]):
        assert (1, 1) == (found.listing(CLEAN).num_hidden, len(found.listing(CLEAN).strays))
    archive(outer, {"a.tar": inner[:1024]})
    with pytest.raises(ImagesError, match=r"train\.tar/a\.tar.*\b1024\b"):
        contents(source(outer, cells=(CLEAN,), layout="nested"), CLEAN)


@pytest.mark.parametrize("name", ["b.tar.gz", "b.TAR", "b.tgz", "b.tar.zst"])
def test_an_inner_archive_in_another_form_is_refused(tmp_path: Path, name: str):
    """Its class would be missing, and the labels of those behind it would move."""
    inner = archive(tmp_path / "a.tar", {"a_0.JPEG": b"0"}).read_bytes()
    outer = archive(tmp_path / "train.tar", {"a.tar": inner, name: inner, "c.tar": inner})

    with pytest.raises(ImagesError, match=rf"train\.tar: {re.escape(name)}"):
        contents(source(outer, cells=(CLEAN,), layout="nested"), CLEAN)


def test_a_compressed_inner_archive_called_tar_is_named(tmp_path: Path):
    """With its compression: only a plain tar is read inside another."""
    inner = archive(tmp_path / "inner.tar", {"a.JPEG": jpeg(0)}, mode="w:gz").read_bytes()
    outer = archive(tmp_path / "train.tar", {"n01.tar": inner + bytes(512)})
    found = source(outer, cells=(CLEAN,), layout="nested")

    with pytest.raises(ImagesError) as refused:
        found.class_names()

    assert "n01.tar is compressed with gzip" in str(refused.value)


def test_inner_archives_are_not_held(tmp_path: Path):
    """A class of 48 MiB is read with less memory than that."""
    inner = archive(tmp_path / "a.tar", {f"a_{i}.JPEG": bytes(2**20) for i in range(48)})
    outer = archive(tmp_path / "train.tar", {"a.tar": inner.read_bytes()})
    found = source(outer, cells=(CLEAN,), layout="nested")
    tracemalloc.start()
    try:
        with found.prepared([CLEAN]):
            assert 48 == len(found.listing(CLEAN).images)
        assert tracemalloc.get_traced_memory()[1] < 24 * 2**20
    finally:
        tracemalloc.stop()


def test_a_flat_archive_takes_its_classes_from_the_ground_truth(tmp_path: Path):
    """ILSVRC2012's validation archive has no folders; a file the list does not know is an error."""
    path = archive(tmp_path / "val.tar", {f"val_{i}.JPEG": jpeg(i) for i in range(3)})
    truth = {"val_0.JPEG": "b", "val_1.JPEG": "a", "val_2.JPEG": "b"}

    found = contents(source(path, cells=(CLEAN,), layout="flat", classes_by_file=truth), CLEAN)
    assert {"a/val_1.JPEG", "b/val_0.JPEG", "b/val_2.JPEG"} == set(found)
    short = {name: truth[name] for name in ("val_0.JPEG", "val_1.JPEG")}
    with pytest.raises(ImagesError, match=r"val_2\.JPEG"):
        contents(source(path, cells=(CLEAN,), layout="flat", classes_by_file=short), CLEAN)


def test_a_flat_archive_may_hold_what_has_no_class(tmp_path: Path):
    """Hidden files and files that are no images are not looked for in the ground truth."""
    path = archive(tmp_path / "val.tar", {"./._val_0.JPEG": b"x", "./val_0.JPEG": b"0", "./readme.txt": b"x"})
    found = source(path, cells=(CLEAN,), layout="flat", classes_by_file={"val_0.JPEG": "b"})

    assert {"b/val_0.JPEG": b"0"} == contents(found, CLEAN)
    assert ("b",) == source(path, cells=(CLEAN,), layout="flat", classes_by_file={"val_0.JPEG": "b"}).class_names()


@pytest.mark.parametrize(("mode", "name"), [("w:xz", "xz"), ("w:bz2", "bzip2")])
def test_other_compressions_are_refused_by_name(tmp_path: Path, mode: str, name: str):
    """Small files that expand without bound are not opened on trust."""
    with pytest.raises(ImagesError, match=rf"a\.tar.*\b{name}\b"):
        contents(source(archive(tmp_path / "a.tar", IMAGES, mode=mode)), FOG)


def test_a_cell_in_two_archives_and_a_cell_in_none_are_refused(tmp_path: Path):
    """Each cell lies in one archive; which one is found by reading them."""
    one, other = archive(tmp_path / "a.tar", IMAGES), archive(tmp_path / "b.tar", IMAGES)
    for use in (lambda: source(one, other).together(FOG, [FOG]), lambda: contents(source(one, other), FOG)):
        with pytest.raises(ImagesError, match=r"fog\|5.*a\.tar.*b\.tar"):
            use()
    empty = archive(tmp_path / "c.tar", {"readme.txt": b"x"})
    with pytest.raises(ImagesError, match=r"snow\|1.*c\.tar.*a\.tar"):
        source(empty, empty.with_name("a.tar"), cells=(FOG,)).together(SNOW, [SNOW])


def test_all_cells_come_from_one_archive_without_other_files(tmp_path: Path):
    """One archive in Zenodo's layout becomes 4 verified cells by the command line; no loose file is ever made."""
    members = {
        f"{cell.path}/n0{c}/ILSVRC2012_val_{i:08d}.JPEG": jpeg(i)
        for cell in grid_of_cells(CORRUPTIONS[:2], SEVERITIES[:2])
        for c in (1, 2)
        for i in range(2)
    }
    path = archive(tmp_path / "all.tar", members)

    finished = shards("make", str(path), str(tmp_path / "shards"), "--num-shards", "1", "--jobs", "1")

    assert 0 == finished.exit_code, finished.stderr
    found = [Path(folder) / name for folder, _, names in os.walk(tmp_path / "shards") for name in names]
    assert 4 == len([file for file in found if file.suffix == ".tar"])
    assert 4 * 6 + 1 == len(found), "a shard and five files of its manifest for each cell, and the class map"
    verified = shards("verify", str(tmp_path / "shards"))
    assert 0 == verified.exit_code
    assert 4 == verified.stdout.count(": intact")


def shards(*arguments: str) -> Result:
    """Run a verb of shards."""
    return CliRunner().invoke(main, ["shards", *arguments])


@pytest.mark.parametrize(("mode", "num_files"), [("w", 0), ("w:gz", 95)])
def test_95_cells_are_prepared_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, num_files: int):
    """The archive is opened once and nothing is loose; only of a compressed one there is a file a cell meanwhile."""
    wanted = grid_of_cells(CORRUPTIONS, SEVERITIES)
    members = {f"{cell.path}/n0{c}/{i}.JPEG": f"{cell.key}{c}{i}".encode() for i in (0, 1) for c in (1, 2)
               for cell in wanted}  # fmt: skip
    found = source(archive(tmp_path / "all.tar", members, mode=mode), cells=wanted)
    readings = []
    monkeypatch.setattr(
        archive_module, "opened_archive", lambda path, whole=archive_module.opened_archive, **settings: (
            readings.append(path) or whole(path, **settings)
        )
    )  # fmt: skip
    with found.prepared(wanted):
        there = list((tmp_path / "spill").rglob("*"))
        assert (1, num_files) == (sum(path.is_dir() for path in there), sum(path.is_file() for path in there))
        assert wanted == found.find_cells()
        assert ("n01", "n02") == found.class_names()
        for cell in wanted:
            assert [f"{cell.key}{c}{i}".encode() for c in (1, 2) for i in (0, 1)] == [
                image.read() for image in found.listing(cell).images
            ]
    assert 1 == len(readings)
    assert not list((tmp_path / "spill").iterdir())


def test_an_archive_that_changes_after_its_pass_is_refused(tmp_path: Path):
    """What was listed is read where it lies, so another file in its place must not pass for it."""
    path = archive(tmp_path / "a.tar", IMAGES)
    found = source(path)
    with found.prepared([FOG]):
        (image, *_) = found.listing(FOG).images
        os.utime(path, ns=(1, 1))
        with pytest.raises(ImagesError, match=r"a\.tar.*n01/image_0\.JPEG.*\b931\b"):
            image.read()


def test_a_listing_is_there_only_while_it_is_prepared(tmp_path: Path):
    """Before, after and beside other cells an error says to prepare it; a cell that is nowhere is another error."""
    fog = Cell(corruption="fog", severity=1)
    found = source(archive(tmp_path / "a.tar", IMAGES), cells=(FOG, SNOW, fog))
    with pytest.raises(ImagesError, match=r"fog\|5.*prepared\(cells\)"):
        found.listing(FOG)
    with found.prepared([FOG, fog]):
        with found.prepared([FOG]):
            assert found.listing(FOG).images
        assert found.listing(FOG).images, "the inner block did not prepare it, and does not end it"
        with pytest.raises(ImagesError, match=r"snow\|1.*fog\|5, fog\|1.*prepared\(cells\)"):
            found.listing(SNOW)
        with pytest.raises(ImagesError, match=r"fog\|1.*a\.tar.*<corruption>"):
            found.listing(fog)
    with pytest.raises(ImagesError, match=r"fog\|5.*prepared\(cells\)"):
        found.listing(FOG)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_classes_are_those_of_all_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str):
    """Whatever is prepared, labels come from the whole source; what was found is not looked for again."""
    members = {f"{FOG.path}/n02/a.JPEG": b"x", f"{SNOW.path}/n01/a.JPEG": b"x", f"{SNOW.path}/n09/note.txt": b"x"}
    one = archive(tmp_path / "one.tar", members, mode=mode)
    found = source(one)
    with found.prepared([FOG]):
        assert ("n01", "n02") == found.class_names()
        assert (FOG, SNOW) == found.find_cells()
    assert (FOG, SNOW) == source(one, cells=(FOG, Cell(corruption="frost", severity=5), SNOW)).find_cells()
    monkeypatch.setattr(archive_module, "opened_archive", None)
    assert ("n01", "n02") == source(one).class_names()


@pytest.mark.parametrize(
    ("found", "edited"), [(b'"n01",', b""), (b'"n02"', b'"a02"'), (b'"cells": [', b'"cells": [3,'), (b"{", b"[")]
)
def test_an_index_that_was_edited_is_made_anew(tmp_path: Path, found: bytes, edited: bytes):
    """What is kept of an archive's classes decides labels: one taken out, another name, or nonsense is not believed."""
    path = archive(tmp_path / "a.tar", IMAGES)
    assert ("n01", "n02") == source(path).class_names()
    index = tmp_path / "spill" / "archive_index.json"
    before = index.read_bytes()
    index.write_bytes(before.replace(found, edited, 1))

    assert ("n01", "n02") == source(path).class_names()
    assert before == index.read_bytes()


def test_cells_of_two_archives_are_prepared_together(tmp_path: Path):
    """Each archive gives its own cells; those that are known to lie in an archive are not looked for."""
    halves = [
        archive(
            tmp_path / f"{cell.corruption}.tar",
            {name: data for name, data in IMAGES.items() if name.startswith(cell.path)},
        )
        for cell in (FOG, SNOW)
    ]
    known = {"fog.tar": ["fog"], "snow.tar": ["snow"]}
    for found in (source(*halves), source(*halves, known_corruptions=known)):
        with found.prepared([FOG, SNOW]):
            listings = [found.listing(cell) for cell in (FOG, SNOW)]
            assert halves == [listing.root for listing in listings]
            assert [{*expected(FOG)}, {*expected(SNOW)}] == [{i.name for i in listing.images} for listing in listings]
        assert (SNOW,) == found.together(SNOW, [FOG, SNOW])


def test_the_version_changes_with_the_archive(tmp_path: Path):
    """It is cheap, the same for the same file, and another one when the file or the layout changes."""
    path = archive(tmp_path / "a.tar", IMAGES)
    before = source(path).version(FOG)

    assert before == source(path).version(FOG)
    assert before != source(path, layout="classes").version(FOG)
    os.utime(path, ns=(1, 1))
    assert before != source(path).version(FOG)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_how_far_an_archive_is_read_is_told(tmp_path: Path, name: str):
    """In MiB of the file on disk, also where a cell's images are few of many."""
    lines: list[str] = []
    noise = {f"{SNOW.path}/n01/{number}.JPEG": random.Random(number).randbytes(2**20) for number in range(6)}
    path = archive(tmp_path / name, {**noise, **IMAGES}, mode="w:gz" if name.endswith("gz") else "w")

    def tell(what: str, total: int, *, unit: str) -> Progress:
        return Progress(lines.append, what=what, total=total, unit=unit, interval_s=0)

    contents(source(path, progress=tell), FOG)

    assert lines[-1].startswith(f"{name}: 6 of 6 MiB")


@pytest.mark.parametrize(("arranged", "num_requests"), [(sorted, 4), (list, 8)])
def test_a_cell_is_asked_for_ahead_from_front_to_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arranged: Callable[..., list], num_requests: int
):
    """In few requests where its images lie side by side, and never for what lies between them."""
    members = {f"{cell.path}/n01/{i}.JPEG": bytes(50_000) for i in range(8) for cell in (FOG, SNOW)}
    path = archive(tmp_path / "a.tar", dict(arranged(members.items())))
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, offset, size, __: asked.append((offset, size)))
    found = source(path)
    with found.prepared([FOG]):
        images = found.listing(FOG).images
        read_ahead(images[::-1])

    assert asked == sorted(asked)
    assert sum(size for _, size in asked) in range(400_000, 412_000)
    assert num_requests == len(asked)
    assert all(any(o <= i.offset < o + size for o, size in asked) for i in images)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_no_spill_files(tmp_path: Path, error: type[BaseException]):
    """Whatever ends the block, the files are gone and the cell is not prepared any more."""
    found = source(archive(tmp_path / "a.tar.gz", IMAGES, mode="w:gz"))

    with pytest.raises(error), found.prepared([FOG]):
        raise error
    assert not list((tmp_path / "spill").iterdir())
    with pytest.raises(ImagesError, match=r"fog\|5.*prepared\(cells\)"):
        found.listing(FOG)


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path):
    """After SIGKILL there is a folder that nothing mistakes for shards, and the next preparation takes it away."""
    path, spill = archive(tmp_path / "a.tar.gz", IMAGES, mode="w:gz"), tmp_path / "spill"
    with start_python(KILLED, path, spill, stdout=subprocess.PIPE) as killed:
        killed.stdout.readline()
        (left,) = spill.iterdir()
        assert expected(FOG) == contents(source(path), FOG)
        assert [left] == list(spill.iterdir()), "a living process keeps its files"
        killed.send_signal(signal.SIGKILL)

    assert left.name.startswith(".")
    os.utime(left, (0, 0))
    assert expected(FOG) == contents(source(path), FOG)
    assert not list(spill.iterdir())


def test_spill_files_are_one_for_each_cell_and_gone_afterwards(tmp_path: Path):
    """While cells of a compressed archive are prepared there is a file for each, and none when they are done."""
    found = source(archive(tmp_path / "a.tar.gz", IMAGES, mode="w:gz"))
    with found.prepared([FOG, SNOW]):
        assert 2 == len([path for path in (tmp_path / "spill").rglob("*") if path.is_file()])

    assert not [path for path in (tmp_path / "spill").rglob("*") if path.name != "archive_index.json"]


def test_an_md5_that_is_given_later_makes_another_version(tmp_path: Path):
    """Shards whose archive was not compared count as others; without a sum, the version is what it was."""
    path = archive(tmp_path / "a.tar", IMAGES)
    bare, other = source(path), source(path, expected_md5={"b.tar": "0" * 32})
    compared = source(path, expected_md5={"a.tar": hashlib.md5(path.read_bytes()).hexdigest()})

    assert bare.version(FOG) == other.version(FOG) != compared.version(FOG)
