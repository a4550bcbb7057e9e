"""The verbs that work without Dagster."""

import json
import re

from tta_pipeline.cli import main
from tta_pipeline.cli.common import wrap_text
from tta_pipeline_tests.conftest import Project, in_one_line


def test_metrics_prints_the_leaderboard(sweep: Project):
    """Each experiment has a line with its mean error."""
    finished = sweep.run("tta-pipeline", "leaderboard")

    assert 0 == finished.returncode
    assert {"source", "norm", "tent"} <= set(finished.stdout.split())


def test_metrics_answers_a_question(sweep: Project):
    """SQL is answered from the database."""
    finished = sweep.run("tta-pipeline", "query", "SELECT count(*) AS n FROM evaluations WHERE counts")

    assert ["n", "15"] == finished.stdout.split()


def test_a_wrong_question_is_one_clear_line(sweep: Project):
    """The error names what was not found, without a traceback."""
    finished = sweep.run("tta-pipeline", "query", "SELECT errors FROM leaderboard")

    assert 2 == finished.returncode
    assert "errors" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_without_a_database_the_way_out_is_said(project: Project):
    """An empty project has nothing to show and says what to do."""
    finished = project.run("tta-pipeline", "leaderboard")

    assert 1 == finished.returncode
    assert "metrics.duckdb does not exist; expected the database of results: evaluate a benchmark first" in in_one_line(
        finished.stderr
    )


def test_an_empty_leaderboard_says_what_to_run(project: Project):
    """For people instead of a header without rows; programs get their empty answer, too."""
    project.locations.root.mkdir()
    rebuilt = project.run("tta-pipeline", "results", "rebuild")
    assert 0 == rebuilt.returncode
    assert "0 results" in rebuilt.stdout

    shown, for_programs = (
        project.run("tta-pipeline", "leaderboard"),
        project.run("tta-pipeline", "leaderboard", "--json"),
    )

    assert "no results: evaluate a benchmark first, such as" in shown.stderr
    assert "" == shown.stdout
    assert [] == json.loads(for_programs.stdout)


def test_the_help_fits_a_screen(project: Project):
    """A person reads all verbs on one screen of 80 x 40, each with a sentence that is whole, and guesses the rest."""
    shown = project.run("tta-pipeline", "--help").stdout.splitlines()

    assert len(shown) <= 40
    assert max(map(len, shown)) <= 80
    listed = shown[shown.index("Data and models:") :]
    assert len(main.commands) == sum(bool(re.fullmatch(r"  [a-z-]+ {2,}[A-Z].*[.?]", line)) for line in listed)


def test_a_number_that_no_order_takes_is_refused_with_its_option(project: Project):
    """Before anything is read."""
    for option, value in (("--seed", "-1"), ("--seed", str(2**70)), ("--delta", "0"), ("--resize", "1000000000")):
        finished = project.run(
            "tta-pipeline", "shards", "make", "nowhere", "shards", "--num-shards", "4", option, value
        )

        assert 2 == finished.returncode
        assert f"{option} is {value}" in finished.stderr.replace("0.0", "0")


def test_an_equation_stays_in_one_line():
    """A reader sees p and its value together."""
    assert ["the difference is small,", "p = 0.12."] == wrap_text("the difference is small, p = 0.12.", 28).splitlines()
