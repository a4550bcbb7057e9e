"""The questions in docs/queries.md have answers."""

import re
import shutil
from pathlib import Path

import duckdb
import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.tables import query
from tta_pipeline.results.database.database import open_metrics, publish_metrics
from tta_pipeline.results.records import read_record, record_paths
from tta_pipeline_tests.conftest import Project
from tta_pipeline_tests.results.database.made import with_error, write
from tta_pipeline_tests.results.database.trained import record_training, training_run

TEXT = (Path(__file__).parents[3] / "docs" / "queries.md").read_text()
QUESTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def database(sweep: Project, tmp_path_factory: pytest.TempPathFactory):
    """The results of the sweep, two more seeds of each evaluation from another run, and a training."""
    locations = Locations(root=tmp_path_factory.mktemp("questions"))
    for path in record_paths(sweep.locations.root):
        copy = locations.root / path.relative_to(sweep.locations.root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
        record = read_record(path)
        if record.kind == "evaluations":
            for seed in (0, 1):
                write(
                    locations,
                    with_error(record.facts, error=min(1, record.facts["error"] * (1 + seed / 10))) | {"seed": seed},
                    run_id="another",
                    started_at="2999-01-01T00:00:00+00:00",
                )
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
