"""What must hold when the database is written by killed processes, on a full disk, by many at once or by others."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline_tests.conftest import in_one_line, start_python
from tta_pipeline_tests.faults.counted import published, recorded
from tta_pipeline_tests.faults.full_disk import run_limited
from tta_pipeline_tests.results.database.made import made_environment, record

REPOSITORY = Path(__file__).parents[2]
PUBLISHER = """
import sys
from pathlib import Path
from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline_tests.results.database.made import record
locations, name, rounds = Locations(root=Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
for number in range(rounds):
    record(locations, run_id=f"{name}-{number}")
    publish_metrics(locations)
    print(f"{name}-{number}", flush=True)
"""
"""Records and publishes so many times, and prints what is published."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root whose database has three evaluations of one cell; not to be changed."""
    locations = Locations(root=tmp_path_factory.mktemp("three"))
    for number in range(3):
        record(locations, run_id=f"first-{number}")
    publish_metrics(locations)
    return locations.root


@pytest.fixture
def locations(three: Path, tmp_path: Path) -> Locations:
    """A copy of it."""
    return Locations(root=shutil.copytree(three, tmp_path / "data"))


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a process of this project."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return start_python(program, *arguments, env=made_environment(), **pipes)


def read_in(root: Path, *verb: str) -> subprocess.CompletedProcess[str]:
    """Run a verb on a data root of which this process has a mount that cannot be written to."""
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", mount, root, sys.executable, "-m", "tta_pipeline", *verb]
    environment = {**os.environ, "TTA_DATA_ROOT": str(root)}
    return subprocess.run(command, check=True, env=environment, capture_output=True, text=True)


def may_mount() -> bool:
    """Return whether this machine lets its users mount."""
    test = "command -v unshare && unshare -rm true"
    return subprocess.run(test, shell=True, check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="needs unshare, and a machine that lets its users mount")
def test_the_results_of_others_are_read_where_nothing_can_be_written(locations: Locations):
    """With every file in the database just that is answered; with a newer result, this is said beside the answer."""
    count = ("query", "SELECT count(*) AS num FROM evaluations", "--json")
    current = read_in(locations.root, *count)
    record(locations, run_id="newer")
    older = read_in(locations.root, *count)

    assert ([{"num": 3}], "") == (json.loads(current.stdout), current.stderr)
    assert [{"num": 3}] == json.loads(older.stdout)
    assert "results that are newer than this table may be missing" in in_one_line(older.stderr)
    assert {"metrics.duckdb", ".metrics.lock", "results"} == {path.name for path in locations.root.iterdir()}


def test_a_killed_publication_loses_nothing_and_doubles_nothing(locations: Locations):
    """Killed before the end of its checkpoint, what it told is there to be read, and then each record counts once."""
    with start(PUBLISHER, locations.root, "killed", 1000) as publisher:
        acknowledged = {publisher.stdout.readline().strip()}
        while not list(locations.root.glob(".unpublished-*/metrics.duckdb.wal")):
            assert publisher.poll() is None
            time.sleep(0.0002)
        publisher.kill()
        acknowledged |= {line.strip() for line in publisher.stdout if line.endswith("\n")}

    assert acknowledged <= set(published(locations))
    for remains in locations.root.glob(".unpublished-*"):
        os.utime(remains, (0, 0))
    publish_metrics(locations)
    assert {1} == set(published(locations).values())
    assert recorded(locations) == published(locations).total()
    assert {".metrics.lock", "metrics.duckdb", "results"} == {path.name for path in locations.root.iterdir()}


def test_only_our_own_abandoned_copies_are_removed(locations: Locations):
    """What lies beside the database under another name is somebody's, and a copy of this moment is being written."""
    ours, living = (locations.root / f".unpublished-{number:032x}-metrics.duckdb" for number in range(2))
    theirs = [locations.root / name for name in (".unpublished-notes", ".metrics.duckdb-0123", ".metrics.duckdb")]
    for path in (ours, living, *theirs):
        path.mkdir(parents=True)
    os.utime(ours, (0, 0))

    publish_metrics(locations)

    assert not ours.exists()
    assert all(path.exists() for path in (living, *theirs))


def test_a_full_disk_leaves_the_database_as_it_was(locations: Locations):
    """The error is one line with the way out, readers keep what they had, and with room again nothing is missing."""
    before = locations.metrics.read_bytes()
    record(locations, run_id="late")

    environment = {**os.environ, "TTA_DATA_ROOT": str(locations.root)}
    status, errors = run_limited(len(before) // 2, "results", "rebuild", env=environment)

    assert 1 == status
    *_, line = in_one_line(errors).strip().splitlines()  # after the progress of a slow machine
    assert line.startswith(f"error: {locations.metrics} cannot be written")
    assert "free space" in line
    assert before == locations.metrics.read_bytes()
    assert {".metrics.lock", "metrics.duckdb", "results"} == {path.name for path in locations.root.iterdir()}
    assert 1 == publish_metrics(locations).num_added
    assert {"first-0": 1, "first-1": 1, "first-2": 1, "late": 1} == published(locations)


@pytest.mark.parametrize("has_results", [False, True])
def test_without_results_there_is_nothing_to_rebuild(tmp_path: Path, *, has_results: bool):
    """Where the database cannot be written, only the command is repeated."""
    locations = Locations(root=tmp_path)
    if has_results:
        record(locations, run_id="first")
    (tmp_path / ".metrics.lock").mkdir()

    with pytest.raises(
        RecordError, match="run `tta-pipeline results rebuild`" if has_results else "repeat the command"
    ):
        publish_metrics(locations)


def test_four_processes_that_publish_at_once_lose_nothing(locations: Locations):
    """Each of them finds its own records published as soon as it is told so, and in the end there is each one once."""
    processes = [start(PUBLISHER, locations.root, name, 1) for name in "abcd"]
    for process in processes:
        process.communicate()

    assert [0] * 4 == [process.returncode for process in processes]
    expected = {f"{name}-0" for name in "abcd"}
    assert dict.fromkeys({"first-0", "first-1", "first-2", *expected}, 1) == published(locations)


WRITE_SESSION = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1])
connection.execute("INSERT INTO mce_baselines VALUES ('mine', 'fog', 5, 0.5, 'me')")
connection.execute("BEGIN")
connection.execute("DELETE FROM evaluations")
print("holds it", flush=True)
sys.stdin.read()
"""


def test_a_write_session_of_somebody_elses_stops_nobody(locations: Locations):
    """While a notebook holds the file locked for writing, results are published, and the note names its process."""
    with start(WRITE_SESSION, locations.metrics) as notebook:
        assert "holds it\n" == notebook.stdout.readline()
        record(locations, run_id="meanwhile")

        done = publish_metrics(locations)

        assert not any("rebuilt" in note for note in done.notes)
        assert any(f"process {notebook.pid} " in note for note in done.notes), done.notes
        assert 4 == published(locations).total()
        notebook.kill()
    assert 0 == publish_metrics(locations).num_added
    assert 4 == published(locations).total()


def test_a_write_session_of_somebody_elses_is_not_taken_for_damage(locations: Locations):
    """Questions are answered from a copy, the process is named, and the file stays the one that it has open."""
    before = locations.metrics.stat().st_ino
    with start(WRITE_SESSION, locations.metrics) as notebook:
        assert "holds it\n" == notebook.stdout.readline()

        asked = CliRunner().invoke(
            main,
            ["query", "FROM evaluations", "--format", "csv"],
            env={"TTA_DATA_ROOT": str(locations.root)},
        )

        assert 0 == asked.exit_code, asked.output
        assert 1 + 3 == len(asked.stdout.splitlines())
        assert f"process {notebook.pid} " in asked.stderr
        assert "rebuilt" not in asked.stderr
        assert before == locations.metrics.stat().st_ino
        notebook.kill()


def test_a_connection_of_this_process_is_not_taken_for_damage(locations: Locations):
    """As a notebook has that writes to the file and asks questions too."""
    with duckdb.connect(locations.metrics):
        with open_metrics(locations.metrics) as connection:
            assert (3,) == connection.execute("SELECT count(*) FROM evaluations").fetchone()
        assert not any("rebuilt" in note for note in publish_metrics(locations).notes)


def test_the_log_of_a_killed_write_session_is_kept_and_not_applied(locations: Locations):
    """What a killed notebook had committed changes no result; the log is set aside and named."""
    with start(WRITE_SESSION, locations.metrics) as notebook:
        assert "holds it\n" == notebook.stdout.readline()
        notebook.kill()
    log = locations.metrics.with_name("metrics.duckdb.wal")
    content = log.read_bytes()

    notes = publish_metrics(locations).notes

    (aside,) = locations.root.glob("*.set-aside-*")
    assert content == aside.read_bytes()
    assert str(aside) in notes[0]
    assert 3 == published(locations).total()
    with open_metrics(locations.metrics) as connection:
        assert (0,) == connection.execute("SELECT count(*) FROM mce_baselines WHERE baseline = 'mine'").fetchone()


def test_a_question_does_not_see_the_log_of_a_killed_write_session(locations: Locations):
    """Nothing was published since, and still the answer is made of results alone."""
    with start(WRITE_SESSION, locations.metrics) as notebook:
        assert "holds it\n" == notebook.stdout.readline()
        notebook.kill()

    asked = CliRunner().invoke(
        main,
        ["query", "SELECT count(*) AS n FROM mce_baselines WHERE baseline = 'mine'", "--format", "csv"],
        env={"TTA_DATA_ROOT": str(locations.root)},
    )

    assert ["n", "0"] == asked.stdout.split(), asked.output
    assert ".set-aside-" in asked.stderr


LEAVING_A_CHILD = """
import os, signal, sys, time
from pathlib import Path
from tta_pipeline.util.locks import locked
signal.alarm(10)
with locked(Path(sys.argv[1])):
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
with locked(Path(sys.argv[1])):
    os.kill(child, signal.SIGKILL)
"""


def test_a_forked_child_keeps_no_lock(tmp_path: Path):
    """A process that was forked during a publication, and lives on, does not stop the next one."""
    with start(LEAVING_A_CHILD, tmp_path / "lock") as process:
        assert 0 == process.wait(timeout=240)


def test_a_damaged_database_tells_no_lie_and_comes_back(locations: Locations):
    """With one bit flipped it says so or what it said; then it is made anew."""
    expected = published(locations)
    content = bytearray(locations.metrics.read_bytes())
    content[int(0.8 * len(content))] ^= 4
    locations.metrics.write_bytes(content)
    with suppress(RecordError):  # it may say so at once
        assert expected == published(locations)

    record(locations, run_id="late")
    publication = publish_metrics(locations)

    assert {**expected, "late": 1} == published(locations)
    assert all("rebuilt from the 4 results" in note for note in publication.notes)


HOSTILE = "x'); DROP TABLE evaluations; --\"|../../<script>"


HOSTILE_FOLDER = HOSTILE.partition("|")[0]
"""What a folder can be called."""


def record_hostile(locations: Locations, where: str, finished_at: str) -> Path:
    """Store a result that has a hostile name as *where*, of its folder too where it can be, and return its path."""
    if where == "run_id":
        return record(locations, run_id=HOSTILE, seed=1, finished_at=finished_at).path
    is_folder = where in ("benchmark", "experiment", "stream")
    changes = {where: HOSTILE_FOLDER if is_folder else HOSTILE, "fingerprint": where}
    return record(locations, run_id="late", seed=1, finished_at=finished_at, **changes).path


def test_a_hostile_name_stays_text(locations: Locations):
    """Whatever is called like SQL, a path or a script is stored letter for letter and known again."""
    named = ("run_id", "benchmark", "experiment", "stream", "model", "method")
    for where in named:
        _, second, _ = (record_hostile(locations, where, f"2026-01-0{day}T00:00:00+00:00") for day in (1, 2, 3))
        second.unlink()
    publication = publish_metrics(locations)
    assert (2 * len(named), ()) == (publication.num_added, publication.set_aside)
    assert 0 == publish_metrics(locations).num_added

    with open_metrics(locations.metrics) as connection:
        for where in named:
            names = [name for (name,) in connection.execute(f"SELECT {where} FROM evaluations").fetchall()]
            assert 3 + 2 * len(named) == len(names)
            assert 2 == sum(name in (HOSTILE, HOSTILE_FOLDER) for name in names), where


def test_a_run_with_a_hostile_name_is_asked_for(locations: Locations):
    """As an argument of the command it is text as well."""
    record(locations, run_id=HOSTILE)
    publish_metrics(locations)

    command = ["compare", "--runs", "first-2", HOSTILE, "--json"]
    answer = CliRunner().invoke(main, command, env={"TTA_DATA_ROOT": str(locations.root)})

    assert 1 == len(json.loads(answer.stdout))
