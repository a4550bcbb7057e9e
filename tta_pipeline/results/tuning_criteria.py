"""The criteria by which a tuning chooses among its trials: one with labels, the others without.

Only labels of held-out shifts may choose. The oracle is what the labels of the reported cells would choose: a reference
for all criteria, never a choice. The protocol follows Cygert et al. 2024, "Realistic evaluation of test-time adaptation
algorithms: unsupervised hyperparameter selection" (arXiv 2407.14231): methods are compared at the values that each
strategy selects and at the oracle's. Only its abstract and a summary of its strategies (source accuracy,
cross-validated accuracy, entropy, consistency, SND) were available. The second view, and the stream over which a score
is taken, are our choices.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from tta_pipeline.errors import RecordError
from tta_pipeline.results.record_fields import Column
from tta_pipeline.results.tuning_trial import Trial

CriterionName = Literal["labels", "entropy", "consistency", "snd", "source_agreement"]
CRITERIA_NAMES: tuple[CriterionName, ...] = get_args(CriterionName)
DEFAULT_CRITERION: CriterionName = "labels"
Probe = Literal["neighbourhood", "second_view", "source"]
"""What is asked of each batch besides the prediction, since it costs passes or memory: `neighbourhood` keeps the
probabilities of all samples, `second_view` predicts a shifted view from the same state, and `source` predicts by the
source model."""
ORACLE = "oracle"
Images = Literal["held-out", "reported"]


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A number that each trial yields, and the end of it that is chosen."""

    score: Callable[[Trial], float | None]
    best: Literal["lowest", "highest"]
    probe: Probe | None = None
    """What the trials must measure for it; None: every evaluation has it."""

    def rank(self, trial: Trial) -> float:
        """Return a number that is lower for a better *trial*, and infinite for one without a score."""
        score = self.score(trial)
        if score is None:
            return float("inf")
        return score if self.best == "lowest" else -score


CRITERIA: Mapping[CriterionName, Criterion] = {
    "labels": Criterion(score=lambda trial: trial.error, best="lowest"),
    # Wang et al. 2021, "Tent" (ICLR), section 3.1 minimises it; arXiv 2407.14231 selects by it.
    "entropy": Criterion(score=lambda trial: trial.mean_entropy, best="lowest"),
    "consistency": Criterion(score=lambda trial: trial.view_agreement, best="highest", probe="second_view"),
    # Saito et al. 2021 (ICCV), section 3.
    "snd": Criterion(score=lambda trial: trial.neighbourhood_density, best="highest", probe="neighbourhood"),
    "source_agreement": Criterion(score=lambda trial: trial.source_agreement, best="highest", probe="source"),
}
"""Every criterion by its name in a benchmark file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CriterionChoice:
    """What one criterion chooses, and how far that is from the oracle's choice."""

    criterion: Annotated[
        str,
        Column(
            "Criterion: labels, or one without labels; oracle: what the labels of the reported cells would choose, "
            "which no experiment can use",
            choices=(*CRITERIA_NAMES, ORACLE),
        ),
    ]
    images: Annotated[
        str,
        Column(
            "Images that the criterion saw: of held-out shifts, or of reported ones, without their labels except for "
            "the oracle",
            choices=("held-out", "reported"),
        ),
    ]
    decides: Annotated[bool, Column("Whether it is the choice of the tuning, which experiments use")]
    hyperparameters: Annotated[str, Column("Chosen values, by hyperparameter", sql="JSON")]
    score: Annotated[float, Column("The criterion's score of the chosen values")]
    reported_error: Annotated[
        float | None,
        Column(
            "Mean top-1 error of the chosen values on the reported cells; NULL without a comparison",
            at_least=0, at_most=1,
        ),
    ] = None  # fmt: skip
    gap: Annotated[
        float | None, Column("reported_error minus the oracle's; NULL without a comparison", at_least=0, at_most=1)
    ] = None


def probes_of(criteria: Iterable[CriterionName]) -> frozenset[Probe]:
    """Return what trials must measure for *criteria*."""
    return frozenset(probe for name in criteria if (probe := CRITERIA[name].probe))


def best_trial(trials: Sequence[Trial], criterion: CriterionName) -> Trial | None:
    """Return the trial that *criterion* chooses, the first of equal ones; None if no trial has a score."""
    found = CRITERIA[criterion]
    best = min(trials, key=found.rank)
    return None if found.score(best) is None else best


def require_best_trial(trials: Sequence[Trial], criterion: CriterionName) -> Trial:
    """Return the trial that *criterion*, which decides, chooses.

    Raises:
        RecordError: no trial has a score.
    """
    best = best_trial(trials, criterion)
    if best is None:
        raise RecordError(
            f"Every trial diverged (NaN or infinite logits), so {criterion} has no score to compare; expected finite "
            "logits in at least one trial: use smaller values in the grid, such as lower learning rates"
        )
    return best


def choices_of(
    trials: Sequence[Trial], reported: Sequence[Trial] = (), *, decider: CriterionName = DEFAULT_CRITERION
) -> tuple[CriterionChoice, ...]:
    """Return what each criterion chooses of *trials*, and of the *reported* ones: the same grid on reported cells.

    Criteria without a score are left out. With *reported* trials, each choice has its gap to the oracle's.
    """
    errors = {trial.hyperparameters: trial.error for trial in reported}
    found = [*_choices(trials, "held-out", decider), *_choices(reported, "reported", None)]
    if not errors:
        return tuple(found)
    lowest = min(errors.values())
    return tuple(
        CriterionChoice(
            criterion=each.criterion, images=each.images, decides=each.decides, hyperparameters=each.hyperparameters,
            score=each.score, reported_error=errors[each.hyperparameters], gap=errors[each.hyperparameters] - lowest,
        )
        for each in found
    )  # fmt: skip


def _choices(trials: Sequence[Trial], images: Images, decider: CriterionName | None) -> Iterable[CriterionChoice]:
    for name, criterion in CRITERIA.items() if trials else ():
        best = best_trial(trials, name)
        score = criterion.score(best) if best else None
        if best is not None and score is not None:
            yield CriterionChoice(
                criterion=ORACLE if (name, images) == ("labels", "reported") else name,
                images=images,
                decides=name == decider,
                hyperparameters=best.hyperparameters,
                score=score,
            )
