"""A zip is a source like a tar: its cells are found wherever they lie, and what no honest program wrote is refused."""

import contextlib
import hashlib
import io
import os
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.open_images import open_images
from tta_pipeline.cli import main
from tta_pipeline.data.images.zip_members import opened_zip
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ImagesError
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import jpeg
from tta_pipeline_tests.data.images.test_archive import FOG, IMAGES, SNOW, contents, expected, source
from tta_pipeline_tests.data.images.test_hostile import BOUNDED


def zipped(path: Path, members: Mapping[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Write a zip, and return its path."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return path


@pytest.mark.parametrize("prefix", ["", "./", "Tiny-ImageNet-C/"], ids=["bare", "dot", "folder"])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_cells_are_found_wherever_they_lie(tmp_path: Path, prefix: str, method: int):
    """A folder around the corruptions, entries of folders, and hidden files of a Mac are harmless."""
    others = {"__MACOSX/fog/5/n01/._image_0.JPEG": b"x", f"{prefix}fog/": b"", "README": b"x"}
    path = zipped(tmp_path / "a.zip", {prefix + name: data for name, data in IMAGES.items()} | others, method=method)

    assert expected(FOG) == contents(source(path), FOG)
    assert expected(SNOW) == contents(source(path), SNOW)
    assert ("n01", "n02") == source(path).class_names()


def test_a_symbolic_link_is_the_file_it_leads_to(tmp_path: Path):
    """As in a tar."""
    path = zipped(tmp_path / "a.zip", IMAGES)
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo(f"{FOG.path}/n01/linked.JPEG")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "../n02/image_1.JPEG")

    assert IMAGES[f"{FOG.path}/n02/image_1.JPEG"] == contents(source(path), FOG)["n01/linked.JPEG"]


def test_the_md5_of_a_zip_is_compared(tmp_path: Path):
    """Before anything in it is believed."""
    path = zipped(tmp_path / "a.zip", IMAGES)
    right = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()

    assert expected(FOG) == contents(source(path, expected_md5={"a.zip": right}), FOG)
    with pytest.raises(ImagesError, match=rf"a\.zip.*{right}.*0{{32}}"):
        contents(source(path, expected_md5={"a.zip": "0" * 32}), FOG)


def test_a_zip_becomes_a_benchmark_and_shards(tmp_path: Path):
    """ImageNet-Sketch is published as one: `new-benchmark` and `shards make` take such a zip as it is."""
    members = {f"sketch/n0144000{c}/sketch_{i}.JPEG": jpeg(i) for c in (0, 1) for i in range(2)}
    path = zipped(tmp_path / "ImageNet-Sketch.zip", members)
    benchmark = tmp_path / "mine.yaml"

    drafted = CliRunner().invoke(main, ["new-benchmark", "mine", str(path), "--output", str(benchmark)])
    made = CliRunner().invoke(
        main,
        [
            "shards",
            "make",
            str(path),
            str(tmp_path / "out"),
            "--class-dir-depth",
            "0",
            "--num-shards",
            "1",
            "--jobs",
            "1",
        ],
    )

    assert (0, 0) == (drafted.exit_code, made.exit_code), drafted.output + made.output
    found = load_benchmark(benchmark)
    assert ("archive", "mine", ("imagenet_sketch",)) == (found.images.kind, found.dataset.name, found.corruptions)
    source = open_images(found, Locations(root=tmp_path))
    with source.prepared(found.cells):
        assert 4 == len(source.listing(found.cells[0]).images)
    assert 4 == ShardSet.open(tmp_path / "out").manifest.num_samples


class _Unflagged(zipfile.ZipInfo):
    """A member whose name is written in an encoding of its own, without the flag of UTF-8."""

    encoding = "cp437"

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:  # noqa: N802 - zipfile's
        return self.filename.encode(self.encoding), 0


@pytest.mark.parametrize("encoding", ["utf-8", "cp437"])
def test_names_without_the_flag_of_utf_8_are_read(tmp_path: Path, encoding: str):
    """Zips of older programs do not say in which encoding their names are."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for cls in ("Bär", "Käse"):
            member = _Unflagged(f"{FOG.path}/{cls}/é.JPEG")
            member.encoding = encoding
            archive.writestr(member, jpeg(0))

    assert ("Bär", "Käse") == source(tmp_path / "a.zip").class_names()
    assert ["Bär/é.JPEG", "Käse/é.JPEG"] == sorted(contents(source(tmp_path / "a.zip"), FOG))


def test_backslashes_in_names_are_slashes(tmp_path: Path):
    """Windows' own programs wrote them, and entries of folders that end in one."""
    folders = {"fog\\": b"", "fog\\5\\n01\\": b""}
    path = zipped(tmp_path / "a.zip", folders | {name.replace("/", "\\"): data for name, data in IMAGES.items()})

    assert expected(FOG) == contents(source(path), FOG)
    assert ("n01", "n02") == source(path).class_names()


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_called_zip_is_read_as_what_it_is(tmp_path: Path, mode: str):
    """As a zip called tar is."""
    path = tmp_path / "a.zip"
    with tarfile.open(path, mode) as archive:
        for name, data in IMAGES.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

    assert expected(FOG) == contents(source(path), FOG)
    assert expected(FOG) == contents(source(zipped(tmp_path / "b.tar", IMAGES)), FOG)


def test_a_folder_of_zips_is_a_folder_of_archives(tmp_path: Path):
    """Their cells are found together."""
    (tmp_path / "in").mkdir()
    for cell in (FOG, SNOW):
        zipped(tmp_path / "in" / f"{cell.corruption}.zip", {f"{cell.path}/n01/a.JPEG": jpeg(0)})

    drafted = CliRunner().invoke(main, ["new-benchmark", "mine", str(tmp_path / "in"), "--output", "-"])

    assert 0 == drafted.exit_code, drafted.output
    assert "fog.zip" in drafted.output
    assert "snow" in drafted.output


def with_member(path: Path, name: str, *, mode: int = 0) -> None:
    """Append a member of any name to a zip."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        member = zipfile.ZipInfo(name)
        member.external_attr = mode << 16
        archive.writestr(member, "/etc/passwd" if mode else jpeg(0))


def edited(path: Path, signature: bytes, offset: int, value: bytes) -> None:
    """Change bytes at *offset* of the first record with *signature*."""
    data = bytearray(path.read_bytes())
    at = data.index(signature) + offset
    data[at : at + len(value)] = value
    path.write_bytes(data)


CENTRAL, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: with_member(path, "/fog/5/n01/a.JPEG"), r"'/fog/5/n01/a\.JPEG'"),
        (lambda path: with_member(path, "../fog/5/n01/a.JPEG"), r"'\.\./fog/5/n01/a\.JPEG'"),
        (lambda path: with_member(path, "..\\fog\\5\\n01\\a.JPEG"), r"'\.\./fog/5/n01/a\.JPEG'"),
        (lambda path: with_member(path, next(iter(IMAGES)).replace("/", "\\")), r"fog/5/n01/image_0\.JPEG"),
        (lambda path: with_member(path, next(iter(IMAGES))), r"fog/5/n01/image_0\.JPEG"),
        (lambda path: with_member(path, "fog/5/n01/l.JPEG", mode=stat.S_IFLNK), r"l\.JPEG.*'/etc/passwd'"),
        (lambda path: with_member(path, "fog/5/n01/l.JPEG", mode=stat.S_IFIFO), r"l\.JPEG"),
        (lambda path: edited(path, CENTRAL, 8, b"\1\0"), r"image_0\.JPEG.*\bunpack\b"),
        (lambda path: edited(path, CENTRAL, 10, b"\x0e\0"), r"image_0\.JPEG.*\b14\b.*\bdeflate\b"),
        (lambda path: edited(path, CENTRAL, 24, b"\x01\0\0\0"), r"image_0\.JPEG.*\bCRC\b"),
        (lambda path: edited(path, CENTRAL, 24, b"\0\0\0\x40"), r"image_0\.JPEG.*\b1073741824\b.*\b33554432\b"),
        (lambda path: edited(path, CENTRAL, 24, b"\0\0\0\1"), r"image_0\.JPEG"),
        (lambda path: edited(path, CENTRAL, 16, b"\0\0\0\0"), r"image_0\.JPEG.*\bCRC\b"),
        (lambda path: edited(path, LOCAL, 35, b"\xff\xff"), r"image_0\.JPEG"),
        (lambda path: edited(path, CENTRAL, 42, b"\x20\0\0\0"), r"image_0\.JPEG"),
        (lambda path: edited(path, CENTRAL, 0, b"XXXX"), ""),
        (lambda path: os.truncate(path, path.stat().st_size - 30), ""),
        (lambda path: path.write_bytes(b""), ""),
        (lambda path: edited(path, END, 12, b"\xff\xff\xff\x7f"), ""),
    ],
)
def test_a_hostile_zip_is_refused(tmp_path: Path, damage: Callable[[Path], None], found: str):
    """One sentence with the zip and the member; nothing else is raised, and nothing is left behind."""
    path = zipped(tmp_path / "a.zip", IMAGES)
    damage(path)

    with pytest.raises(ImagesError, match=f"{path}.*{found}"):
        contents(source(path), FOG)

    assert not list((tmp_path / "spill").rglob("fog*"))


def test_a_bomb_of_overlapping_members_is_refused(tmp_path: Path):
    """Many entries of the central directory with the same bytes, under names of their own."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fog/5/n01/a.JPEG", bytes(10**6))
        (member,) = archive.infolist()
        for number in range(100):
            other = zipfile.ZipInfo(f"fog/5/n01/{number}.JPEG")
            for field in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
                setattr(other, field, getattr(member, field))
            archive.filelist.append(other)

    with pytest.raises(ImagesError, match=rf"{path}[^']*'fog/5/n01/a\.JPEG'"):
        contents(source(path), FOG)


def test_a_zip_that_is_missing_is_refused(tmp_path: Path):
    """By its name."""
    with pytest.raises(ImagesError, match=r"b\.zip"):
        source(tmp_path / "b.zip").class_names()


@given(
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=5),
    cut=st.integers(0, 40),
    is_stored=st.booleans(),
)
@BOUNDED
def test_no_damaged_zip_raises_anything_else(
    tmp_path: Path, edits: list[tuple[int, int]], cut: int, *, is_stored: bool
):
    """Bytes changed anywhere, and the end cut off: it is read or refused, and what is read is as long as stated."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED if is_stored else zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{FOG.path}/n01/{number}.JPEG", bytes([number]) * 300)
    damaged = bytearray(buffer.getvalue())
    for position, value in edits:
        damaged[position % len(damaged)] = value
    path = tmp_path / "a.zip"
    path.write_bytes(damaged[: len(damaged) - cut] if cut > 35 else damaged)

    with contextlib.suppress(ImagesError), opened_zip(path) as stream:
        for entry in stream:
            assert entry.link or entry.size_bytes == len(stream.read())
    with contextlib.suppress(ImagesError):
        contents(source(path), FOG)
