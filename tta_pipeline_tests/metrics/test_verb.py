"""`tta-pipeline metrics` answers, in the form that is wanted."""

import csv
import io
import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tta_pipeline.cli import main
from tta_pipeline.locations import Locations
from tta_pipeline.metrics.database import publish_metrics
from tta_pipeline_tests.metrics.made import record


@pytest.fixture(scope="module")
def locations(tmp_path_factory: pytest.TempPathFactory) -> Locations:
    """Two runs of two experiments on two corruptions, and another benchmark."""
    locations = Locations(root=tmp_path_factory.mktemp("verb"))
    for run_id, speed in (("abc-1", 100.0), ("abd-2", 50.0)):
        for corruption in ("fog", "snow"):
            record(locations, corruption=corruption, error=0.25, images_per_s=speed, run_id=run_id)
            record(locations, corruption=corruption, error=0.5, experiment="source", run_id=run_id)
    record(locations, benchmark="other_b", error=0.75, experiment="a_b", run_id="other")
    publish_metrics(locations)
    return locations


@pytest.fixture
def ask(locations: Locations):
    """Return a function that calls the verb."""

    def ask(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["metrics", *arguments], env={"TTA_DATA_ROOT": str(locations.root)})

    return ask


def test_the_leaderboard_leaves_out_what_goes_without_saying(ask):
    """No column of one seed, of all samples or of nothing."""
    finished = ask()

    assert 0 == finished.exit_code, finished.output
    assert ["made", "tent"] == finished.stdout.splitlines()[1].split()[:2]
    assert "25.0%" in finished.stdout
    for absent in ("num runs", "subset", "mce"):
        assert absent not in finished.stdout


def test_a_rebuild_counts_records(locations: Locations):
    """Told of records, to a person and to a program."""

    def rebuild(*options: str) -> Result:
        return CliRunner().invoke(main, ["rebuild-metrics", *options], env={"TTA_DATA_ROOT": str(locations.root)})

    assert f"{locations.metrics}: 9 records\n" == rebuild().stdout
    assert [{"database": str(locations.metrics), "num_records": 9, "set_aside": []}] == json.loads(
        rebuild("--json").stdout
    )
    assert ("", "") == (rebuild("--quiet").stdout, rebuild("--quiet").stderr)


def test_programs_get_every_column_and_digit(ask):
    """CSV and JSON have the same rows, numbers in full, and nothing where there is none."""
    rows = json.loads(ask("--format", "json").stdout)
    lines = list(csv.DictReader(io.StringIO(ask("--format", "csv").stdout)))

    assert [row["experiment"] for row in rows] == [line["experiment"] for line in lines] == ["tent", "source", "a_b"]
    assert 0.25 == rows[0]["mean_error"] == float(lines[0]["mean_error"])
    assert rows[0]["mce"] is None
    assert "" == lines[0]["mce"]


def test_the_best_of_those_that_compare_is_bold(ask):
    """In LaTeX and Markdown; a benchmark with one experiment has no best."""
    latex, markdown = (ask("--format", form).stdout for form in ("latex", "markdown"))

    assert r"\textbf{25.0\%}" in latex
    assert r"other\_b & a\_b" in latex
    assert "**25.0%**" in markdown
    for text in (latex, markdown):
        (line,) = [line for line in text.splitlines() if "other" in line]
        assert "textbf" not in line
        assert "**" not in line


def test_by_corruption_has_a_line_for_each_corruption_and_experiment(ask):
    """In the canonical order, the better experiment first."""
    rows = json.loads(ask("--by", "corruption", "--format", "json").stdout)

    expected = [("snow", "tent"), ("snow", "source"), ("fog", "tent"), ("fog", "source"), ("fog", "a_b")]
    assert expected == [(row["corruption"], row["experiment"]) for row in rows]


def test_runs_are_compared_by_the_beginnings_of_their_ids(ask):
    """Cell by cell, with the change from the first to the second."""
    rows = json.loads(ask("--compare", "abc", "abd-2", "--format", "json").stdout)

    assert 4 == len(rows)
    assert {0.5, 1.0} == {row["speed_ratio"] for row in rows}
    assert all(row["same_settings"] and row["error_change"] == 0 for row in rows)


@pytest.mark.parametrize(
    ("run", "found"),
    [
        ("ab", "found 2 runs whose id begins with 'ab': abc-1, abd-2"),
        ("zz", "found 0 runs whose id begins with 'zz'; expected one"),
    ],
)
def test_a_run_that_is_not_one_is_named(ask, run: str, found: str):
    """With the choices, and how to list them."""
    finished = ask("--compare", run, "other")

    assert 2 == finished.exit_code
    assert found in finished.stderr
    assert "FROM runs" in finished.stderr


def test_parquet_goes_to_a_file(ask, tmp_path: Path):
    """Which any reader opens; without a file the command says what it needs."""
    path = tmp_path / "new" / "table.parquet"

    assert 0 == ask("--format", "parquet", "--output", str(path)).exit_code
    assert [0.25, 0.5, 0.75] == pq.read_table(path)["mean_error"].to_pylist()
    assert "needs --output FILE" in ask("--format", "parquet").stderr


def test_text_goes_to_a_file_too(ask, tmp_path: Path):
    """Its lines are whole."""
    path = tmp_path / "table.tex"

    assert "" == ask("--by", "corruption", "--format", "latex", "--output", str(path)).stdout
    assert path.read_text().endswith("\\end{tabular}\n")


@pytest.mark.parametrize(
    "sql", ["DELETE FROM evaluations", "COPY evaluations TO '/tmp/x.csv'", "INSTALL httpfs", "SET threads = 1"]
)
def test_a_question_changes_nothing(ask, sql: str):
    """Rows, files, extensions and settings are out of its reach, and the error is one line without a traceback."""
    finished = ask("--sql", sql)

    assert 2 == finished.exit_code
    assert "Traceback" not in finished.output


def test_an_answer_is_shown_as_it_was_asked_for(ask):
    """Columns of a question of one's own all stay, and brackets are no markup."""
    finished = ask("--sql", "SELECT NULL AS nothing, '[bold]' AS name, [0.5, 0.25] AS errors")

    assert ["nothing", "name", "errors"] == finished.stdout.splitlines()[0].split()
    assert "[bold]" in finished.stdout


def test_only_one_question_at_a_time(ask):
    """Two are refused, with the names of all."""
    assert "expected one of --by, --compare and --sql" in ask("--by", "corruption", "--sql", "SELECT 1").stderr


def test_an_older_database_is_made_anew_before_the_answer(tmp_path: Path):
    """And that is said."""
    locations = Locations(root=tmp_path)
    record(locations)
    with duckdb.connect(locations.metrics) as connection:
        connection.execute("CREATE TABLE schema_version AS SELECT 3 AS version")

    finished = CliRunner().invoke(main, ["metrics"], env={"TTA_DATA_ROOT": str(tmp_path)})

    assert "had schema 3" in finished.stderr
    assert "tent" in finished.stdout
