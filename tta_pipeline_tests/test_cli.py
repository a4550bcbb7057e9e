"""The verbs that work without Dagster."""

from tta_pipeline_tests.conftest import Project


def test_metrics_prints_the_leaderboard(sweep: Project):
    """Each experiment has a line with its mean error."""
    finished = sweep.run("tta-pipeline", "metrics")

    assert 0 == finished.returncode
    assert {"source", "norm", "tent"} <= set(finished.stdout.split())


def test_metrics_answers_a_question(sweep: Project):
    """SQL is answered from the database."""
    finished = sweep.run("tta-pipeline", "metrics", "--sql", "SELECT count(*) AS n FROM latest_evaluations")

    assert ["n", "15"] == finished.stdout.split()


def test_a_wrong_question_is_one_clear_line(sweep: Project):
    """The error names what was not found, without a traceback."""
    finished = sweep.run("tta-pipeline", "metrics", "--sql", "SELECT errors FROM leaderboard")

    assert 2 == finished.returncode
    assert "errors" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_without_a_database_the_way_out_is_said(project: Project):
    """An empty project has nothing to show and says what to do."""
    finished = project.run("tta-pipeline", "metrics")

    assert 1 == finished.returncode
    assert "metrics.duckdb does not exist; evaluate something" in finished.stderr


def test_rebuild_metrics_counts_the_records(project: Project):
    """With no records there is an empty database."""
    project.locations.root.mkdir()
    finished = project.run("tta-pipeline", "rebuild-metrics")

    assert 0 == finished.returncode
    assert "0 records" in finished.stdout


def test_help_has_examples(project: Project):
    """Every verb explains itself."""
    assert "Examples" in project.run("tta-pipeline", "metrics", "--help").stdout
    assert "rebuild-metrics" in project.run("tta-pipeline", "--help").stdout


def test_a_number_that_no_order_takes_is_refused_with_its_option(project: Project):
    """Before anything is read."""
    for option, value in (("--seed", "-1"), ("--seed", str(2**70)), ("--delta", "0"), ("--resize", "1000000000")):
        finished = project.run("tta-pipeline", "shard", "nowhere", "shards", "--num-shards", "4", option, value)

        assert 2 == finished.returncode
        assert f"{option} is {value}" in finished.stderr.replace("0.0", "0")
