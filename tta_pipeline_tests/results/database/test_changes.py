"""Publishing knows records by content: what was changed, moved, removed or damaged is noticed, and blocks nothing."""

import json
import os
import resource
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_pipeline.cli import main
from tta_pipeline.domain.locations import Locations
from tta_pipeline.extras.doctor import project as doctored
from tta_pipeline.results.database import ingest, record_listing
from tta_pipeline.results.database.database import open_metrics, publish_metrics
from tta_pipeline.results.database.record_listing import Stamp
from tta_pipeline.results.records import encode_record, publish_record, record_file_name
from tta_pipeline_tests.results.database.made import STARTED_AT, forge, record


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Locations:
    """A data root with two cells of one experiment, published."""
    locations = Locations(root=tmp_path_factory.mktemp("published") / "data")
    record(locations, error=0.5)
    record(locations, error=0.25, severity=1)
    publish_metrics(locations)
    return locations


@pytest.fixture
def locations(published: Locations, tmp_path: Path) -> Locations:
    """A copy of it: to the database, its files are as little known as files that are young."""
    return Locations(root=shutil.copytree(published.root, tmp_path / "data"))


def errors(locations: Locations) -> list[tuple[int, float]]:
    """Return severity and error of the latest evaluations in the database."""
    with open_metrics(locations.metrics) as connection:
        return connection.execute(
            "SELECT severity, error FROM evaluations WHERE is_latest ORDER BY severity"
        ).fetchall()


def verb(locations: Locations, *command: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, command, env={"TTA_DATA_ROOT": str(locations.root)})


def marks(locations: Locations) -> list[str]:
    """Return what the doctor thinks of the results."""
    return [finding.mark for finding in doctored.check_result_records(locations)]


def test_results_that_were_made_again_replace_the_old_ones(locations: Locations):
    """A benchmark whose folder was removed, evaluated again under the same names, has the new numbers at once."""
    shutil.rmtree(locations.root / "made")
    record(locations, error=0.75)
    record(locations, error=0.75, severity=1)
    assert ["note"] == marks(locations)

    publication = publish_metrics(locations)

    assert [(1, 0.75), (5, 0.75)] == errors(locations)
    assert publication.was_rebuilt
    assert "2 records changed (made/results/evaluations/tent/fog-1/000001.json" in publication.notes[0]
    assert ["ok"] == marks(locations)


def test_an_edit_with_restored_times_is_noticed(locations: Locations):
    """Size and time of change are what they were; that of the inode is not."""
    path = locations.results("made") / "evaluations" / "tent" / "fog-5" / "000001.json"
    status = path.stat()
    other = record(locations, error=0.75).path
    content = other.read_bytes()
    other.unlink()
    path.write_bytes(content)
    forge(path, frame={"sequence": 1})
    path.write_bytes(path.read_bytes().ljust(status.st_size)[: status.st_size])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (status.st_size, status.st_mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)

    assert "1 record changed" in publish_metrics(locations).notes[0]
    assert (5, 0.5) not in errors(locations)


def test_moved_and_removed_records_are_noticed(locations: Locations):
    """What is gone is named by the doctor and by the next publication, and no number of it is left."""
    folder = locations.results("made") / "evaluations" / "tent" / "fog-1"
    shutil.rmtree(folder)
    findings = list(doctored.check_result_records(locations))
    assert ["note"] == [finding.mark for finding in findings]
    assert "1 record disappeared (made/results/evaluations/tent/fog-1/000001.json)" in findings[0].found

    assert "1 record disappeared" in publish_metrics(locations).notes[0]
    assert [(5, 0.5)] == errors(locations)


ACTION = st.tuples(
    st.sampled_from(["tent", "norm"]), st.integers(1, 2), st.integers(0, 1), st.sampled_from(["", "damage", "publish"])
)


@settings(max_examples=3, deadline=None)
@given(actions=st.lists(ACTION, min_size=3, max_size=6))
def test_a_run_that_publishes_its_own_folder_gives_the_database_of_a_rebuild(actions: list[tuple[str, int, int, str]]):
    """Rows, marks and records that are set aside are the same, whoever published first."""
    with TemporaryDirectory() as folder:
        locations = Locations(root=Path(folder))
        record(locations)
        publish_metrics(locations)
        for experiment, severity, seed, then in actions:
            made = record(locations, experiment=experiment, severity=severity, seed=seed)
            if then == "damage":
                made.path.write_bytes(b"{}")
            elif then == "publish":
                publish_metrics(locations, within=locations.results("made") / "evaluations" / experiment)
        for experiment in ("tent", "norm"):
            publish_metrics(locations, within=locations.results("made") / "evaluations" / experiment)
        published = everything(locations)

        publish_metrics(locations, rebuild=True)

        assert published == everything(locations)


def everything(locations: Locations) -> list[object]:
    """Return the rows of the tables that publications write, in order."""
    with open_metrics(locations.metrics) as connection:
        return [
            connection.execute(f"SELECT {columns} FROM {table} ORDER BY ALL").fetchall()
            for table, columns in (
                ("evaluations", "folder, sequence, seed, is_latest, is_in_file"),
                ("ingested", "folder, sequence, sha256"),
                ("set_aside", "folder, sequence, reason"),
                ("class_results", "folder, sequence"),
            )
        ]


def test_a_run_compares_no_records_but_its_own(locations: Locations):
    """What others recorded meanwhile is added by them, or when the run ends; what is gone of its own is noticed."""
    record(locations, error=0.75, experiment="norm")
    own = locations.results("made") / "evaluations" / "tent"

    assert 0 == publish_metrics(locations, within=own).num_added
    assert 1 == publish_metrics(locations).num_added
    shutil.rmtree(own / "fog-1")
    assert "1 record disappeared" in publish_metrics(locations, within=own).notes[0]


def test_another_stamp_of_the_same_content_changes_nothing(locations: Locations):
    """Files that were copied elsewhere and back are read once more, and then known by their new stamps."""
    copy = shutil.copytree(locations.root / "made", locations.root / "aside")
    shutil.rmtree(locations.root / "made")
    copy.rename(locations.root / "made")

    for _ in range(2):
        publication = publish_metrics(locations)
        assert (0, False, ()) == (publication.num_added, publication.was_rebuilt, publication.notes)
    assert [(1, 0.25), (5, 0.5)] == errors(locations)


def test_a_file_that_changes_while_it_is_young_is_not_trusted():
    """Two changes within one tick of the clock have one time; so a young file is read again next time."""
    old = Stamp(1, 2, 3, 4)
    young = old._replace(ctime_ns=2**62)

    assert old == old.trusted
    assert 0 == young.trusted.ctime_ns


def test_a_publication_without_news_writes_nothing(locations: Locations, monkeypatch: pytest.MonkeyPatch):
    """Once the records are no longer young, the database stays the file that it was."""
    monkeypatch.setattr(record_listing, "_MIN_AGE_S", 0.0)
    publish_metrics(locations)
    before = locations.metrics.stat()

    publish_metrics(locations)

    assert (before.st_ino, before.st_mtime_ns) == (
        locations.metrics.stat().st_ino,
        locations.metrics.stat().st_mtime_ns,
    )


def test_a_copied_benchmark_folder_stops_nobody(locations: Locations):
    """Its records are of another benchmark; they are named in one line, and the others are published."""
    shutil.copytree(locations.root / "made", locations.root / "made_backup")
    record(locations, error=0.75, severity=3)

    publication = publish_metrics(locations)

    (line,) = publication.set_aside
    assert f"{locations.root}/made_backup/results: 2 records" in line
    assert "is of benchmark 'made'; expected made_backup" in line
    assert 1 == publication.num_added
    assert [(1, 0.25), (3, 0.75), (5, 0.5)] == errors(locations)
    again = publish_metrics(locations)
    assert (0, False) == (again.num_added, again.was_rebuilt)

    shutil.rmtree(locations.root / "made_backup")
    assert () == publish_metrics(locations).set_aside


def cut(path: Path) -> None:
    """Lose the end."""
    path.write_bytes(path.read_bytes()[:-20])


def a_number_for_a_time(path: Path) -> None:
    """Write a number where a time stands."""
    forge(path, frame={"started_at": 1e9})


def a_better_error(path: Path) -> None:
    """Write an error that the counts do not have."""
    forge(path, error=0.1)


def test_damaged_records_never_block_the_others(locations: Locations):
    """Each is named with its path by every verb, whose exit status says so, and by the doctor; the others are there."""
    damages = {2: cut, 3: a_number_for_a_time, 4: a_better_error}
    paths = {severity: record(locations, severity=severity, corruption="snow").path for severity in damages}
    record(locations, error=0.75, severity=4)
    for severity, damage in damages.items():
        damage(paths[severity])

    rebuilt = verb(locations, "results", "rebuild")
    asked = verb(locations, "metrics", "--sql", "SELECT severity FROM evaluations WHERE is_latest ORDER BY 1")

    assert [1, 1] == [rebuilt.exit_code, asked.exit_code]
    assert "3 records" in rebuilt.stdout
    assert ["severity", "1", "4", "5"] == asked.stdout.split()
    faults = [finding.found for finding in doctored.check_result_records(locations) if finding.mark == "fault"]
    for told in ([line for line in answer.stderr.splitlines() if "set aside" in line] for answer in (rebuilt, asked)):
        assert len(paths) == len(told)
        assert all(sum(str(path) in line for line in told) == 1 for path in paths.values())
    assert all(sum(str(path) in fault for fault in faults) == 1 for path in paths.values())


def test_a_restored_record_counts_again(locations: Locations):
    """As soon as the file is what it was."""
    path = record(locations, severity=3, error=0.75).path
    content = path.read_bytes()
    cut(path)
    assert 1 == len(publish_metrics(locations).set_aside)

    path.write_bytes(content)

    publication = publish_metrics(locations)
    assert () == publication.set_aside
    assert "1 record changed" in publication.notes[0]
    assert (3, 0.75) in errors(locations)


def test_a_record_of_another_kind_that_fits_no_table_is_set_aside(locations: Locations):
    """A loader's row without its columns, though its hash is right, is named; its neighbours are published."""
    facts = {"benchmark": "made", "corruption": "fog", "severity": 5}
    for loaders in ([], [{"loader": "indexed"}], 5):
        publish_record(
            locations.results("made"), kind="loader_benchmarks", name="fog-5", run_id="r", started_at=STARTED_AT,
            facts={**facts, "loaders": loaders},
        )  # fmt: skip
    record(locations, severity=3)

    publication = publish_metrics(locations)

    assert 2 == publication.num_added
    assert [True, True] == [
        f"fog-5/{name}.json does not fit the database" in line
        for name, line in zip(("000002", "000003"), sorted(publication.set_aside), strict=True)
    ]


def test_records_that_several_processes_read_give_what_one_gives(locations: Locations, monkeypatch: pytest.MonkeyPatch):
    """Row for row; one that is damaged and one that fits no table are named, and their neighbours are there."""
    first = record(locations, severity=3)
    content = json.loads(first.path.read_bytes())["record"]
    for sequence in range(2, 121):
        first.path.with_name(record_file_name(sequence)).write_bytes(encode_record(content | {"sequence": sequence}))
    cut(first.path.with_name(record_file_name(90)))
    publish_record(
        locations.results("made"), kind="loader_benchmarks", name="fog-5", run_id="r", started_at=STARTED_AT,
        facts={"benchmark": "made", "corruption": "fog", "severity": 5, "loaders": 5},
    )  # fmt: skip
    alone = publish_metrics(locations, rebuild=True)
    expected = tables(locations)
    monkeypatch.setattr(ingest, "_MIN_FOR_PROCESSES", 100)
    monkeypatch.setattr(ingest, "_BATCH_SIZE", 20)
    cpu_s = children_cpu_s()

    together = publish_metrics(locations, rebuild=True)

    assert children_cpu_s() > cpu_s
    assert 121 == together.num_added == alone.num_added
    assert expected == tables(locations)
    assert 2 == len(together.set_aside)
    assert alone.set_aside == together.set_aside
    for name in ("tent/fog-3/000090.json", "fog-5/000001.json"):
        assert any(name in line for line in together.set_aside)


def tables(locations: Locations) -> list[list[tuple[Any, ...]]]:
    """Return all rows that records become."""
    names = ("evaluations", "batch_results", "class_results")
    # Of files that are younger than the others less is known.
    known = ("SELECT folder, sequence, sha256 FROM ingested", "SELECT folder, sequence, reason, sha256 FROM set_aside")
    with open_metrics(locations.metrics) as connection:
        return [connection.execute(f"{sql} ORDER BY ALL").fetchall() for sql in (*(f"FROM {n}" for n in names), *known)]


def children_cpu_s() -> float:
    """Return what processes that this one started, and that have ended, have computed."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def test_very_many_that_are_set_aside_are_counted(locations: Locations):
    """Twenty lines, and how many more there are."""
    for number in range(25):
        record(locations, error=number / 80, severity=3)
    for path in (locations.results("made") / "evaluations" / "tent" / "fog-3").iterdir():
        cut(path)

    lines = publish_metrics(locations).set_aside

    assert 21 == len(lines)
    assert lines[-1].startswith("5 more records")
    assert json.loads(verb(locations, "doctor", "--json").stdout or "[]")
