"""Archives, arrays and shards that no honest program wrote are refused in one sentence: nothing else is raised."""

import contextlib
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tta_pipeline.cli import main
from tta_pipeline.data.formats.npy_format import MAGIC, read_array_header
from tta_pipeline.data.image_bytes import read_image_header
from tta_pipeline.data.images.archived_images import ArchivedImages
from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.data.images.kinds.npy import NpyImages
from tta_pipeline.data.images.tar_stream import opened_tar
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError, PipelineError
from tta_pipeline_tests.conftest import in_one_line, jpeg, launcher

FOG = Cell(corruption="fog", severity=5)
LATIN_1 = b"caf\xe9"
BOUNDED = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def latin_1_tree(root: Path, *, in_class: bool) -> None:
    """Write a class folder with an image of a name in ISO 8859-1, or one that has such a name itself."""
    folder = os.fsencode(root / FOG.path) + b"/" + (LATIN_1 if in_class else b"n01")
    os.makedirs(folder)  # noqa: PTH103 - a Path has no bytes
    Path(os.fsdecode(folder), os.fsdecode(b"a.JPEG" if in_class else LATIN_1 + b".JPEG")).write_bytes(jpeg(0))


@pytest.mark.parametrize("in_class", [False, True], ids=["file", "class"])
@pytest.mark.parametrize("option", ["-cf", "-czf"], ids=["tar", "tar.gz"])
def test_a_name_of_another_encoding_is_named_with_its_archive(tmp_path: Path, option: str, *, in_class: bool):
    """GNU tar packs the bytes of a name as they are; the error shows them, and comes before anything is written."""
    latin_1_tree(tmp_path / "tree", in_class=in_class)
    path = tmp_path / "fog.tar"
    subprocess.run(["tar", option, path, "-C", tmp_path / "tree", "fog"], check=True)
    source = ArchivedImages(archives=(path,), cells=(FOG,), spill_root=tmp_path / "spill")

    for ask in (source.class_names, lambda: source.prepared([FOG]).__enter__()):
        with pytest.raises(ImagesError, match=rf"{path}.*b'.*caf\\xe9.*'") as caught:
            ask()
        str(caught.value).encode()  # can be printed, logged and stored


@pytest.mark.parametrize("in_class", [False, True], ids=["file", "class"])
def test_a_name_of_another_encoding_is_named_with_its_folder(tmp_path: Path, *, in_class: bool):
    """In a folder tree it is the same."""
    latin_1_tree(tmp_path, in_class=in_class)
    tree = FolderTree(root=tmp_path, cells=(FOG,))

    with pytest.raises(ImagesError, match=r"fog/5.*b'.*caf\\xe9.*'") as caught:
        tree.listing(FOG)
    str(caught.value).encode()
    if in_class:
        with pytest.raises(ImagesError, match=r"fog/5.*b'caf\\xe9'"):
            tree.class_names()


MADE_TWICE = """
import os, sys
from tta_pipeline.cli import main
for root in (None, b"K\\xc3\\xa4se"):
    if root:
        os.environb[b"TTA_DATA_ROOT"] = root
    try:
        main()
    except SystemExit as end:
        print("ended with", end.code, file=sys.stderr)
"""
"""Runs the command twice, in the present folder and then with a data root whose name is not ASCII."""


def test_a_name_in_utf_8_is_not_blamed_for_the_locale(tmp_path: Path):
    """Python may read names in another encoding than they are in: renaming the files would damage them."""
    folder = tmp_path / "tree" / "K\u00e4se"
    folder.mkdir(parents=True)
    (folder / "a.JPEG").write_bytes(jpeg(0))
    in_ascii = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    make = ["shards", "make", "tree", "out", "--class-dir-depth", "0", "--jobs", "1", "--num-shards", "1"]

    def run(code: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *make]
        return subprocess.run(command, cwd=tmp_path, env=in_ascii | more, capture_output=True, text=True, check=False)

    refused, advised = run(MADE_TWICE), run("import sys; print(sys.getfilesystemencoding())", PYTHONUTF8="1")
    done = launcher().run(["tta-pipeline", *make], dict(os.environ), timeout_s=300, folder=tmp_path)

    errors = refused.stderr.split("ended with 1\n")
    assert [2, ""] == [len(errors) - 1, errors[-1]], refused.stderr
    for each in errors[:2]:
        assert "ascii" in each
        assert "export PYTHONUTF8=1" in each
        assert "convmv" not in each
        assert "rename" not in each
    assert "utf-8\n" == advised.stdout, "as it is for these tests"
    assert sys.getfilesystemencoding() == "utf-8"
    assert 0 == done.returncode, done.stderr


def test_names_of_another_encoding_that_are_no_images_are_let_be(tmp_path: Path):
    """Only what would become a sample has to have a name that a table can hold."""
    latin_1_tree(tmp_path / "tree", in_class=False)
    (folder,) = (tmp_path / "tree" / FOG.path).iterdir()
    (image,) = folder.iterdir()
    image.rename(folder / os.fsdecode(LATIN_1 + b".txt"))
    (folder / "a.JPEG").write_bytes(jpeg(0))
    with tarfile.open(tmp_path / "fog.tar", "w") as tar:
        tar.add(tmp_path / "tree" / "fog", "fog")
    source = ArchivedImages(archives=(tmp_path / "fog.tar",), cells=(FOG,), spill_root=tmp_path / "spill")

    with source.prepared([FOG]):
        found = [source.listing(FOG), FolderTree(root=tmp_path / "tree", cells=(FOG,)).listing(FOG)]

    assert [["n01/a.JPEG"]] * 2 == [[image.name for image in listing.images] for listing in found]
    assert [1, 1] == [len(listing.strays) for listing in found]


@pytest.mark.parametrize("in_class", [False, True], ids=["file", "class"])
def test_shards_of_others_with_such_names_are_refused(tmp_path: Path, *, in_class: bool):
    """Adopting them names the shard, and leaves nothing beside it."""
    latin_1_tree(tmp_path / "tree", in_class=in_class)
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards" / "a.tar", "w") as tar:
        tar.add(tmp_path / "tree" / FOG.path, ".")

    finished = CliRunner().invoke(main, ["shards", "index", str(tmp_path / "shards")])

    assert 1 == finished.exit_code
    (line,) = in_one_line(finished.stderr).splitlines()[-1:]
    assert re.search(r"a.tar: the name b'.*caf\\xe9.*' is not UTF-8", line), line
    assert ["a.tar"] == [path.name for path in (tmp_path / "shards").iterdir()]


def array_file(header: str) -> bytes:
    """Return an `.npy` file of version 1.0 with any text for a header."""
    text = header.encode("latin-1") + b"\n"
    return MAGIC + b"\1\0" + len(text).to_bytes(2, "little") + text + bytes(300)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10, 2, 5, 3), ",
        "{'descr': '|u1', 'fortran_order': False, 'shape': " + "(" * 3000,
        "{'descr': '|u1', 'fortran_order': False, 'shape': " + "-" * 3000 + "1}",
        "(" * 60_000,
        "{'descr': '|u1', 'shape': (10, 2, 5, 3)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10, 2, 5, 3), 'shape': (1,)}",
        "{'descr': 'u3', 'fortran_order': False, 'shape': (10, 2, 5, 3)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (10, 2, 5, 3)}",
        "{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (10, 2, 5, 3)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-10, 2, 5, -3)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10 2, 5, 3)}",
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({'9' * 18}, {'9' * 18}, {'9' * 18}, 3)}}",
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({'1, ' * 1000})}}",
        "",
        "\0",
        "{}",
        "[1, 2]",
    ],
)
def test_a_hostile_array_header_is_one_sentence(tmp_path: Path, header: str):
    """Unbalanced, deep, huge, incomplete or of objects: the file is named, and no warning is given."""
    np.save(tmp_path / "labels.npy", np.zeros(10, np.uint8))
    (tmp_path / "fog.npy").write_bytes(array_file(header))
    source = NpyImages(root=tmp_path, cells=(FOG,), spill_root=tmp_path / "spill")

    with (
        pytest.raises(ImagesError, match=f"^{tmp_path}/fog.npy") as caught,
        source.prepared([FOG]),
    ):
        pass
    assert len(str(caught.value)) < 1000


def cut_by_a_row(path: Path) -> None:
    """Let an array of ten rows end after nine."""
    os.truncate(path, path.stat().st_size - 30)


def grown(path: Path) -> None:
    """Append a row to the file, of which its header says nothing."""
    with path.open("ab") as file:
        file.write(bytes(30))


@pytest.mark.parametrize(("damage", "num_bytes"), [(cut_by_a_row, 270), (grown, 330)])
def test_an_array_file_is_as_long_as_it_says(tmp_path: Path, damage: Callable[[Path], None], num_bytes: int):
    """A shorter and a longer one are refused."""
    np.save(tmp_path / "fog.npy", np.zeros((10, 2, 5, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.zeros(10, np.uint8))
    damage(tmp_path / "fog.npy")

    with (
        pytest.raises(ImagesError, match=rf"fog\.npy.*\b{num_bytes}\b.*\b300\b"),
        NpyImages(root=tmp_path, cells=(FOG,), spill_root=tmp_path / "spill").prepared([FOG]),
    ):
        pass


def test_array_headers_of_other_programs_are_read():
    """Another order, other spaces, no trailing comma, double quotes and the numbers of Python 2."""
    for header in (
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10, 2, 5, 3), }" + " " * 50,
        "{'descr':'|u1','fortran_order':False,'shape':(10,2,5,3)}",
        '{"shape": (10L, 2L, 5L, 3L), "fortran_order": False, "descr": "|u1"}',
    ):
        found = read_array_header(array_file(header))
        assert (np.dtype(np.uint8), (10, 2, 5, 3), False) == found[:3]
    for array in (np.zeros((), np.int64), np.zeros(3, ">f4"), np.asfortranarray(np.zeros((2, 3), bool))):
        buffer = io.BytesIO()
        np.save(buffer, array)
        header = read_array_header(buffer.getvalue())
        assert (array.dtype, array.shape, array.flags.fnc) == header[:3]
        assert len(buffer.getvalue()) - array.nbytes == header.offset


@given(data=st.data())
@BOUNDED
def test_no_array_file_raises_anything_else(tmp_path: Path, data: st.DataObject):
    """Damaged anywhere, or with any header, an array file is read or refused; the same of images in shards."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((10, 2, 5, 3), np.uint8))
    written = bytearray(buffer.getvalue())
    kind = data.draw(st.sampled_from(["flipped", "cut", "header", "bytes"]))
    if kind == "flipped":
        for position in data.draw(st.lists(st.integers(0, 140), min_size=1, max_size=4)):
            written[position] = data.draw(st.integers(0, 255))
    elif kind == "cut":
        del written[data.draw(st.integers(0, len(written))) :]
    elif kind == "header":
        part = st.sampled_from(["'descr'", ":", "'|u1'", ",", "(", ")", "1", "10", "{", "}", "False", "'shape'", "\0"])
        written = bytearray(array_file("".join(data.draw(st.lists(part, max_size=40)))))
    else:
        written = bytearray(MAGIC + data.draw(st.binary(max_size=200)))
    for name in ("fog.npy", "labels.npy"):
        (tmp_path / name).write_bytes(written)

    with (
        contextlib.suppress(ImagesError),
        NpyImages(root=tmp_path, cells=(FOG,), spill_root=tmp_path / "spill").prepared([FOG]),
    ):
        pass
    with contextlib.suppress(ValueError):
        read_image_header(bytes(written))


HEADER_TEXTS = st.one_of(
    st.sampled_from(
        [b"fog/5/n01/a.JPEG", b"fog/5/n01/", b"../a", b"/", b"", b"fog/5/" + LATIN_1 + b"/a.JPEG", b"x" * 99]
    ),
    st.binary(max_size=99),
)
NUMBERS = st.one_of(
    st.integers(0, 2000).map(lambda size: b"%011o\0" % size),
    st.sampled_from([b"\x80" + b"\xff" * 11, b"7" * 12, b"-1", b"\xff" * 12, b"      0 \0", b"1_0"]),
    st.binary(max_size=12),
)
KINDS = st.sampled_from([b"0", b"\0", b"1", b"2", b"5", b"7", b"x", b"g", b"L", b"K", b"3", b"S", b"V"])
BODIES = st.one_of(
    st.binary(max_size=600),
    st.sampled_from([
        b"18 path=\xff\xfe\xfdabcd\n", b"11 size=-1\n", b"18 size=999999999\n", b"14 size=1_0\n\0\0", b"12 size= 7 \n",
        b"9 path=\n", b"99999999999999999999 path=a\n", b"0 a=\n", b"16 linkpath=a/b\n", b"30 GNU.sparse.major=1\n",
        b"16 size=1" + "٣".encode() * 2 + b"00\n", b"18 path=" + b"\0" * 9 + b"\n",
    ]),
)  # fmt: skip


def tar_header(name: bytes, size: bytes, kind: bytes, link: bytes, prefix: bytes) -> bytes:
    """Return a header block of these fields with its checksum right."""
    block = bytearray(name.ljust(100, b"\0") + bytes(24) + size.ljust(12, b"\0") + bytes(12) + b" " * 8 + kind)
    block += link.ljust(100, b"\0") + b"ustar\x0000" + bytes(80) + prefix.ljust(155, b"\0") + bytes(12)
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@given(
    members=st.lists(st.tuples(HEADER_TEXTS, NUMBERS, KINDS, HEADER_TEXTS, HEADER_TEXTS, BODIES), max_size=4),
    end=st.sampled_from([bytes(1024), bytes(512), b"", bytes(1023) + b"x"]),
)
@example(members=[(b"a", b"7" * 11 + b"\0", b"L", b"", b"", b"")], end=bytes(1024))  # a name of eight gigabytes
@BOUNDED
def test_no_archive_raises_anything_else(tmp_path: Path, members: list[tuple[bytes, ...]], end: bytes):
    """Headers of any content under a right checksum, and extensions of any text, are read or refused."""
    path = tmp_path / "fog.tar"
    path.write_bytes(b"".join(tar_header(*fields) + body + bytes(-len(body) % 512) for *fields, body in members) + end)
    source = ArchivedImages(archives=(path,), cells=(FOG,), spill_root=tmp_path / "spill")
    with contextlib.suppress(ImagesError):
        source.class_names()
    with contextlib.suppress(ImagesError), source.prepared([FOG]):
        for image in source.listing(FOG).images:
            image.name.encode()
            image.read()


@given(edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=5))
@BOUNDED
def test_no_damaged_gzip_raises_anything_else(tmp_path: Path, edits: list[tuple[int, int]]):
    """Bytes changed anywhere in a compressed archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for number in range(3):
            info = tarfile.TarInfo(f"{FOG.path}/n01/{number}.JPEG")
            info.size = 700
            tar.addfile(info, io.BytesIO(bytes([number]) * 700))
    damaged = bytearray(buffer.getvalue())
    for position, value in edits:
        damaged[position % len(damaged)] = value
    (tmp_path / "fog.tar.gz").write_bytes(damaged)

    with contextlib.suppress(PipelineError), opened_tar(tmp_path / "fog.tar.gz") as stream:
        for _ in stream:
            stream.read()
