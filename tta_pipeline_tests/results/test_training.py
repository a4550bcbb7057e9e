"""The result of a training comes back as it was written, and its figures follow from its epochs."""

from dataclasses import replace
from pathlib import Path

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.results.result_files import read_result
from tta_pipeline.results.training_record import TrainingRun
from tta_pipeline_tests.results.database.trained import epoch, record_training, training_run


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    """An empty data root."""
    return Locations(root=tmp_path)


@pytest.mark.parametrize(
    "run",
    [
        training_run(),
        training_run(None, None),
        training_run(0.5, 0.25, 0.375, selected="best", num_epochs=90),
        training_run(device="NVIDIA H200"),
    ],
    ids=["plain", "without validation", "stopped early", "on a GPU"],
)
def test_what_is_written_is_what_is_read(locations: Locations, run: TrainingRun):
    """Every field of run and epochs, with its value and type."""
    stored = record_training(locations, run)

    assert run == read_result(stored.path).result.training


def test_the_errors_of_a_run_are_those_of_the_epoch_whose_weights_are_kept():
    """Of the last, or of the first of the best."""
    last, best = (training_run(0.5, 0.25, 0.25, 0.375, selected=selected) for selected in ("last", "best"))

    assert (0.375, last.epochs[3].train_error) == (last.validation_error, last.train_error)
    assert (0.25, best.epochs[1].train_error) == (best.validation_error, best.train_error)
    assert (2, 0.25, 4) == (last.best_epoch, last.best_validation_error, last.num_epochs_done)


def test_the_speed_of_a_run_is_that_of_its_epochs():
    """Images of all epochs by the time of all, not a mean of speeds."""
    run = training_run(epochs=(epoch(1), epoch(2, wall_s=30.0, images_per_s=1000 / 30)))

    assert pytest.approx((2000 / 40, 1.0)) == (run.images_per_s, run.data_wait_s)


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (replace(training_run(), selected="first"), "selected .*'first'"),
        (replace(training_run(), validation_error=1.5), r"validation_error .*\b1\.5\b"),
        (training_run(lr=float("nan")), "trainings.*first"),
    ],
)
def test_a_value_out_of_its_limits_is_not_written(locations: Locations, run: TrainingRun, named: str):
    """The error names the field, its value and what was expected."""
    with pytest.raises(RecordError, match=named):
        record_training(locations, run)

    assert not list(locations.root.rglob("*.json"))


def test_a_best_epoch_needs_validation():
    """Nothing says which it is."""
    with pytest.raises(RecordError, match=r"selected .*'best' .*\b1\b.*'last'"):
        training_run(None, selected="best")
