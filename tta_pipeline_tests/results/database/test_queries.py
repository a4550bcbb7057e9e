"""The questions in docs/reference/queries.md have answers."""

import re
import shutil
from pathlib import Path

import duckdb
import pytest

from tta_pipeline.domain.locations import RESULTS, Locations
from tta_pipeline.report.tables import query
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.result_files import read_result
from tta_pipeline_tests.conftest import Project
from tta_pipeline_tests.flat_facts import flat_row
from tta_pipeline_tests.result_paths import result_paths
from tta_pipeline_tests.results.database.made import with_error, write
from tta_pipeline_tests.results.database.trained import record_training, training_run

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "queries.md").read_text()
QUESTIONS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", TEXT, re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def database(sweep: Project, tmp_path_factory: pytest.TempPathFactory):
    """The results of the sweep, two more seeds of each evaluation from another run, and a training."""
    locations = Locations(root=tmp_path_factory.mktemp("questions"))
    shutil.copytree(sweep.locations.root / RESULTS, locations.root / RESULTS)
    for path in result_paths(sweep.locations.root):
        for row in read_result(path).result.evaluations:
            for seed in (0, 1):
                error = min(1, row.error * (1 + seed / 10))
                write(locations, with_error(flat_row(row), error=error) | {"seed": seed}, run_id="another")
    record_training(locations, training_run(benchmark="small"))
    publish_metrics(locations)
    with open_metrics(locations.metrics) as connection:
        yield connection


def test_each_has_one_query():
    """There are twenty at least."""
    assert len(QUESTIONS) >= 20
    assert all(1 == text.count("```sql") for text in QUESTIONS.values())


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_question_is_answered(database: duckdb.DuckDBPyConnection, question: str):
    """The SQL runs, and it has an answer unless the page says what no row means."""
    (sql,) = re.findall(r"```sql\n(.*?)```", QUESTIONS[question], re.DOTALL)

    answer = query(database, sql)

    assert answer.rows or re.search("No row (is|means)", QUESTIONS[question])
    assert not any("(" in column for column in answer.columns), "every column has a name"
