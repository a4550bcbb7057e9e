"""The database is made from the results, whole each time, and nobody waits for anybody."""

import ast
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tta_pipeline.domain.locations import RESULTS, Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import ensure_current, publish_metrics
from tta_pipeline.results.result_files import StoredResult, read_result, store_result, utc_now
from tta_pipeline.results.shard_set_rows import MEASUREMENTS_FILE
from tta_pipeline_tests.conftest import Project, start_python
from tta_pipeline_tests.flat_facts import changed, flat_row
from tta_pipeline_tests.result_paths import result_paths, results_of
from tta_pipeline_tests.results.database.made import evaluation_of, made_environment, with_error

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "tta_pipeline"
TABLES = ("evaluations", "batch_results", "class_results", "shard_sets", "results", "plans")


@pytest.fixture
def locations(sweep: Project, tmp_path: Path) -> Locations:
    """A copy of the sweep's results and of what its shards cost, without a database."""
    shutil.copytree(sweep.locations.root / RESULTS, tmp_path / RESULTS)
    for path in sweep.locations.root.rglob(MEASUREMENTS_FILE):
        copy = tmp_path / path.relative_to(sweep.locations.root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return Locations(root=tmp_path)


@pytest.fixture
def published(sweep: Project, locations: Locations) -> Locations:
    """The same, with the sweep's database."""
    shutil.copy2(sweep.locations.metrics, locations.metrics)
    return locations


def rows(path: Path) -> dict[str, list[tuple]]:
    """Return all rows of all tables."""
    with open_metrics(path) as connection:
        return {table: connection.execute(f"FROM {table} ORDER BY ALL").fetchall() for table in TABLES}


@pytest.fixture(scope="module")
def swept(sweep: Project) -> dict[str, list[tuple]]:
    """All rows of the database that grew during the sweep."""
    return rows(sweep.locations.metrics)


def again(locations: Locations, *, error: float | None = None, **changes: object) -> StoredResult:
    """Store another result of a cell that has one, with some facts changed."""
    (first, *_) = [each for each in results_of(locations.root, "small", "tent") if each.result.key == "contrast-5"]
    (row,) = first.result.evaluations
    before = row if error is None else evaluation_of(with_error(flat_row(row), error))
    now = (changed(before, **changes),)
    result = replace(first.result, run_id="another", finished_at=utc_now(), evaluations=now)
    return store_result(locations.results("small"), result)


def test_a_rebuilt_database_has_the_rows_it_had(swept: dict[str, list[tuple]], locations: Locations):
    """Made at once from the records, the database equals the one that grew during the sweep."""
    publish_metrics(locations, rebuild=True)

    assert swept == rows(locations.metrics)


def test_a_later_pass_adds_a_timing_and_changes_no_error(published: Locations):
    """Of two results with one fingerprint the older one counts; how far their errors are apart is said."""
    question = (
        "SELECT run_id <> 'another', error, num_timings, devices_differ_by FROM evaluations "
        "WHERE counts AND experiment = 'tent' AND corruption = 'contrast' AND severity = 5"
    )

    def found() -> list[tuple[Any, ...]]:
        publish_metrics(published)
        with open_metrics(published.metrics) as connection:
            return connection.execute(question).fetchall()

    [(_, error, _, _)] = found()
    again(published, error=0.5, predictions_sha256="0" * 64)

    assert [(True, error, 2, pytest.approx(abs(0.5 - error)))] == found()


def test_an_open_reader_neither_waits_nor_is_waited_for(published: Locations):
    """While another process holds the database open, a publication succeeds, and the reader keeps what it saw."""
    program = (
        "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True).execute;"
        "q = 'SELECT count(*) FROM evaluations';"
        "print(c(q).fetchone()[0], flush=True); sys.stdin.readline(); print(c(q).fetchone()[0], flush=True)"
    )
    with start_python(program, published.metrics, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        seen = int(reader.stdout.readline())
        again(published)
        assert 1 == publish_metrics(published).num_added
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert seen == int(reader.stdout.readline())

    assert seen + 1 == len(rows(published.metrics)["evaluations"])


def test_no_bar_is_drawn_into_an_answer_that_takes_long(sweep: Project):
    """DuckDB draws one into standard output after two seconds, where CSV and JSON go."""
    with open_metrics(sweep.locations.metrics) as connection:
        assert connection.execute("SELECT current_setting('enable_progress_bar')").fetchone() == (False,)
        with pytest.raises(duckdb.Error, match="enable_progress_bar"):
            connection.execute("SET enable_progress_bar = true")


def test_text_stays_text(published: Locations):
    """A name that looks like SQL is stored as it is."""
    hostile = "x'); DROP TABLE evaluations; --"
    again(published, model=hostile)
    publish_metrics(published)

    with open_metrics(published.metrics) as connection:
        assert (1,) == connection.execute("SELECT count(*) FROM evaluations WHERE model = ?", [hostile]).fetchone()


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM read_text('/etc/passwd')", "ATTACH '/tmp/x.db'", "DELETE FROM evaluations"]
)
def test_a_reader_reaches_nothing_else(sweep: Project, sql: str):
    """Opened by us, the database reads no other file and changes no row."""
    with open_metrics(sweep.locations.metrics) as connection, pytest.raises(duckdb.Error):
        connection.execute(sql)


def test_nothing_is_without_a_comment(sweep: Project):
    """Every table, view and macro says what it is, and so does each of their columns, in a sentence of some words."""
    with open_metrics(sweep.locations.metrics) as connection:
        comments = connection.execute(
            """
            SELECT table_name, comment FROM duckdb_tables()
            UNION ALL SELECT view_name, comment FROM duckdb_views() WHERE NOT internal
            UNION ALL SELECT table_name || '.' || column_name, comment FROM duckdb_columns() WHERE NOT internal
            UNION ALL SELECT function_name, comment FROM duckdb_functions() WHERE NOT internal
            """
        ).fetchall()
    assert len(comments) > 300
    assert [] == [name for name, comment in comments if not comment]


def test_every_nullable_column_is_written_somewhere(schema: duckdb.DuckDBPyConnection):
    """A column that nothing fills would be NULL for ever; one that may not be NULL is demanded by the database."""
    nullable = schema.execute(
        """
        SELECT c.table_name, c.column_name FROM duckdb_columns() AS c JOIN duckdb_tables() USING (table_name)
        WHERE c.is_nullable
        """
    ).fetchall()
    assert len(nullable) > 10
    # A column of a part of a result has the part's prefix, and its field has not.
    missing = {each: {each[1], each[1].removeprefix("bin_")} for each in nullable}

    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if any(name in text for names in missing.values() for name in names):
            written = written_names(ast.parse(text))
            missing = {each: names for each, names in missing.items() if names.isdisjoint(written)}

    assert [] == list(missing)


def written_names(tree: ast.AST) -> set[str]:
    """Return the names that a module gives values: keywords of calls, keys of dictionaries, columns that SQL sets."""
    written: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            written |= {keyword.arg for keyword in node.keywords if keyword.arg}
        elif isinstance(node, ast.Dict):
            written |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            written |= set(re.findall(r"\b(\w+) = ", node.value)) if "UPDATE" in node.value else set()
    return written


def test_every_view_is_asked_for(schema: duckdb.DuckDBPyConnection):
    """By the package, by another view, or in a query of the documents; the lists of all views are no queries."""
    asking = "\n".join(path.read_text() for path in [*PACKAGE.rglob("*.py"), *(PACKAGE / "results").rglob("*.sql")])
    lists = {"metrics.md", "database.md"}
    asking += "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md") if path.name not in lists)
    asked = set(re.findall(r'(?:\b(?:FROM|JOIN)\s+|[`"](?=\w+[`"]))(\w+)', asking))
    called = Counter(re.findall(r"\b(\w+)\(", asking))
    views = schema.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    macros = schema.execute("SELECT function_name FROM duckdb_functions() WHERE NOT internal").fetchall()

    assert views
    assert [] == [name for (name,) in views if name not in asked]
    assert [] == [name for (name,) in macros if called[name] < 2]


def test_a_database_of_another_schema_is_made_anew_and_said_to_be(published: Locations):
    """Opened by whoever needs it, an older database comes back from the results, all of them, with a word about it."""
    before = rows(published.metrics)
    with duckdb.connect(published.metrics) as connection:
        connection.execute("UPDATE publication SET schema_version = '3'")
        connection.execute("DELETE FROM evaluations")

    (note,) = ensure_current(published)

    assert "had schema 3; expected" in note
    assert f"rebuilt from the {len(before['results'])} results" in note
    assert before == rows(published.metrics)
    assert () == ensure_current(published)


def test_a_result_taken_away_does_not_hide_another(published: Locations):
    """The database is then without the one that is gone, and with the new one."""
    taken = [again(published, error=error) for error in (0.25, 0.5, 0.75)][1]
    publish_metrics(published)
    taken.path.unlink()
    again(published, error=0.1)

    assert 1 == publish_metrics(published).num_added
    assert len(result_paths(published.root)) == len(rows(published.metrics)["results"])
    assert 0 == publish_metrics(published).num_added


@pytest.mark.parametrize(
    "impossible",
    [
        {"severity": -1},
        {"num_correct": 10**9},
        {"ece": -0.1},
        {"brier": 3.0},
        {"precision": "fp8"},
        {"wall_s": 0.0},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(locations: Locations, impossible: dict[str, object]):
    """Unknown names and numbers out of range get no file, and the message has the field and its value."""
    ((name, value),) = impossible.items()
    with pytest.raises(RecordError, match=rf"\b{name}\b.*{value}"):
        again(locations, **impossible)


def test_a_file_that_is_no_database_of_ours_is_made_anew(swept: dict[str, list[tuple]], locations: Locations):
    """Where nothing is left of it, the database comes back from the results."""
    locations.metrics.write_bytes(b"")

    assert any("rebuilt" in note for note in publish_metrics(locations).notes)
    assert swept == rows(locations.metrics)


def test_a_foreign_write_ahead_log_is_set_aside_and_reported(published: Locations):
    """What somebody's own session left beside the database is kept, named and not applied."""
    log = published.metrics.with_name("metrics.duckdb.wal")
    log.write_bytes(b"somebody's")

    publication = publish_metrics(published)

    assert str(log) in publication.notes[0]
    assert [b"somebody's"] == [path.read_bytes() for path in published.root.glob("*.set-aside-*")]


@pytest.mark.parametrize("facts", [{"wall_s": float("nan")}, {"wall_s": float("inf")}])
def test_a_number_that_is_none_is_not_stored(locations: Locations, facts: dict[str, float]):
    """No file is left of a result that is no finite number."""
    before = result_paths(locations.root)

    with pytest.raises(RecordError, match="contrast-5"):
        again(locations, **facts)
    assert before == result_paths(locations.root)


def test_four_processes_that_store_at_once_lose_nothing(locations: Locations):
    """Four processes evaluate the same cell five times each: twenty results with names of their own."""
    program = (
        "import sys; from pathlib import Path; from tta_pipeline.domain.locations import Locations\n"
        "from tta_pipeline_tests.results.database.made import record\n"
        "for n in range(5): record(Locations(root=Path(sys.argv[1])), benchmark='many', run_id=sys.argv[2], seed=n)"
    )
    processes = [start_python(program, locations.root, n, env=made_environment()) for n in range(4)]

    assert [0] * 4 == [process.wait() for process in processes]
    stored = [read_result(path).result for path in result_paths(locations.root, "many/*")]
    assert sorted((str(run), n) for run in range(4) for n in range(5)) == sorted(
        (each.run_id, each.evaluations[0].cell.seed) for each in stored
    )
