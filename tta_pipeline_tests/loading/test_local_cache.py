"""An entry of the local cache is whole, made by one process, and stays while it is read; whoever dies when."""

import errno
import fcntl
import os
import shutil
import signal
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tta_pipeline.errors import StreamError
from tta_pipeline.loading.local_cache import LocalCache
from tta_pipeline.util.files import seal

ONE, OTHER, LAST = (f"{digit * 64}.kind" for digit in "123")


@pytest.fixture
def cache(tmp_path: Path) -> LocalCache:
    """A cache with room for two entries of 100 bytes."""
    return LocalCache(folder=tmp_path / "cache", limit_bytes=200, remedy="set something else")


def names(cache: LocalCache) -> set[str]:
    """Return what lies in a cache."""
    return {path.name for path in cache.folder.iterdir()} - {"lock", "CACHEDIR.TAG"}


def used(cache: LocalCache, name: str) -> bool:
    """Lease an entry for a moment; return whether it is there."""
    with ExitStack() as stack:
        return cache.lease(name, stack) is not None


def test_what_was_used_longest_ago_makes_room(cache: LocalCache):
    """Using counts, and not only writing."""
    assert cache.write(ONE, bytes(100))
    assert cache.write(OTHER, bytes(100))
    assert used(cache, ONE)

    assert cache.write(LAST, bytes(100))

    assert {ONE, LAST} == names(cache)


def test_what_is_read_makes_no_room(cache: LocalCache):
    """Not for a larger entry either, until the reader has ended; a second reader is no hindrance."""
    cache.write(ONE, bytes(100))
    with ExitStack() as stack:
        assert cache.lease(ONE, stack) is not None
        assert used(cache, ONE)
        assert not cache.write(OTHER, bytes(150))
        assert {ONE} == names(cache)

    assert cache.write(OTHER, bytes(150))
    assert {OTHER} == names(cache)


def test_an_entry_is_made_once(cache: LocalCache):
    """Who finds another at it goes without, or waits and finds it there; its size counts from the beginning."""
    found = []
    with ExitStack() as stack:
        draft = cache.begin(ONE, 150, stack)
        assert cache.begin(ONE, 150, stack) is None
        assert not cache.write(OTHER, bytes(100))
        waiting = threading.Thread(target=lambda: found.append(cache.begin(ONE, 150, stack, resumes=True)))
        waiting.start()
        draft.path.write_bytes(b"whole")
        draft.publish()
        waiting.join()

        assert [None] == found
        assert used(cache, ONE)
    assert {ONE} == names(cache)


def test_what_is_left_unfinished_is_made_by_the_next(cache: LocalCache):
    """By one who waited for it too."""
    made = []

    def make() -> None:
        with ExitStack() as stack:
            draft = cache.begin(ONE, 150, stack, resumes=True)
            made.append(draft.path.read_bytes())
            draft.publish()

    with ExitStack() as stack:
        cache.begin(ONE, 150, stack).path.write_bytes(b"half")
        waiting = threading.Thread(target=make)
        waiting.start()
    waiting.join()

    assert [b""] == made
    assert {ONE} == names(cache)


def test_what_a_killed_process_made_goes(cache: LocalCache):
    """It is listed, never has the name of the whole, and the next entry takes its room."""
    child = os.fork()
    if child == 0:
        cache.begin(ONE, 150, ExitStack())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert [cache.folder / f"unfinished-150-{ONE}"] == list(cache.find_unreferenced(lambda _: True))

    assert cache.write(OTHER, bytes(150))

    assert {OTHER} == names(cache)
    assert [cache.folder / OTHER] == list(cache.find_unreferenced(lambda name: name != OTHER))


def test_a_sealed_entry_that_was_damaged_is_made_anew(cache: LocalCache):
    """So is one with the name of another."""
    cache.write(ONE, seal(b"payload", ONE))
    data = bytearray((cache.folder / ONE).read_bytes())
    assert b"payload" == cache.read_sealed(ONE)
    (cache.folder / OTHER).write_bytes(data)
    assert cache.read_sealed(OTHER) is None

    data[-1] ^= 1
    (cache.folder / ONE).write_bytes(data)

    assert cache.read_sealed(ONE) is None
    assert not names(cache)
    assert cache.write(ONE, seal(b"payload", ONE))
    assert b"payload" == cache.read_sealed(ONE)


def test_a_file_that_a_killed_process_began_is_gone_on_with(cache: LocalCache):
    """If it is of the kind that can be; until then it makes room as any other."""
    name = f"{'4' * 64}.tar"
    child = os.fork()
    if child == 0:
        os.write(cache.begin(name, 150, ExitStack(), resumes=True).descriptor, b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    cache.write(ONE, bytes(50))

    with ExitStack() as stack:
        draft = cache.begin(name, 150, stack, resumes=True)
        assert b"half" == draft.path.read_bytes()
        assert not cache.write(OTHER, bytes(100))
    assert cache.write(OTHER, bytes(200))
    assert {OTHER} == names(cache)


def test_a_full_disk_gives_less_room(cache: LocalCache, monkeypatch: pytest.MonkeyPatch):
    """Nine tenths of what is free, and what the entries have; nothing goes for what cannot fit."""
    cache.write(ONE, bytes(100))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1000, free=10))

    assert not cache.write(OTHER, bytes(110))
    assert {ONE} == names(cache)
    assert cache.write(OTHER, bytes(109))
    assert {OTHER} == names(cache)


def test_without_locks_files_are_kept_all_the_same(cache: LocalCache, monkeypatch: pytest.MonkeyPatch):
    """Some network file systems have none; what another process may be making stays."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with ExitStack() as stack:
        assert cache.begin(LAST, 50, stack) is not None
        for name in (ONE, OTHER):
            assert cache.write(name, bytes(100))
        assert used(cache, OTHER)

        assert {OTHER, f"unfinished-50-{LAST}"} == names(cache)


def test_a_fault_names_folder_room_and_what_to_do(cache: LocalCache):
    """The same words for all that is kept here."""
    cache.folder.parent.joinpath("file").touch()
    wrong = replace(cache, folder=cache.folder.parent / "file" / "cache")
    with (
        pytest.raises(StreamError, match=r"file/cache.*\ba test ran\b.*\b7\b.*\bsomething else\b"),
        wrong.naming_faults("a test ran", 7),
    ):
        wrong.write(ONE, b"payload")
