"""A publication knows results by name and size: what came, went or was damaged is noticed, and blocks nothing."""

import hashlib
import json
import resource
import shutil
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_pipeline.cli import main
from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database import ingest
from tta_pipeline.results.database.changes import _CHECKED, compare
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.listing import list_files
from tta_pipeline.results.database.publication import ensure_current, publish_metrics
from tta_pipeline.results.plans import plan_path
from tta_pipeline.results.result_files import Result as StoredContent
from tta_pipeline.results.result_files import store_result, void_result
from tta_pipeline_tests.result_paths import remove_results, result_paths
from tta_pipeline_tests.results.database.made import STARTED_AT, forge, record
from tta_pipeline_tests.results.database.trained import record_training, training_run


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
    """A copy of it."""
    return Locations(root=shutil.copytree(published.root, tmp_path / "data"))


def errors(locations: Locations) -> list[tuple[int, float]]:
    """Return severity and error of the evaluations that count in the database."""
    with open_metrics(locations.metrics) as connection:
        return connection.execute("SELECT severity, error FROM evaluations WHERE counts ORDER BY severity").fetchall()


def verb(locations: Locations, *command: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, command, env={"TTA_DATA_ROOT": str(locations.root)})


def test_results_that_were_made_again_replace_the_old_ones(locations: Locations):
    """A benchmark whose folder was removed and evaluated again has the new numbers at once."""
    shutil.rmtree(locations.results("made"))
    record(locations, error=0.75)
    record(locations, error=0.75, severity=1)

    publication = publish_metrics(locations)

    assert [(1, 0.75), (5, 0.75)] == errors(locations)
    assert () == publication.notes
    assert () == publish_metrics(locations).notes


def test_moved_and_removed_results_count_no_more(locations: Locations):
    """Nor do those in a hidden folder, such as a snapshot; they count again once they are back."""
    folder = locations.results("made") / "fog-1"
    hidden = folder.rename(folder.with_name(".snapshot"))

    assert () == publish_metrics(locations).set_aside
    assert [(5, 0.5)] == errors(locations)

    hidden.rename(folder)
    assert 1 == publish_metrics(locations).num_added
    assert [(1, 0.25), (5, 0.5)] == errors(locations)


def test_a_void_result_counts_no_more(locations: Locations):
    """The next one of its fingerprint does, with the timing of that one alone; without the note all is as before."""
    (path,) = result_paths(locations.root, "made/fog-5")
    record(locations, error=0.375)
    before = everything(locations)
    note = void_result(path, "the card was faulty")

    publish_metrics(locations)
    assert [(1, 0.25), (5, 0.375)] == errors(locations)
    assert [(1,)] == ask(locations, "SELECT num_timings FROM evaluations WHERE counts AND severity = 5")
    assert [("the card was faulty",)] == ask(locations, "SELECT void FROM results WHERE void IS NOT NULL")

    note.unlink()
    assert before == everything(locations)


THEN = ("", "damage", "void", "remove", "drop plan", "share", "take away")
Action = tuple[str, int, int, str]


def grow(locations: Locations, *rounds: Sequence[Action]) -> dict[str, list[tuple[Any, ...]]]:
    """Publish after each round of actions, and return all rows.

    An action follows a new result of its cell, except that one takes the first result of it away.
    """
    stored: defaultdict[tuple[str, int, int], list[Path]] = defaultdict(list)
    record(locations)
    publish_metrics(locations)
    for actions in rounds:
        for experiment, severity, seed, then in actions:
            if then == "take away":
                for path in stored.pop((experiment, severity, seed), [])[:1]:
                    path.unlink(missing_ok=True)
                continue
            shared = {"fingerprint": f"{severity} {seed}"} if then == "share" else {}
            made = record(locations, experiment=experiment, severity=severity, seed=seed, **shared)
            stored[experiment, severity, seed].append(made.path)
            if then == "damage":
                made.path.write_bytes(b"{}")
            elif then == "void":
                void_result(made.path, "a test")
            elif then == "remove":
                made.path.unlink()
            elif then == "drop plan":
                plan_path(locations, "made", experiment).unlink()
        publish_metrics(locations)
    return everything(locations)


def test_a_database_that_grew_equals_one_that_is_rebuilt(tmp_path: Path):
    """Row for row, what came, went, was damaged, voided, shared or no longer asked for between publications."""
    locations = Locations(root=tmp_path)
    grown = grow(
        locations,
        [("tent", 2, 1, ""), ("tent", 2, 1, "")],
        [("tent", 1, 0, ""), ("tent", 2, 0, "share"), ("norm", 2, 0, "share"), ("norm", 1, 1, "void")],
        [("norm", 2, 0, "drop plan")],
        [("norm", 1, 0, "damage"), ("tent", 1, 0, "remove"), ("tent", 2, 0, "void")],
        [("tent", 1, 0, ""), ("norm", 1, 1, "drop plan"), ("tent", 2, 0, "share")],
        [("tent", 2, 1, "take away")],
    )

    publish_metrics(locations, rebuild=True)

    assert grown == everything(locations)
    assert {"tent"} == {experiment for (experiment,) in ask(locations, "SELECT experiment FROM plans")}


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["tent", "norm"]), st.integers(1, 2), st.integers(0, 1), st.sampled_from(THEN)),
        min_size=3,
        max_size=7,
    )
)
def test_a_database_that_grew_in_any_way_equals_one_that_is_rebuilt(actions: list[Action]):
    """Row for row, whatever happened between publications."""
    with TemporaryDirectory() as folder:
        locations = Locations(root=Path(folder))
        grown = grow(locations, *([action] for action in actions))

        publish_metrics(locations, rebuild=True)

        assert grown == everything(locations)


def everything(locations: Locations) -> dict[str, list[tuple[Any, ...]]]:
    """Publish, and return all rows that depend on files."""
    publish_metrics(locations)
    with open_metrics(locations.metrics) as connection:
        names = [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        return {
            name: connection.execute(f"FROM {name} ORDER BY ALL").fetchall()
            for name in names
            if name not in {"publication", "contents"}
        }


def ask(locations: Locations, sql: str) -> list[tuple[Any, ...]]:
    """Return the answer to a question."""
    with open_metrics(locations.metrics) as connection:
        return connection.execute(sql).fetchall()


def test_another_time_of_the_same_content_changes_nothing(locations: Locations):
    """Files that were copied elsewhere and back are the same files: a publication writes nothing."""
    copy = shutil.copytree(locations.root / "results", locations.root / "aside")
    shutil.rmtree(locations.root / "results")
    copy.rename(locations.root / "results")
    before = locations.metrics.stat()

    publication = publish_metrics(locations)

    assert (0, ()) == (publication.num_added, publication.notes)
    assert (before.st_ino, before.st_mtime_ns) == (
        locations.metrics.stat().st_ino,
        locations.metrics.stat().st_mtime_ns,
    )


def test_results_of_two_machines_are_copied_into_one_folder(locations: Locations, tmp_path: Path):
    """No two files have one name, so neither replaces the other; the older result counts, with two timings."""
    other = Locations(root=tmp_path / "other")
    record(other, error=0.5, wall_s=5.0)
    for path in result_paths(other.root):
        shutil.copy(path, locations.root / path.relative_to(other.root))

    assert 1 == publish_metrics(locations).num_added
    assert [(1, 0.25), (5, 0.5)] == errors(locations)
    found = ask(locations, "SELECT num_timings, median_wall_s FROM evaluations WHERE counts AND severity = 5")
    assert [(2, 3.125)] == found


def test_a_copied_benchmark_folder_stops_nobody(locations: Locations):
    """Its results are of another benchmark; they are named in one line, and the others are published."""
    shutil.copytree(locations.results("made"), locations.results("made_backup"))
    record(locations, error=0.75, severity=3)

    publication = publish_metrics(locations)

    assert any("made_backup" in line and "belongs to made" in line for line in publication.set_aside)
    assert 1 == publication.num_added
    assert [(1, 0.25), (3, 0.75), (5, 0.5)] == errors(locations)
    again = publish_metrics(locations)
    assert (0, ()) == (again.num_added, again.notes)

    shutil.rmtree(locations.results("made_backup"))
    assert () == publish_metrics(locations).set_aside


def cut(path: Path) -> None:
    """Lose the end."""
    path.write_bytes(path.read_bytes()[:-20])


def test_damaged_results_never_block_the_others(locations: Locations):
    """Each is named with its path by every verb, whose exit status says so; the others are there.

    Its end is lost, a number stands for a time, or an error is not that of the counts.
    """
    damages = (cut, partial(forge, frame={"started_at": 1e9}), partial(forge, error=0.1))
    for severity, damage in enumerate(damages, start=2):
        damage(record(locations, severity=severity, corruption="snow").path)
    record(locations, error=0.75, severity=4)

    rebuilt = verb(locations, "results", "rebuild")
    asked = verb(locations, "query", "SELECT severity FROM evaluations WHERE counts ORDER BY 1")

    assert [1, 1] == [rebuilt.exit_code, asked.exit_code]
    assert "3 results" in rebuilt.stdout
    assert ["severity", "1", "4", "5"] == asked.stdout.split()
    for told in ([line for line in answer.stderr.splitlines() if "set aside" in line] for answer in (rebuilt, asked)):
        assert len(damages) == len(told)
        for severity in (2, 3, 4):
            assert 1 == sum(f"snow-{severity}/" in line for line in told)


def test_a_flipped_bit_is_found_by_verification(locations: Locations):
    """A publication looks at names and sizes alone; `results verify` and a rebuild hash every file."""
    (path,) = result_paths(locations.root, "made/fog-5")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(bytes(content))
    assert () == publish_metrics(locations).set_aside

    verified = verb(locations, "results", "verify")
    (refused,) = publish_metrics(locations, rebuild=True).set_aside

    assert 1 == verified.exit_code
    assert str(path) in verified.output
    assert str(path) in refused
    assert [(1, 0.25)] == errors(locations)


def test_a_restored_result_counts_again(locations: Locations):
    """As soon as the file is what it was."""
    path = record(locations, severity=3, error=0.75).path
    content = path.read_bytes()
    cut(path)
    assert 1 == len(publish_metrics(locations).set_aside)

    path.write_bytes(content)

    assert () == publish_metrics(locations).set_aside
    assert (3, 0.75) in errors(locations)


TAMPERED = {
    "results": "UPDATE results SET void = 'not liked' WHERE file LIKE '%fog-5%'",
    "evaluations": "UPDATE evaluations SET nll = 0.0001",
    "class_results": "UPDATE class_results SET num_correct = num_samples",
    "batch_results": "UPDATE batch_results SET num_correct = num_samples",
    "plans": "UPDATE plans SET num_asked = 1",
    "set_aside": "INSERT INTO set_aside VALUES ('results/made/fog-5/0.json', 1, 'made up')",
    "training_runs": "UPDATE training_runs SET counts = FALSE",
    "tunings": "INSERT INTO tunings SELECT * FROM tunings",
    "shard_sets": "UPDATE shard_sets SET corruption = 'snow'",
}


def tamper(locations: Locations, table: str) -> str:
    """Write to a table as another program would; return what is then said."""
    with duckdb.connect(locations.metrics) as connection:
        connection.execute(TAMPERED[table])
    return f"rows of the table {table} in {locations.metrics} were changed by another program"


def test_a_database_that_another_program_wrote_to_is_made_anew(locations: Locations):
    """The rows are those of the files again, and a line says so."""
    before = everything(locations)
    said = tamper(locations, "evaluations")

    (note,) = ensure_current(locations)

    assert said in note
    assert before == everything(locations)


@pytest.fixture(scope="module")
def trained(published: Locations, tmp_path_factory: pytest.TempPathFactory) -> Locations:
    """The published data root with a training."""
    locations = Locations(root=shutil.copytree(published.root, tmp_path_factory.mktemp("trained") / "data"))
    record_training(locations, training_run(benchmark="made"))
    publish_metrics(locations)
    return locations


@pytest.mark.parametrize("table", [name for name in TAMPERED if name not in {"tunings", "shard_sets"}])
def test_whatever_another_program_wrote_is_noticed(trained: Locations, tmp_path: Path, table: str):
    """Whatever table it was, the database cannot be continued, which is why it is made anew."""
    locations = Locations(root=shutil.copytree(trained.root, tmp_path / "data"))
    assert not compare(locations, list_files(locations.root)).why_anew
    said = tamper(locations, table)

    assert said == compare(locations, list_files(locations.root)).why_anew


def test_every_table_that_a_result_becomes_is_checked():
    """Each has its way to be tampered with above."""
    assert set(_CHECKED) == set(TAMPERED)


def test_a_result_of_another_kind_that_fits_no_table_is_set_aside(locations: Locations):
    """A loader's row without its columns, though its hash is right, is named; its neighbours are published."""
    paths = [store_loaders(locations, number, loaders) for number, loaders in enumerate(([{"loader": "indexed"}], 5))]
    record(locations, severity=3)

    publication = publish_metrics(locations)

    assert 1 == publication.num_added
    for path in paths:
        assert any(f"{path} does not fit the database" in line for line in publication.set_aside)


def store_loaders(locations: Locations, number: int, loaders: object) -> Path:
    """Store a measurement of *loaders*."""
    result = StoredContent(
        kind="loaders", benchmark="made", key="loaders", fingerprint=None, run_id="r", started_at=STARTED_AT,
        finished_at=f"2026-01-01T00:00:{number:02d}+00:00", versions={},
        loaders={"benchmark": "made", "corruption": "fog", "severity": 5, "loaders": loaders},
    )  # fmt: skip
    return store_result(locations.results("made"), result).path


def test_results_that_several_processes_read_give_what_one_gives(locations: Locations, monkeypatch: pytest.MonkeyPatch):
    """Row for row; one that is damaged and one that fits no table are named, and their neighbours are there."""
    paths = [record(locations, severity=3).path for _ in range(10)]
    cut(paths[5])
    store_loaders(locations, 0, 5)
    alone = publish_metrics(locations, rebuild=True)
    expected = everything(locations)
    monkeypatch.setattr(ingest, "_MIN_FOR_PROCESSES", 8)
    monkeypatch.setattr(ingest, "_BATCH_SIZE", 2)
    cpu_s = children_cpu_s()

    together = publish_metrics(locations, rebuild=True)

    assert children_cpu_s() > cpu_s
    assert 11 == together.num_added == alone.num_added
    assert expected == everything(locations)
    assert 2 == len(together.set_aside)
    assert alone.set_aside == together.set_aside


def children_cpu_s() -> float:
    """Return what processes that this one started, and that have ended, have computed."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def test_very_many_that_are_set_aside_are_counted(locations: Locations):
    """Twenty lines, and how many more there are."""
    for number in range(25):
        cut(record(locations, error=number / 80, severity=3).path)

    lines = publish_metrics(locations).set_aside

    assert 21 == len(lines)
    assert lines[-1].startswith("5 more files")
    assert json.loads(verb(locations, "doctor", "--json").stdout or "[]")


def test_a_plan_that_is_gone_takes_its_experiment_out(locations: Locations):
    """Its results stay as files, and count again with the plan, byte by byte the same."""
    plan = plan_path(locations, "made", "tent")
    content = plan.read_bytes()
    before = everything(locations)
    plan.unlink()

    publish_metrics(locations)
    assert [] == errors(locations)
    assert 2 == len(result_paths(locations.root))

    plan.write_bytes(content)
    assert before == everything(locations)


def test_an_experiment_that_lost_results_is_not_whole(locations: Locations):
    """The leaderboard says of how many cells its mean is."""
    remove_results(locations.root, "made", "tent", "fog-1")

    publish_metrics(locations)

    assert [(1, 2)] == ask(locations, "SELECT num_cells, num_cells_asked FROM leaderboard")


def test_a_file_is_named_by_its_content(locations: Locations):
    """So anybody can check it with one command, without this project."""
    for path in result_paths(locations.root):
        assert path.stem.endswith(hashlib.sha256(path.read_bytes()).hexdigest()[:8])
