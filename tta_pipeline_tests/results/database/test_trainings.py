"""Trainings and their epochs in the database."""

from pathlib import Path

import duckdb
import pytest

from tta_pipeline.results.database.database import open_metrics, publish_metrics
from tta_pipeline.util.locations import Locations
from tta_pipeline_tests.results.database.made import record
from tta_pipeline_tests.results.database.trained import record_training, training_run


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    """An empty data root."""
    return Locations(root=tmp_path)


def asked(locations: Locations, sql: str) -> list[tuple[object, ...]]:
    """Publish what was recorded, and return the answer to a question."""
    publish_metrics(locations)
    with open_metrics(locations.metrics) as connection:
        return connection.execute(sql).fetchall()


def test_a_run_is_a_row_and_so_is_each_of_its_epochs(locations: Locations):
    """With the values of the record, beside evaluations of the same benchmark."""
    record(locations)
    run = training_run(0.5, None, num_epochs=90, stopped="request")
    record_training(locations, run)

    (row,) = asked(locations, "SELECT model, stopped, num_epochs_done, validation_error, run_id FROM training_runs")
    epochs = asked(locations, "SELECT model, epoch, train_loss, validation_error FROM training_epochs ORDER BY epoch")

    assert ("cnn", "request", 2, None, "first") == row
    assert [("cnn", each.epoch, each.train_loss, each.validation_error) for each in run.epochs] == epochs
    assert [(1,)] == asked(locations, "SELECT count(*) FROM evaluations")


def test_the_newest_training_of_each_model_is_the_latest(locations: Locations):
    """Of each model alone, whether published one by one or at once."""
    for error in (0.5, 0.25):
        record_training(locations, training_run(error))
    record_training(locations, training_run(0.125, model="other"))

    found = asked(locations, "SELECT model, sequence, validation_error FROM latest_training_runs ORDER BY model")

    assert [("cnn", 2, 0.25), ("other", 1, 0.125)] == found


def test_an_older_training_does_not_stand_for_a_damaged_one(locations: Locations):
    """The newest is set aside, and the model has no latest run until there is another."""
    for error in (0.5, 0.25):
        damaged = record_training(locations, training_run(error)).path
    damaged.write_bytes(damaged.read_bytes()[:-9])

    assert [] == asked(locations, "FROM latest_training_runs")
    assert [(1,)] == asked(locations, "SELECT sequence FROM training_runs")


def test_a_database_that_is_made_anew_has_the_same(locations: Locations):
    """From the records alone."""
    record_training(locations, training_run())
    before = asked(locations, "FROM training_epochs"), asked(locations, "FROM training_runs")

    publish_metrics(locations, rebuild=True)

    assert before == (asked(locations, "FROM training_epochs"), asked(locations, "FROM training_runs"))


def test_the_database_refuses_what_no_record_can_say(locations: Locations):
    """Its constraints are those of the record."""
    record_training(locations, training_run())
    publish_metrics(locations)
    with duckdb.connect(locations.metrics) as connection, pytest.raises(duckdb.ConstraintException):
        connection.execute("UPDATE training_epochs SET validation_error = 1.5")
