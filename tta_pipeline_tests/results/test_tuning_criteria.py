"""Each criterion chooses what its definition says, and nothing that saw the labels of reported cells can decide."""

import re
from dataclasses import asdict, replace

import pytest
import yaml

from tta_pipeline.errors import RecordError
from tta_pipeline.results.tuning_criteria import CRITERIA, ORACLE, choices_of
from tta_pipeline.results.tuning_record import TuningRun
from tta_pipeline.results.tuning_trial import Trial
from tta_pipeline_tests.extras.tuning.tuned import TUNED, benchmark_of, choice, trial

SCORES = {
    1: {"mean_entropy": 0.9, "view_agreement": 0.7, "neighbourhood_density": 3.0, "source_agreement": 0.9},
    2: {"mean_entropy": 0.5, "view_agreement": 0.8, "neighbourhood_density": 2.0, "source_agreement": 0.8},
    3: {"mean_entropy": 0.1, "view_agreement": 1.0, "neighbourhood_density": 1.0, "source_agreement": 0.1},
}
CHOSEN = {"labels": 2, "entropy": 3, "consistency": 3, "snd": 1, "source_agreement": 1}


def trials(*errors: float, cell: str = "spatter|5") -> tuple[Trial, ...]:
    """Return a trial for each of *errors*, with made scores; the last has collapsed."""
    return tuple(
        replace(trial(f'{{"lr": {lr}}}', {cell: error}), **SCORES[lr]) for lr, error in enumerate(errors, start=1)
    )


HELD_OUT, REPORTED = trials(0.3, 0.2, 0.9), trials(0.25, 0.3, 0.8, cell="contrast|5")


def test_each_criterion_chooses_what_it_should():
    """The lowest error or entropy, the highest agreement or density; a collapsed model deceives two of them."""
    chosen = {each.criterion: each.hyperparameters for each in choices_of(HELD_OUT)}

    assert {name: f'{{"lr": {lr}}}' for name, lr in CHOSEN.items()} == chosen


def test_the_gap_is_to_the_lowest_error_on_reported_cells():
    """Of the held-out labels, of every criterion on either images, and 0 for the oracle itself."""
    gaps = {(each.criterion, each.images): each.gap for each in choices_of(HELD_OUT, REPORTED)}

    assert gaps == pytest.approx({
        (ORACLE, "reported"): 0, ("labels", "held-out"): 0.05,
        **{(name, images): (0.0 if CHOSEN[name] == 1 else 0.55)
           for name in CRITERIA if name != "labels" for images in ("held-out", "reported")},
    })  # fmt: skip


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_criterion_of_the_file_decides(criterion: str):
    """Whatever the reported cells say; a record with another choice is refused."""
    run = choice(*HELD_OUT, criterion=criterion, reported_trials=REPORTED)

    assert {"lr": CHOSEN[criterion]} == run.values
    assert [criterion] == [each.criterion for each in run.choices if each.decides]
    assert run == TuningRun.from_facts(yaml.safe_load(yaml.safe_dump(_as_lists(asdict(run)))))
    with pytest.raises(RecordError, match=re.escape(run.chosen)):
        replace(run, chosen='{"lr": 9}').require_consistent()


def test_a_trial_without_a_score_is_not_chosen():
    """A network of NaN has none; if no trial has one, the message says what to do."""
    broken = tuple(replace(each, mean_entropy=None) for each in HELD_OUT)

    assert {"lr": 2} == choice(*HELD_OUT[:2], broken[2], criterion="entropy").values
    assert "entropy" not in {each.criterion for each in choices_of(broken)}
    with pytest.raises(RecordError, match=r"\bentropy\b"):
        choice(*broken, criterion="entropy")


def test_the_oracle_can_decide_nothing():
    """Neither in a benchmark file nor in a record, and no trial on a held-out shift passes for a reported one."""
    with pytest.raises(ValueError, match=r"\boracle\b.*tta-pipeline tune.*--compare"):
        benchmark_of(TUNED.replace("subset: {first: 64}}", "subset: {first: 64}, criterion: oracle}"))
    facts = _as_lists(asdict(choice(*HELD_OUT, reported_trials=REPORTED)))
    with pytest.raises(RecordError, match=r"criterion .*'oracle'"):
        TuningRun.from_facts({**facts, "criterion": ORACLE})
    with pytest.raises(RecordError, match=r"reported_trials .*\b3\b.*\bspatter\b.*\bgaussian_noise, contrast\b"):
        choice(*HELD_OUT, reported_trials=HELD_OUT).require_consistent()


def test_trials_are_of_the_same_cells_and_have_the_mean_of_their_errors():
    """Otherwise they cannot be compared, and nothing is chosen."""
    one, *_ = HELD_OUT
    for odd, found in (
        ((), "trials is empty"),
        ((replace(one, error=0.31),), r"\b0\.31\b.*mean"),
        ((replace(one, errors=(0.3, 0.3)),), r"\b2 errors\b.*\b1 cells\b"),
        ((one, *trials(0.3, cell="spatter|3")), "same cells"),
    ):
        with pytest.raises(RecordError, match=found):
            choice(*odd)


def _as_lists(facts: object) -> object:
    """Return *facts* as JSON would have them."""
    if isinstance(facts, dict):
        return {name: _as_lists(value) for name, value in facts.items()}
    return [_as_lists(each) for each in facts] if isinstance(facts, tuple) else facts
