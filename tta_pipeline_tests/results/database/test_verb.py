"""`tta-pipeline leaderboard` answers, in the form that is wanted."""

import csv
import gc
import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tta_pipeline.cli import main
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import QuestionError
from tta_pipeline.report.answers import Answer
from tta_pipeline.report.published_figures import read_published, shipped_tables
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline_tests.conftest import in_one_line, launcher
from tta_pipeline_tests.results.database.made import record, record_shard_set


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
    gc.collect()
    gc.freeze()  # else each collection of `ask` would search what was imported to evaluate
    return locations


@pytest.fixture
def ask(locations: Locations):
    """Return a function that calls the verb."""

    def ask(*arguments: str, verb: str = "leaderboard") -> Result:
        # The runner keeps the frames of errors, and DuckDB waits for ever if what they hold is freed while it connects.
        gc.collect()
        return CliRunner().invoke(main, [verb, *arguments], env={"TTA_DATA_ROOT": str(locations.root)})

    return ask


def as_form(form: str) -> tuple[str, ...]:
    """Return the options that ask for an answer in *form*."""
    return ("--json",) if form == "json" else ("--format", form)


def test_the_leaderboard_leaves_out_what_goes_without_saying(ask):
    """No column of one seed, of all samples or of nothing."""
    finished = ask()

    assert 0 == finished.exit_code, finished.output
    assert ["made", "tent"] in [line.split()[:2] for line in finished.stdout.splitlines()]
    assert "25.0%" in finished.stdout
    for absent in ("num runs", "subset", "mce"):
        assert absent not in finished.stdout


def test_a_rebuild_counts_results(locations: Locations):
    """Told of results, to a person and to a program."""

    def rebuild(*options: str) -> Result:
        return CliRunner().invoke(main, ["results", "rebuild", *options], env={"TTA_DATA_ROOT": str(locations.root)})

    assert f"{locations.metrics}: 9 results\n" == rebuild().stdout
    assert [{"database": str(locations.metrics), "num_results": 9, "set_aside": []}] == json.loads(
        rebuild("--json").stdout
    )
    quiet = rebuild("--quiet")
    assert ("", "") == (quiet.stdout, quiet.stderr)


PUBLISHED = """experiment,corruption,severity,error,source
tent,fog,5,0.24,"Someone 2026, table 2"
tent,snow,5,0.30,"Someone 2026, table 2"
tent,frost,5,0.90,"Someone 2026, table 2"
source,fog,5,0.8,"Someone 2026, table 2"
sar,fog,5,0.2,"Someone 2026, table 2"
"""
ROBUSTBENCH = ",fog,fog,snow\n,1,5,5\nAlexNet,0.3,0.06,0.05\nStandard_R50,0.9,0.52,0.44\n"


def test_a_run_is_compared_with_a_published_table(ask, tmp_path: Path):
    """On the cells of both: tent is within chance of 80 images a cell, and source is not."""
    (tmp_path / "published.csv").write_text(PUBLISHED)
    source, tent, sar = json.loads(ask("--reference", str(tmp_path / "published.csv"), "--json").stdout)

    assert ("tent", 2, 3, "agrees", "snow|5", "Someone 2026, table 2") == tuple(
        tent[name] for name in ("published_as", "num_cells", "num_published", "verdict", "largest_at", "source")
    )
    assert [0.25, 0.27, -0.02, -0.05] == pytest.approx(
        [tent[name] for name in ("mean_error", "published_error", "error_change", "largest_change")]
    )
    # Two samples of 80 images with errors of 24 and of 30 %, in two cells that may show the same images.
    errors = [(2 * share * (1 - share) / 80) ** 0.5 for share in (0.24, 0.3)]
    assert 1.96 * sum(errors) / 2 == pytest.approx(tent["chance_error"])
    assert (1, "differs by 30.0 points") == (source["num_cells"], source["verdict"])
    assert ("sar", 0, "not run", None) == (sar["published_as"], sar["num_cells"], sar["verdict"], sar["experiment"])
    assert "no further from the published one" in ask("--reference", str(tmp_path / "published.csv")).stdout


def test_robustbenchs_own_table_is_read(ask, tmp_path: Path):
    """Its accuracies become errors, and every experiment is compared with the line that is asked for."""
    (tmp_path / "table.csv").write_text(ROBUSTBENCH)
    path = str(tmp_path / "table.csv")
    found = json.loads(
        ask("--reference", path, "--reference-row", "Standard_R50", "--benchmark", "made", "--json").stdout
    )

    assert [("source", "agrees"), ("tent", "differs by 27.0 points")] == [
        (row["experiment"], row["verdict"]) for row in found
    ]
    assert [0.52, 0.52] == pytest.approx([row["published_error"] for row in found])
    assert "no experiment on the same classes has cells" in ask("--reference", path).stderr
    assert "expected one of AlexNet, Standard_R50" in in_one_line(
        ask("--reference", path, "--reference-row", "R50").output
    )


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("eata_imagenet_c", {"source": 0.82, "tent": 0.574, "eta": 0.519, "eata": 0.522, "eata_lifelong": 0.521}),
        ("robustbench_imagenet_c", {"Standard_R50": 0.6052, "AlexNet": 0.7888}),
    ],
)
def test_a_shipped_table_has_the_means_that_were_published(ask, name: str, means: dict[str, float]):
    """And an answer for each row, also for those that were not run."""
    published = read_published(shipped_tables()[name])
    answer = json.loads(ask("--reference", name, "--json").stdout)

    for line, mean in means.items():
        assert mean == pytest.approx(np.mean([row.error for row in published if row.published_as == line]), abs=6e-4)
    assert {row.published_as for row in published} == {row["published_as"] for row in answer}
    assert "not run" in {row["verdict"] for row in answer}
    assert "**" not in ask("--reference", name, "--format", "markdown").stdout, "rows of a paper are no rivals"


def test_digits_are_not_held_against_imagenet(tmp_path: Path):
    """A shipped table is for results on its classes, though experiments and corruptions have the same names."""
    locations = Locations(root=tmp_path)
    for benchmark, num_classes in (("digits", 10), ("photographs", 1_000)):
        record(locations, benchmark=benchmark)
        record_shard_set(locations, benchmark=benchmark, num_classes=num_classes)

    asked = ["leaderboard", "--reference", "eata_imagenet_c", "--json"]
    answer = json.loads(CliRunner().invoke(main, asked, env={"TTA_DATA_ROOT": str(tmp_path)}).stdout)

    assert {"photographs", None} == {row["benchmark"] for row in answer}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "begins with a, b; expected the columns experiment, corruption, severity, error, source"),
        (
            PUBLISHED.replace("0.24", "24"),
            "row 2: the value is 24; expected a fraction from 0 to 1: divide percentages by 100",
        ),
        (PUBLISHED.replace("0.24", "-"), "row 2: the severity is '5' and the error is '-'; expected a whole number"),
        (PUBLISHED.partition("\n")[0], "no errors; expected a row for each cell"),
        (",fog\n", "begins with , fog; expected the columns experiment"),
        ("", "is empty; expected the columns experiment"),
    ],
)
def test_a_faulty_table_is_refused(ask, tmp_path: Path, text: str, message: str):
    """With the row, what stands there and what was expected."""
    (tmp_path / "published.csv").write_text(text)
    refused = ask("--reference", str(tmp_path / "published.csv"))

    assert refused.exit_code != 0
    assert message in " ".join(in_one_line(refused.output).split())


def test_programs_get_every_column_and_digit(ask):
    """CSV and JSON have the same rows, numbers in full, and nothing where there is none."""
    rows = json.loads(ask("--json").stdout)
    lines = list(csv.DictReader(io.StringIO(ask("--format", "csv").stdout)))

    assert [row["experiment"] for row in rows] == [line["experiment"] for line in lines] == ["tent", "source", "a_b"]
    assert 0.25 == rows[0]["mean_error"] == float(lines[0]["mean_error"])
    assert rows[0]["error_low"] is rows[0]["error_high"] is None  # no predictions were kept
    assert rows[0]["mce"] is None
    assert "" == lines[0]["mce"]


@pytest.fixture(scope="module")
def with_generated(tmp_path_factory: pytest.TempPathFactory) -> Locations:
    """Two runs on images made here, and one on others."""
    locations = Locations(root=tmp_path_factory.mktemp("generated"))
    for run_id in ("abc", "abd"):
        record(locations, generated=True, run_id=run_id)
    record(locations, benchmark="published", run_id="other")
    publish_metrics(locations)
    return locations


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Locations:
    """A benchmark for each mark."""
    locations = Locations(root=tmp_path_factory.mktemp("marked"))
    record(locations, benchmark="generated", generated=True)
    machine = {"benchmark": "loaded", "num_cores": 4, "decode_threads": 1, "compute_threads": 1}
    for corruption, load in (("fog", 0.1), ("snow", 3.0)):
        record(locations, experiment="tent", corruption=corruption, other_load=3.0, **machine)
        record(locations, experiment="norm", corruption=corruption, other_load=load, **machine)
    record(locations, benchmark="random", weights="untrained", run_id="1")
    for name, protocol, error in (("a", "mixed", 0.125), ("b", "continual", 0.25), ("c", "continual", 0.5)):
        record(locations, benchmark="protocols", experiment=name, protocol=protocol, error=error)
    for benchmark, seeds in (("alone", ()), ("seeds", (0, 1))):
        record(locations, benchmark=benchmark, experiment="norm")
        for seed in seeds:
            record(locations, benchmark=benchmark, experiment="tent", seed=seed, order_hash=f"{seed}" * 64)
    publish_metrics(locations)
    return locations


@pytest.fixture
def show(marked: Locations):
    """Return a function that shows the leaderboard of one of these benchmarks."""

    def show(benchmark: str, *options: str) -> str:
        asked = ["leaderboard", "--benchmark", benchmark, *options]
        return CliRunner().invoke(main, asked, env={"TTA_DATA_ROOT": str(marked.root)}).stdout

    return show


@pytest.mark.parametrize(
    ("question", "form"),
    [
        *((("leaderboard",), form) for form in ("table", "csv", "json", "parquet", "latex", "markdown")),
        (("leaderboard", "--by", "corruption"), "table"),
        (("leaderboard", "--by", "corruption"), "json"),
        (("compare", "--runs", "abc", "abd"), "table"),
        (("compare", "--runs", "abc", "abd"), "csv"),
    ],
)
def test_results_on_generated_images_are_marked(with_generated: Locations, tmp_path: Path, question, form: str):
    """In every form each row says so, and a person is told what it means."""
    path = tmp_path / "answer"
    finished = CliRunner().invoke(
        main, [*question, *as_form(form), "--output", str(path)], env={"TTA_DATA_ROOT": str(with_generated.root)}
    )

    assert 0 == finished.exit_code, finished.output
    is_for_people = form in ("table", "latex", "markdown")
    text = path.read_text().replace("\n% ", " ") if is_for_people else finished.stderr
    assert "not with published tables" in " ".join(text.split())
    if form == "csv":
        found = [row["generated"] == "True" for row in csv.DictReader(io.StringIO(path.read_text()))]
    elif form == "json":
        found = [row["generated"] for row in json.loads(path.read_text())]
    elif form == "parquet":
        found = pq.read_table(path)["generated"].to_pylist()
    else:
        lines = [line.split() for line in path.read_text().replace("|", " ").replace("&", " ").splitlines()]
        rows = [(line[0], "True" in line) for line in lines if line[:1] in (["made"], ["published"])]
        assert all((name == "made") == is_marked for name, is_marked in rows)
        # Of one benchmark, the note before the table says it of all rows.
        found = [is_marked for _, is_marked in rows] or [True]
    assert any(found)
    assert question[0] == "compare" or not all(found)


def test_a_mark_is_of_the_benchmark_that_is_asked(show):
    """Images made here for another benchmark say nothing of this one."""
    assert "not with published tables" in " ".join(show("generated").split())
    assert "generated" not in show("random")


def test_a_table_for_a_paper_says_what_is_not_compared(show):
    """A row over other seeds than the best has no dagger and is named; a reader would take it for a worse result."""
    alone, both = (show(benchmark, "--format", "latex") for benchmark in ("alone", "seeds"))

    assert "Rows with other seeds than the best row are not compared" in both
    assert "tent: other seeds or orders of the images than in the best row" in both
    assert "±: standard deviation over seeds" in both
    assert "other seeds" not in alone


def test_a_row_that_was_timed_only_under_load_is_marked(show):
    """For people, with what it means; one quiet cell is enough, and programs get a column."""
    shown, for_paper, for_programs = (show("loaded", *options) for options in ((), ("--format", "latex"), ("--json",)))

    assert "*: timed only while others used the machine" in shown
    assert "% *: timed only while others used the machine" in for_paper
    assert ["tent"] == [line.split()[0] for line in shown.splitlines() if line[:4] in ("tent", "norm") and "*" in line]
    assert {"tent": True, "norm": False} == {row["experiment"]: row["under_load"] for row in json.loads(for_programs)}


def test_results_of_random_weights_are_marked(show):
    """Each row says so, and a person is told what it means; where all weights are trained nothing is said."""
    shown, for_paper, for_programs = (show("random", *options) for options in ((), ("--format", "latex"), ("--json",)))

    assert "untrained: tent: random weights, so the errors compare with nothing" in shown
    assert "% untrained: tent: random weights, so the errors compare with nothing" in for_paper
    assert "Untrained" not in for_paper
    assert [True] == [row["untrained"] for row in json.loads(for_programs)]


def test_people_are_not_told_that_nothing_is_generated(ask):
    """There is no such column for them where all images are somebody else's; programs have it always."""
    assert "generated" not in ask().output
    assert [False] * 3 == [row["generated"] for row in json.loads(ask("--json").stdout)]


def test_the_best_of_those_that_compare_is_bold(ask):
    """In LaTeX and Markdown; a benchmark with one experiment has no best."""
    latex, markdown = (ask("--format", form).stdout for form in ("latex", "markdown"))

    assert r"\textbf{25.0}" in latex
    assert r"other\_b & a b" in latex
    assert "**25.0%**" in markdown
    for text in (latex, markdown):
        (line,) = [line for line in text.splitlines() if "other" in line]
        assert "textbf" not in line
        assert "**" not in line


@pytest.mark.parametrize("by", [(), ("--by", "corruption")])
def test_the_best_is_bold_within_its_protocol(show, by: tuple[str, ...]):
    """The lowest error of all is of another protocol, in which nothing else was evaluated."""
    shown = show("protocols", "--format", "markdown", *by)

    assert "**25.0%**" in shown
    assert "**12.5%**" not in shown


def test_by_corruption_has_a_line_for_each_corruption_and_experiment(ask):
    """In the canonical order, the better experiment first."""
    rows = json.loads(ask("--by", "corruption", "--json").stdout)

    expected = [("snow", "tent"), ("snow", "source"), ("fog", "tent"), ("fog", "source"), ("fog", "a_b")]
    assert expected == [(row["corruption"], row["experiment"]) for row in rows]


def test_runs_are_compared_by_the_beginnings_of_their_ids(ask):
    """Cell by cell, with the change from the first to the second."""
    rows = json.loads(ask("--runs", "abc", "abd-2", "--json", verb="compare").stdout)

    assert 4 == len(rows)
    assert {0.5, 1.0} == {row["speed_ratio"] for row in rows}
    assert all(row["same_settings"] and row["error_change"] == 0 for row in rows)


@pytest.mark.parametrize(
    ("run", "found"),
    [
        ("ab", "'ab' matches 2 runs: abc-1, abd-2"),
        ("zz", "'zz' matches 0 runs; expected exactly one"),
    ],
)
def test_a_run_that_is_not_one_is_named(ask, run: str, found: str):
    """With the choices, and how to list them."""
    finished = ask("--runs", run, "other", verb="compare")

    assert 2 == finished.exit_code
    assert found in in_one_line(finished.stderr)
    assert "FROM runs" in finished.stderr


def test_parquet_goes_to_a_file(ask, tmp_path: Path):
    """Which any reader opens; without a file the command says what it needs."""
    path = tmp_path / "new" / "table.parquet"

    assert 0 == ask("--format", "parquet", "--output", str(path)).exit_code
    assert [0.25, 0.5, 0.75] == pq.read_table(path)["mean_error"].to_pylist()
    assert "add --output FILE" in ask("--format", "parquet").stderr


def test_text_goes_to_a_file_too(ask, tmp_path: Path):
    """Its lines are whole."""
    path = tmp_path / "table.tex"

    assert "" == ask("--by", "corruption", "--format", "latex", "--output", str(path)).stdout
    assert path.read_text().endswith("\\end{tabular}\n")


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.tex", "% "), ("a.csv", "benchmark,"), ("a.JSON", "[\n"), ("a.md", "| "), ("a.parquet", "PAR1"),
     ("a.txt", "benchmark ")],
)  # fmt: skip
def test_the_ending_of_the_file_chooses_the_form(ask, tmp_path: Path, name: str, start: str):
    """Of an ending that says nothing, a plain table."""
    ask("--output", str(tmp_path / name))

    assert (tmp_path / name).read_bytes().startswith(start.encode())


def test_a_form_that_is_asked_for_is_not_that_of_the_ending(ask, tmp_path: Path):
    """A plain table, too."""
    ask("--output", str(tmp_path / "a.csv"), "--format", "table")

    assert (tmp_path / "a.csv").read_text().startswith("benchmark ")


@pytest.fixture(scope="module")
def database(locations: Locations, tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A copy of the database, opened for questions: DuckDB opens a file once in a process."""
    with open_metrics(Path(shutil.copy(locations.metrics, tmp_path_factory.mktemp("copy")))) as connection:
        yield connection


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("DELETE FROM evaluations", "DELETE"),
        ("COPY evaluations TO '/tmp/x.csv'", "COPY"),
        ("INSTALL httpfs", "LOAD"),
        ("SET threads = 1", "SET"),
    ],
)
def test_a_question_changes_nothing(database: duckdb.DuckDBPyConnection, sql: str, found: str):
    """Rows, files, extensions and settings are out of its reach."""
    with pytest.raises(QuestionError, match=rf"\b{found}\b.*\bSELECT\b"):
        Answer(database, sql)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("", "no query; expected one query, such as FROM leaderboard"),
        (" ;; ", "no query"),
        ("-- nothing but a comment", "no query"),
        ("SELECT 1; SELECT 2", "2 statements; expected one"),
        ("CREATE TABLE mine (x INT)", "CREATE is not allowed"),
        ("ATTACH 'other.duckdb'", "ATTACH is not allowed"),
        ("BEGIN", "TRANSACTION is not allowed"),
        ("SELECT '\udcff'", "not valid UTF-8"),
        ("SELECT x FROM leaderboard", "not found in FROM clause"),
        ("SELECT ?", "Values were not provided"),
        ("SELECT error(i::VARCHAR) FROM range(20000) r(i) WHERE i > 15000", "15001"),
        ("SELECT INTERVAL 9999999 YEAR", "cannot be represented"),
    ],
)
def test_what_is_no_question_is_said_in_one_line(database: duckdb.DuckDBPyConnection, sql: str, said: str):
    """Nothing, several, orders, and what cannot be computed or told."""
    with pytest.raises(QuestionError) as raised, Answer(database, sql) as answer:
        for _ in answer.rows():
            pass

    (line,) = str(raised.value).splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DELETE FROM evaluations", "DELETE is not allowed"),
        ("SELECT error(i::VARCHAR) FROM range(20000) r(i) WHERE i > 15000", "15001"),
    ],
)
def test_a_refusal_is_one_line_for_the_user(ask, sql: str, said: str):
    """Without a traceback, before the answer and in the middle of it."""
    finished = ask(sql, "--format", "csv", verb="query")

    assert 2 == finished.exit_code
    assert "Traceback" not in finished.output
    *_, line = in_one_line(finished.stderr).splitlines()
    assert line.startswith("Error: ")
    assert said in line


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_no_column_is_lost_to_another_of_its_name(ask, tmp_path: Path, form: str):
    """A format that would keep one of two refuses, and leaves no file behind."""
    finished = ask("SELECT 1 AS twice, 2 AS twice", *as_form(form), "--output", str(tmp_path / "answer"), verb="query")

    assert 2 == finished.exit_code
    assert "have the name twice" in finished.stderr
    assert [] == list(tmp_path.iterdir())


def test_people_are_shown_the_first_rows_of_a_long_answer(ask):
    """And told that there are more; as many as they ask for, and all where there are no more."""
    long, some, whole = (ask(f"FROM range({rows})", *options, verb="query") for rows, *options in (
        (10**8,), (10**8, "--rows", "20"), (20, "--rows", "20"),
    ))  # fmt: skip

    assert [1001, 21, 21] == [len(each.stdout.splitlines()) for each in (long, some, whole)]
    assert "first 1,000 rows, and there are more: --rows N for more, --format csv for all" in long.stderr
    assert "first 20 rows" in some.stderr
    assert "" == whole.stderr


def test_programs_are_given_every_row_or_as_many_as_they_ask_for(ask, tmp_path: Path):
    """Over several readings from the database, in each format."""
    path, sql = tmp_path / "answer.parquet", "SELECT i FROM range(10500) AS r(i)"
    for options, expected in (((), 10_500), (("--rows", "10234"), 10_234)):
        ask(sql, "--format", "parquet", "--output", str(path), *options, verb="query")
        answers = [
            pq.read_table(path)["i"].to_pylist(),
            [row["i"] for row in json.loads(ask(sql, "--json", *options, verb="query").stdout)],
            [int(line) for line in ask(sql, "--format", "csv", *options, verb="query").stdout.split()[1:]],
        ]
        assert [list(range(expected))] * 3 == answers


@pytest.mark.parametrize("form", ["csv", pytest.param("json", marks=pytest.mark.slow)])
def test_an_endless_answer_streams_and_ends_with_ctrl_c(locations: Locations, form: str):
    """A hundred million rows pass through little memory, and Ctrl-C ends them with one line."""
    with started(locations, "SELECT i, 'a' || i AS name FROM range(100000000) AS r(i)", form) as process:
        before_kib = peak_kib(process)
        for _ in range(50_000):
            assert process.stdout.readline()
        after_kib = peak_kib(process)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=120)[1]

    assert 128 + signal.SIGINT == process.returncode
    assert ["interrupted; what is finished is kept"] == errors.splitlines()
    assert after_kib - before_kib < 250 * 1024


def peak_kib(process: subprocess.Popen[str]) -> int:
    """Return the most memory that a process has used."""
    (line,) = (line for line in status_of(process) if line.startswith("VmHWM"))
    return int(line.split()[1])


def test_a_question_that_computes_for_hours_ends_with_ctrl_c(locations: Locations):
    """DuckDB does not hear it while it counts; whoever asked does."""
    with started(
        locations, "SELECT count(*) FROM range(1000000000000) AS r(i) WHERE hash(i) % 7 = 3", "csv"
    ) as process:
        while not any(line.startswith("Threads:") and int(line.split()[1]) > 2 for line in status_of(process)):
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=120)[1]

    assert 128 + signal.SIGINT == process.returncode
    assert ["interrupted; what is finished is kept"] == errors.splitlines()


def started(locations: Locations, sql: str, form: str) -> subprocess.Popen[str]:
    """Start the verb in a process of its own."""
    return launcher().start(
        ["tta-pipeline", "query", *as_form(form), sql],
        env={**os.environ, "TTA_DATA_ROOT": str(locations.root)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace",
    )  # fmt: skip


def status_of(process: subprocess.Popen[str]) -> list[str]:
    """Return what the kernel says of a living process."""
    return Path(f"/proc/{process.pid}/status").read_text().splitlines()


def test_an_answer_is_shown_as_it_was_asked_for(ask):
    """Columns of a question of one's own all stay, and brackets are no markup."""
    finished = ask("SELECT NULL AS nothing, '[bold]' AS name, [0.5, 0.25] AS errors", verb="query")

    assert ["nothing", "name", "errors"] == finished.stdout.splitlines()[0].split()
    assert "[bold]" in finished.stdout
    unnamed = ask("SELECT count(*), avg(error) FILTER (WHERE counts AND severity = 5) FROM evaluations", verb="query")
    assert ['count(*)  avg("error") FILTER (WH…'] == unnamed.stdout.splitlines()[:-1]


@pytest.mark.parametrize("by", [(), ("--by", "corruption")])
def test_one_benchmark_is_asked_for_by_its_name(ask, by: tuple[str, ...]):
    """Its rows alone, for people and programs; a name without results is answered with the nearest one."""
    rows = json.loads(ask("--benchmark", "other_b", "--json", *by).stdout)

    assert {"other_b"} == {row["benchmark"] for row in rows}
    assert "did you mean other_b?" in ask("--benchmark", "othr_b", *by).stderr


def test_an_older_database_is_made_anew_before_the_answer(marked: Locations, tmp_path: Path):
    """And that is said."""
    root = Path(shutil.copytree(marked.root, tmp_path / "data"))
    with duckdb.connect(Locations(root=root).metrics) as connection:
        connection.execute("UPDATE publication SET schema_version = '3'")

    finished = CliRunner().invoke(main, ["leaderboard"], env={"TTA_DATA_ROOT": str(root)})

    assert "had schema 3" in finished.stderr
    assert "tent" in finished.stdout
