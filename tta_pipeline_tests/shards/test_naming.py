"""Plain webdataset sees one sample for each file, whatever the file is called, and the source's name comes back."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys, tar_file_expander

from tta_pipeline.shards.member_names import make_member_name, sample_key, source_name

HARD_NAMES = [
    "a.v2.JPEG", "a.v3.JPEG", ".hidden.jpg", "._apple.jpg", "no extension", "__meta__.jpg", "ünïcode.png", "a b#?;.jpg",
    "percent%41.jpg", "percentA.jpg", "new\nline.jpg", "x" * 250 + ".jpg", "a.JPEG", "trailing..jpg", "%.jpg", "%",
]  # fmt: skip
names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40)


def keys_by_webdataset(members: list[str]) -> list[str]:
    """Return the keys of the samples that plain webdataset finds in a tar of *members*."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            info = tarfile.TarInfo(member)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"data"))
    buffer.seek(0)
    files = tar_file_expander([{"url": "shard", "stream": buffer}])
    return [sample["__key__"] for sample in group_by_keys(files)]


def test_hard_names_are_one_sample_each_in_plain_webdataset():
    """Dots, no extension, odd characters and leading underscores neither merge nor vanish."""
    members = [make_member_name("n01", name) for name in HARD_NAMES] + [make_member_name("__class__", "a.jpg")]

    assert [sample_key(member) for member in members] == keys_by_webdataset(members)
    assert len(members) == len({sample_key(member) for member in members})


@pytest.mark.parametrize("name", HARD_NAMES)
def test_hard_names_come_back(name: str):
    """The manifest can give the original name of every file."""
    assert f"n.01/{name}" == source_name(make_member_name("n.01", name))


@given(names, names)
def test_every_name_comes_back(class_name: str, file_name: str):
    """Escaping loses nothing: class and file name are recovered letter for letter."""
    assert f"{class_name}/{file_name}" == source_name(make_member_name(class_name, file_name))


@given(st.lists(names, unique=True, max_size=8))
def test_no_two_files_share_a_member(file_names: list[str]):
    """Different names become different members, made of plain letters only."""
    members = {make_member_name("c", name) for name in file_names}

    assert len(file_names) == len(members)
    assert all(member.isascii() for member in members)
