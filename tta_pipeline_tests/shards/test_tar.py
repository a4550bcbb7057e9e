"""Our tars are plain ones, and our reader accepts nothing that plain readers pass over in silence."""

import hashlib
import io
import random
import re
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.data.images.tar_stream import opened_tar
from tta_pipeline.errors import ImagesError, ManifestError
from tta_pipeline.shards.tar import TarReader, archive_end, member_header, padding

MEMBERS = {f"n0{number}/image_{number}.JPEG": bytes([number]) * (300 * number) for number in range(1, 8)}


def archive(members: dict[str, bytes]) -> bytes:
    """Return a tar of *members*."""
    data = b"".join(member_header(name, len(body)) + body + padding(len(body)) for name, body in members.items())
    return data + archive_end(len(data))


def read(path: Path) -> dict[str, bytes]:
    """Return the members of the tar at *path* as our reader finds them."""
    with path.open("rb") as file:
        reader = TarReader(path, file)
        members = {member.name: member.data for member in reader.members()}
    assert hashlib.sha256(path.read_bytes()).hexdigest() == reader.sha256
    return members


@given(
    st.dictionaries(
        st.text("abcé/ ", min_size=1, max_size=130).map("c/x{}".format), st.binary(max_size=1500), max_size=5
    )
)
def test_python_reads_what_we_write(members: dict[str, bytes]):
    """Names of any length and bodies of any size are what Python's tarfile finds."""
    with tarfile.open(fileobj=io.BytesIO(archive(members))) as found:
        assert members == {member.name: found.extractfile(member).read() for member in found}


def test_gnu_tar_lists_what_we_write(tmp_path: Path):
    """GNU tar lists the members in order, long names included, without a complaint."""
    members = {**MEMBERS, "n01/" + "x" * 140 + ".JPEG": b"long"}
    (tmp_path / "shard.tar").write_bytes(archive(members))

    listed = subprocess.run(["tar", "tf", tmp_path / "shard.tar"], capture_output=True, text=True, check=True)

    assert list(members) == listed.stdout.splitlines()
    assert not listed.stderr


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_we_read_what_others_write(tmp_path: Path, tar_format: int):
    """The three formats of Python's tarfile are read, long names and a comment on all members included."""
    members = {**MEMBERS, "n01/" + "y" * 90 + "/" + "x" * 60: b"long"}
    with tarfile.open(tmp_path / "other.tar", "w", format=tar_format, pax_headers={"comment": "of all"}) as other:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(body), 1.5 if tar_format == tarfile.PAX_FORMAT else 1
            other.addfile(info, io.BytesIO(body))

    assert members == read(tmp_path / "other.tar")


def test_a_tar_cut_anywhere_is_refused(tmp_path: Path):
    """At every block edge, where plain readers see a shorter archive, and inside blocks, the cut is found."""
    data = archive(MEMBERS)
    content_bytes = sum(512 + len(body) + len(padding(len(body))) for body in MEMBERS.values())
    for cut in range(0, content_bytes + 1, 256):
        (tmp_path / "cut.tar").write_bytes(data[:cut])
        with pytest.raises(ManifestError, match=r"cut\.tar.* byte \d+"):
            read(tmp_path / "cut.tar")


def test_a_flipped_bit_in_a_header_changes_nothing_in_silence(tmp_path: Path):
    """Of 200 single-bit flips in headers none changes what is read: all but those in filling are refused."""
    data = bytearray(archive(MEMBERS))
    headers = [start for start in range(0, len(data), 512) if data[start + 257 : start + 262] == b"ustar"]
    rng, num_refused = random.Random(0), 0
    for _ in range(200):
        position, bit = rng.choice(headers) + rng.randrange(512), 1 << rng.randrange(8)
        data[position] ^= bit
        (tmp_path / "flip.tar").write_bytes(data)
        try:
            assert MEMBERS == read(tmp_path / "flip.tar")
        except ManifestError:
            num_refused += 1
        data[position] ^= bit

    assert num_refused > 190


def test_an_archive_is_read_to_its_end_wherever_its_end_mark_begins(tmp_path: Path):
    """Also if what is read at once, a MiB, ends within the mark: one of 2,048 large shards is so."""
    members = {"a": bytes(2**20 - 2 * 512)}
    (tmp_path / "one.tar").write_bytes(archive(members))

    assert members == read(tmp_path / "one.tar")


@pytest.mark.parametrize("chunk_bytes", [512, 1024, 1536, 4096, 2**20])
def test_a_second_archive_after_the_first_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int):
    """Plain readers stop at the end mark, and would lose its members, wherever the file is cut for reading."""
    monkeypatch.setattr("tta_pipeline.shards.tar._CHUNK_BYTES", chunk_bytes)
    (tmp_path / "two.tar").write_bytes(2 * archive(MEMBERS))

    with pytest.raises(ManifestError, match=r"two\.tar.*\bafter the end mark\b"):
        read(tmp_path / "two.tar")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: bytes):
    """Links and devices, which plain readers skip in silence, are named."""
    with tarfile.open(tmp_path / "odd.tar", "w") as odd:
        info = tarfile.TarInfo("n01/odd.jpg")
        info.type, info.linkname = kind, "n01/other.jpg"
        odd.addfile(info)

    with pytest.raises(ManifestError, match=rf"odd\.tar.*{kind!r}"):
        read(tmp_path / "odd.tar")


@pytest.mark.parametrize("name", ["../../etc/x.jpg", "/etc/x.jpg", "n01/../../x.jpg"])
def test_a_name_that_leads_outside_is_refused(tmp_path: Path, name: str):
    """A member that would be written elsewhere by `tar x` does not get into a manifest."""
    (tmp_path / "evil.tar").write_bytes(archive({name: b"x"}))

    with pytest.raises(ManifestError, match=rf"evil\.tar.*{re.escape(name)}"):
        read(tmp_path / "evil.tar")


def require_refused_by_both(path: Path, match: str) -> None:
    """Prove that the reader of shards and the reader of archives refuse the file at *path*."""
    with pytest.raises(ManifestError, match=match):
        read(path)
    with pytest.raises(ImagesError, match=match), opened_tar(path) as stream:
        list(stream)


def test_a_sparse_file_is_refused(tmp_path: Path):
    """GNU tar stores it without its holes, in two ways; read as it lies it would be another file."""
    with (tmp_path / "holes.jpg").open("wb") as file:
        file.truncate(2**20)
        file.seek(2**19)
        file.write(b"data")
    for tar_format, found in (("gnu", "b'S'"), ("posix", r"byte \d+\b.*\bsparse\b")):
        command = ["tar", "--sparse", f"--format={tar_format}", "-cf", "sparse.tar", "holes.jpg"]
        subprocess.run(command, cwd=tmp_path, check=True)

        require_refused_by_both(tmp_path / "sparse.tar", rf"sparse\.tar.*{found}")


def pax(size: str) -> bytes:
    """Return a tar of one file whose PAX header says that it has *size* bytes."""
    field = f" size={size}\n"
    length = next(n for n in range(len(field), len(field) + 9) if len(f"{n}{field}") == n)
    record = f"{length}{field}".encode()
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    data = header.tobuf(tarfile.USTAR_FORMAT) + record + padding(len(record))
    data += member_header("n01/image.jpg", 4) + b"body" + padding(4)
    return data + archive_end(len(data))


@pytest.mark.parametrize("size", ["abc", "-1", "1_0", "+4", "", "٤", "9" * 18, "9" * 30])
def test_a_size_that_cannot_be_is_refused(tmp_path: Path, size: str):
    """Whatever a PAX header says, both readers end with one error that names the archive, and take no memory for it."""
    (tmp_path / "pax.tar").write_bytes(pax(size))
    tracemalloc.start()
    try:
        with pytest.raises(ManifestError, match=r"pax\.tar.* byte \d+"):
            read(tmp_path / "pax.tar")
        with (
            pytest.raises(ImagesError, match=r"pax\.tar.* byte \d+"),
            opened_tar(tmp_path / "pax.tar") as stream,
        ):
            [stream.read() for _ in stream]
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_a_size_in_a_pax_header_counts(tmp_path: Path):
    """It is the size of the next file, as for `tar`."""
    (tmp_path / "pax.tar").write_bytes(pax("0004"))

    assert {"n01/image.jpg": b"body"} == read(tmp_path / "pax.tar")


@pytest.mark.parametrize(
    "field", [b"77777777777\0", b"\x80" + 3 * b"\0" + 8 * b"\x7f", b"-0000000001\0", b"0o000000004\0"]
)
def test_a_size_in_a_header_that_cannot_be_is_refused(tmp_path: Path, field: bytes):
    """8 GiB in a small file, more than any file has, and numbers that only Python reads."""
    block = bytearray(member_header("n01/image.jpg", 4))
    block[124:136], block[148:156] = field, 8 * b" "
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "size.tar").write_bytes(bytes(block) + b"body" + bytes(508) + archive_end(1024))
    tracemalloc.start()
    try:
        with pytest.raises(ManifestError, match=r"size\.tar.* byte \d+"):
            read(tmp_path / "size.tar")
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_an_empty_file_may_have_no_size(tmp_path: Path):
    """A field without digits is zero, as for `tar`."""
    block = bytearray(member_header("n01/image.jpg", 0))
    block[124:136], block[148:156] = 12 * b" ", 8 * b" "
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "size.tar").write_bytes(bytes(block) + archive_end(512))

    assert {"n01/image.jpg": b""} == read(tmp_path / "size.tar")


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_long_name_without_a_file_is_refused(tmp_path: Path, tar_format: int):
    """Its file is lost, for both readers."""
    name = tarfile.TarInfo("n" * 200).tobuf(tar_format)[:-512]
    (tmp_path / "lost.tar").write_bytes(name + archive_end(len(name)))

    require_refused_by_both(tmp_path / "lost.tar", r"lost\.tar.* long name")


def test_a_long_name_of_megabytes_is_refused(tmp_path: Path):
    """An extension header is held in memory, so it has a limit, for both readers."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**21
    data = header.tobuf(tarfile.GNU_FORMAT) + b"n" * 2**21 + member_header("x", 4) + b"body" + padding(4)
    (tmp_path / "long.tar").write_bytes(data + archive_end(len(data)))

    require_refused_by_both(tmp_path / "long.tar", r"long\.tar.* 2097152 ")


def test_a_member_larger_than_any_image_is_refused(tmp_path: Path):
    """A member is held in memory, so holes of 2 GiB on disk must not take as much there."""
    with (tmp_path / "holes.tar").open("wb") as file:
        file.write(member_header("n01/image.jpg", 2**31))
        file.seek(2**31, io.SEEK_CUR)
        file.write(archive_end(2**31 + 512))
    tracemalloc.start()
    try:
        with (
            pytest.raises(ManifestError, match=r"holes\.tar.*n01/image\.jpg.* 2147483648 "),
            (tmp_path / "holes.tar").open("rb") as file,
        ):
            list(TarReader(tmp_path / "holes.tar", file).members())
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
