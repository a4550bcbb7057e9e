"""What lies in the place of a lock never stops anyone for ever: it is named, or it serves as one."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tta_pipeline.errors import LockError
from tta_pipeline.evaluation.device.leases import leased
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.util.files import locked, locked_folder
from tta_pipeline_tests.conftest import Project


def pipe(path: Path) -> None:
    """Make a pipe that nobody reads or writes."""
    os.mkfifo(path)


def listening(path: Path) -> None:
    """Make a socket; it stays when the process that listened is gone."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def link(path: Path) -> None:
    """Make a link to a file elsewhere, which nobody asked to be made or locked."""
    path.symlink_to(path.with_name("elsewhere"))


def device(path: Path) -> None:
    """Make a device; only a root user may."""
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


KINDS = {"a pipe": pipe, "a folder": Path.mkdir, "a socket": listening, "a link": link, "a device": device}


def by_lease(path: Path) -> AbstractContextManager[object]:
    """Lease the device whose lock is *path*."""
    return leased([path.stem.removeprefix("tta_pipeline-")], print, folder=path.parent)


ROADS: tuple[tuple[str, Callable[[Path], AbstractContextManager[object]]], ...] = (
    (".metrics.lock", locked),
    (".folder.lock", lambda path: locked_folder(path.with_name("folder"))),
    ("tta_pipeline-cuda.lock", by_lease),
)


@pytest.fixture(autouse=True)
def impatience() -> Iterator[None]:
    """End a test that waits, with the place where it does."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits for what never comes")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("found", KINDS)
@pytest.mark.parametrize(("name", "road"), ROADS, ids=["locked", "changing", "leased"])
def test_what_is_no_lock_is_named(
    tmp_path: Path, found: str, name: str, road: Callable[[Path], AbstractContextManager[object]]
):
    """With its path, what it is, and what to do; nothing is made elsewhere."""
    KINDS[found](tmp_path / name)

    with (
        pytest.raises(LockError, match=f"{name} is {found}; expected a lock file: remove it"),
        road(tmp_path / name),
    ):
        pass

    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("name", "road"), ROADS, ids=["locked", "changing", "leased"])
def test_a_lock_that_may_only_be_read_serves(
    tmp_path: Path, name: str, road: Callable[[Path], AbstractContextManager[object]]
):
    """As do one that a killed process left, and one that holds anything."""
    (tmp_path / name).write_text("1234\n")
    (tmp_path / name).chmod(0o444)

    with road(tmp_path / name):
        held = (tmp_path / name).exists()

    assert held


def test_a_verb_names_a_pipe_in_the_place_of_the_lock(project: Project):
    """Whatever publishes results waited for ever; no record is lost, and the next time publishes it."""
    project.locations.root.mkdir()
    os.mkfifo(project.locations.root / ".metrics.lock")

    done = project.run("tta-pipeline", "results", "rebuild")

    assert 1 == done.returncode
    assert ".metrics.lock is a pipe; expected a lock file: remove it" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pipe_among_decoded_cells_is_passed(tmp_path: Path):
    """It has the name of what is being written, and nobody writes it."""
    cells = DecodedCache(folder=tmp_path, limit_bytes=1)
    cells.own_folder.mkdir()
    os.mkfifo(cells.own_folder / f"unfinished-1-{'1' * 64}-32.pixels")

    assert [] == list(cells.find_unreferenced(()))
    cells.files.make_room(1)
