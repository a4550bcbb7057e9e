"""What a trial takes over from its evaluations."""

import pytest

from tta_pipeline.extras.tuning.search import _make_trial
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline_tests.flat_facts import changed
from tta_pipeline_tests.results.database.made import evaluation

ROW = changed(
    evaluation(), mean_entropy=1.0, source_agreement=0.5,
    view_agreement=0.9, neighbourhood_density=2.0,
)  # fmt: skip


def scores(*rows: Evaluation) -> tuple[float | None, ...]:
    """Return the scores without labels of a trial with *rows*."""
    trial = _make_trial({"lr": 1}, rows)
    return trial.mean_entropy, trial.source_agreement, trial.view_agreement, trial.neighbourhood_density


def test_scores_are_means_over_evaluations():
    """A score that an evaluation lacks is none: its mean would be of other cells."""
    assert (2.0, 0.5, 0.9, 2.0) == pytest.approx(scores(ROW, changed(ROW, mean_entropy=3.0)))
    assert (1.0, None, None, None) == scores(
        ROW, changed(ROW, source_agreement=None, view_agreement=None, neighbourhood_density=None)
    )


def test_a_broken_network_has_no_scores():
    """One of NaN predicts one class for every image, and would be the most consistent of all."""
    assert (None,) * 4 == scores(ROW, changed(ROW, mean_entropy=None))
