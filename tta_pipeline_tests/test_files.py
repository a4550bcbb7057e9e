"""Files and folders appear whole or not at all, whatever happens to the process that writes them."""

import errno
import os
import signal
import stat
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from tta_pipeline.util import files
from tta_pipeline.util.files import (
    advice,
    hash_file,
    node_local_folder,
    published_folder,
    read_if_sha256_matches,
    read_sealed,
    remove_abandoned,
    seal,
    unseal,
    write_atomically,
    write_once,
)
from tta_pipeline_tests.conftest import start_python

WRITER = """
import sys, time
from pathlib import Path
from tta_pipeline.util.files import published_folder
with published_folder(Path(sys.argv[1])) as folder:
    (folder / "new").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def hidden(parent: Path) -> list[str]:
    """Return the names of what is not published in *parent*."""
    return [path.name for path in parent.iterdir() if path.name.startswith(".")]


def test_only_proven_bytes_are_read(tmp_path: Path):
    """Another hash, a changed byte and another thing that it is bound to are told from what was written."""
    path = tmp_path / "a"
    write_atomically(path, seal(b"state", "one"))

    assert b"state" == read_sealed(path, "one") == unseal(path.read_bytes(), "one")
    assert read_sealed(path, "other") is None
    assert path.read_bytes() == read_if_sha256_matches(path, hash_file(path))
    assert read_if_sha256_matches(path, "0" * 64) is None
    for damaged in (b"", path.read_bytes()[:-1], path.read_bytes()[:-1] + b"X"):
        path.write_bytes(damaged)
        assert read_sealed(path, "one") is None
        assert unseal(damaged, "one") is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "a larger quota"),
        (errno.EROFS, "mount this disk for writing"),
        (errno.EACCES, "change its permissions"),
        (errno.ENAMETOOLONG, "use shorter names"),
        (errno.ENOTTY, "check this place"),
    ],
)
def test_the_advice_fits_the_error(code: int, said: str):
    """An error of a file system and one of a library that passes on its words lead to the same advice."""
    error = OSError(code, os.strerror(code), "a/path")

    assert said in advice(error)
    assert advice(error) == advice(RuntimeError(f"IO Error: {os.strerror(code)}"))
    assert advice(error).startswith("free space") == (code in (errno.ENOSPC, errno.EDQUOT))


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path):
    """After an atomic write there is the new content and no other file."""
    write_atomically(tmp_path / "a", b"old")
    write_atomically(tmp_path / "a", b"new")

    assert b"new" == (tmp_path / "a").read_bytes()
    assert ["a"] == [path.name for path in tmp_path.iterdir()]


def test_the_first_of_two_writers_wins(tmp_path: Path):
    """What stands already is not written again, and the second writer is told."""
    assert write_once(tmp_path / "a", b"first")
    assert not write_once(tmp_path / "a", b"second")
    assert b"first" == (tmp_path / "a").read_bytes()
    assert not hidden(tmp_path)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, can_exchange: bool
):
    """With or without an atomic exchange, the new folder stands alone in the end."""
    if not can_exchange:
        monkeypatch.setattr(files, "_swap_names", lambda *_: False)
    for content in ("old", "new"):
        with published_folder(tmp_path / "cell") as folder:
            (folder / content).touch()

    assert ["new"] == [path.name for path in (tmp_path / "cell").iterdir()]
    assert not hidden(tmp_path)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_publishes_nothing(tmp_path: Path, error: type[BaseException]):
    """When the block ends with an exception the target stays as it was and nothing lies beside it."""

    def publish() -> None:
        with published_folder(tmp_path / "cell") as folder:
            (folder / "half").touch()
            raise error

    with pytest.raises(error):
        publish()

    assert not list(tmp_path.iterdir())


def test_a_killed_writer_leaves_the_target_and_its_remains_are_removed(tmp_path: Path):
    """After SIGKILL the old folder stands, the remains are found, and old remains go with the next publication."""
    with published_folder(tmp_path / "cell") as folder:
        (folder / "old").touch()
    with start_python(WRITER, tmp_path / "cell", stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        assert not remove_abandoned(tmp_path), "a living writer's folder is left alone"
        writer.send_signal(signal.SIGKILL)

    assert ["old"] == [path.name for path in (tmp_path / "cell").iterdir()]
    (remains,) = hidden(tmp_path)
    os.utime(tmp_path / remains, (0, 0))
    with published_folder(tmp_path / "other"):
        pass
    assert not hidden(tmp_path)


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After a power cut the name stands for the old content or the new, and never for an empty file."""
    write_atomically(tmp_path / "a", b"old")
    synchronise, seen = os.fsync, []

    def fsync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            seen.append((Path(f"/proc/self/fd/{descriptor}").read_bytes(), (tmp_path / "a").read_bytes()))
        synchronise(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "a", b"new")

    assert [(b"new", b"old")] == seen


def test_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each file of it, below other folders too, and their entries."""
    synchronise, seen = os.fsync, set()

    def fsync(descriptor: int) -> None:
        if not (tmp_path / "cell").exists():
            seen.add(os.fstat(descriptor).st_ino)
        synchronise(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with published_folder(tmp_path / "cell") as folder:
        (folder / "a").write_text("whole")
        (folder / "below").mkdir()
        (folder / "below" / "b").write_text("whole")

    published = [tmp_path / "cell", *(tmp_path / "cell").rglob("*")]
    assert 4 == len(published)
    assert {path.stat().st_ino for path in published} <= seen


def test_nobody_else_enters_the_folder_on_the_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is in a place where every user of the machine can look."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert 0o700 == stat.S_IMODE(node_local_folder().stat().st_mode)


def test_a_folder_is_left_alone_while_it_is_touched(tmp_path: Path):
    """Its process may run on another machine, whose lock is not seen here."""
    for name, age_s in (("living", 60), ("killed", 3600)):
        folder = tmp_path / f".unpublished-{uuid.uuid4().hex}-{name}"
        folder.mkdir()
        os.utime(folder, (time.time() - age_s,) * 2)

    (removed,) = remove_abandoned(tmp_path)

    assert removed.name.endswith("-killed")
