"""Trainings and their epochs in the database."""

import duckdb
import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.result_files import void_result
from tta_pipeline_tests.results.database.conftest import Ask
from tta_pipeline_tests.results.database.made import record
from tta_pipeline_tests.results.database.trained import record_training, training_run


def test_a_run_is_a_row_and_so_is_each_of_its_epochs(locations: Locations, ask: Ask):
    """With the values of the result, beside evaluations of the same benchmark."""
    record(locations)
    run = training_run(0.5, None, num_epochs=90)
    record_training(locations, run)

    (row,) = ask("SELECT model, num_epochs, num_epochs_done, validation_error, run_id FROM training_runs")
    epochs = ask("SELECT model, epoch, train_loss, e.validation_error FROM training_epochs AS e "
                 "JOIN training_runs USING (file) ORDER BY epoch")  # fmt: skip

    assert ("cnn", 90, 2, None, "first") == row
    assert [("cnn", each.epoch, each.train_loss, each.validation_error) for each in run.epochs] == epochs
    assert [(1,)] == ask("SELECT count(*) FROM evaluations")


def test_the_newest_training_of_each_model_counts(locations: Locations, ask_published: Ask):
    """Of each model alone, whether published one by one or at once."""
    for error in (0.5, 0.25):
        record_training(locations, training_run(error))
    record_training(locations, training_run(0.125, model="other"))

    found = ask_published("SELECT model, validation_error FROM training_runs WHERE counts ORDER BY model")

    assert [("cnn", 0.25), ("other", 0.125)] == found


def test_a_training_that_is_void_counts_nowhere(locations: Locations, ask_published: Ask):
    """The one before it counts again."""
    runs = [record_training(locations, training_run(error)) for error in (0.5, 0.25)]
    assert [(0.25,)] == ask_published("SELECT validation_error FROM training_runs WHERE counts")

    void_result(runs[1].path, "made from other images")

    assert [(0.5,)] == ask_published("SELECT validation_error FROM training_runs WHERE counts")


def test_a_database_that_is_made_anew_has_the_same(locations: Locations):
    """From the results alone."""
    record_training(locations, training_run())

    def published(*, rebuild: bool) -> list[list[tuple[object, ...]]]:
        publish_metrics(locations, rebuild=rebuild)
        with open_metrics(locations.metrics) as connection:
            return [connection.execute(f"FROM {table}").fetchall() for table in ("training_epochs", "training_runs")]

    before = published(rebuild=False)

    assert [3, 1] == [len(rows) for rows in before]
    assert before == published(rebuild=True)


def test_the_database_refuses_what_no_result_can_say(locations: Locations, ask_published: Ask):
    """Its constraints are those of the result."""
    record_training(locations, training_run())
    assert ask_published("FROM training_epochs")

    with duckdb.connect(locations.metrics) as database, pytest.raises(duckdb.ConstraintException):
        database.execute("UPDATE training_epochs SET validation_error = 1.5")
