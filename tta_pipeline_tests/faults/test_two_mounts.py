"""What must hold in one folder mounted twice, where neither mount sees the other's locks, as on some clusters."""

import fcntl
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.result_files import read_result
from tta_pipeline_tests.faults.test_database import PUBLISHER, start
from tta_pipeline_tests.result_paths import result_paths

NUM_RECORDS = 25
RECORDER = """
import sys
from pathlib import Path
from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.results.database.made import record
for number in range(int(sys.argv[3])):
    record(Locations(root=Path(sys.argv[1])), run_id=f"{sys.argv[2]}-{number}")
"""
REPLACER = """
import sys
from pathlib import Path
from tta_pipeline.util.files import published_folder
from tta_pipeline.util.locks import locked_folder
for number in range(40):
    with published_folder(Path(sys.argv[1])) as folder:
        for half in ("one", "two"):
            (folder / half).write_text(f"{sys.argv[2]}-{number}")
    with locked_folder(Path(sys.argv[1])):
        pass
"""
WRITER = """
import sys, time
from pathlib import Path
from tta_pipeline.util import files
files._ALIVE_EVERY_S = 0.1
with files.published_folder(Path(sys.argv[1])) as folder:
    (folder / "new").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""
REMOVER = """
import sys
from pathlib import Path
from tta_pipeline.util import files
files._ABANDONED_AFTER_S = 3
print(len(files.remove_abandoned(Path(sys.argv[1]))))
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """One folder, mounted at two places; a lock at one is not seen at the other, which is proved here."""
    if not shutil.which("bindfs") or not shutil.which("fusermount"):
        pytest.skip("needs bindfs, which mounts a folder at a second place")
    (tmp_path / "folder").mkdir()
    places = (tmp_path / "one", tmp_path / "other")
    try:
        for place in places:
            place.mkdir()
            # Ages of names and attributes are as long as on NFS, where another host's files are seen late.
            mounted = subprocess.run(
                ["bindfs", "--no-allow-other", tmp_path / "folder", place], capture_output=True, text=True, check=False
            )
            if mounted.returncode:
                pytest.skip(f"needs /dev/fuse and the right to mount: {mounted.stderr.strip()}")
        require_no_common_locks(*places)
        yield places
    finally:
        for place in filter(Path.is_mount, places):
            subprocess.run(["fusermount", "-u", "-z", place], check=True)


def require_no_common_locks(one: Path, other: Path) -> None:
    """Prove that a lock holds at each of two mounts of a folder, and that neither sees the other's."""
    (one / "lock").touch()
    for here, there in ((one, other), (other, one)):
        with (here / "lock").open() as held, (here / "lock").open() as again, (there / "lock").open() as elsewhere:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(BlockingIOError):
                fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(elsewhere, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (one / "lock").unlink()


def test_results_of_one_cell_are_all_there(mounts: tuple[Path, Path]):
    """Of six processes at two mounts that evaluate the same cell, every result is there and can be read."""
    processes = [
        start(RECORDER, mounts[number % 2] / "data", name, NUM_RECORDS) for number, name in enumerate("abcdef")
    ]
    for process in processes:
        process.communicate()

    assert [0] * 6 == [process.returncode for process in processes]
    results = [read_result(path).result for path in result_paths(mounts[0] / "data")]
    expected = {f"{name}-{number}" for name in "abcdef" for number in range(NUM_RECORDS)}
    assert expected == {result.run_id for result in results}
    assert len(expected) == len(results)


@pytest.mark.slow
def test_publishing_at_both_mounts_never_breaks_the_database(mounts: tuple[Path, Path]):
    """While both publish at once, readers always find a whole database; one publication at the end has everything."""
    here, there = (Locations(root=mount / "data") for mount in mounts)
    processes = [start(PUBLISHER, each.root, name, 6) for each, name in zip((here, there) * 2, "abcd", strict=True)]
    num_reads = 0
    while any(process.poll() is None for process in processes):
        if there.metrics.exists():
            with open_metrics(there.metrics) as connection:
                connection.execute("SELECT count(*) FROM evaluations").fetchall()
            num_reads += 1
        time.sleep(0.05)
    for process in processes:
        process.communicate()

    assert num_reads
    assert [0] * 4 == [process.returncode for process in processes]
    publish_metrics(here)
    with open_metrics(here.metrics) as connection:
        found = Counter(run for (run,) in connection.execute("SELECT run_id FROM evaluations").fetchall())
    assert {f"{name}-{number}": 1 for name in "abcd" for number in range(6)} == found


def test_a_folder_that_both_mounts_replace_is_whole(mounts: tuple[Path, Path]):
    """However often four processes put theirs in its place at once, each is told the truth, and one stands whole."""
    processes = [start(REPLACER, mounts[number % 2] / "cell", name) for number, name in enumerate("abcd")]
    for process in processes:
        process.communicate()

    assert [0] * 4 == [process.returncode for process in processes]
    one, two = sorted((mounts[0] / "cell").iterdir())
    assert one.read_text() == two.read_text()
    assert [mounts[0] / "cell"] == list(mounts[0].iterdir())


@pytest.mark.slow
def test_a_folder_that_is_written_at_one_mount_is_not_removed_at_the_other(mounts: tuple[Path, Path]):
    """However long it takes, a living process keeps its folder; what a killed one left is removed, at either mount."""

    def removed() -> str:
        with start(REMOVER, mounts[1]) as remover:
            return remover.stdout.read().strip()

    with start(WRITER, mounts[0] / "cell") as writer:
        writer.stdout.readline()
        time.sleep(5)
        assert "0" == removed()
        writer.send_signal(signal.SIGKILL)
    time.sleep(5)

    assert "1" == removed()
    assert not list(mounts[0].iterdir())
