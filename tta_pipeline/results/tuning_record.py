"""Definition of a tuning and its trials: the hyperparameters tried, the held-out cells, and the choice.

This module determines the tables `tunings` and `tuning_trials`, as `evaluation_record` does for `evaluations`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeGuard

from tta_pipeline.errors import RecordError
from tta_pipeline.results.record_fields import (
    FORBID_UNKNOWN_FIELDS,
    Column,
    Field,
    RecordedFacts,
    SeparatePart,
    columns_of,
)
from tta_pipeline.results.tuning_criteria import (
    CRITERIA,
    CRITERIA_NAMES,
    DEFAULT_CRITERION,
    CriterionChoice,
    CriterionName,
    choices_of,
    require_best_trial,
)
from tta_pipeline.results.tuning_trial import Trial, Value
from tta_pipeline.util.plurals import count_of

_SAME = 1e-9
"""Tolerance between two means of the same errors."""
_QUANTILE = 1.96
"""Standard errors around the mean that contain 95 % of a normal distribution."""


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class TuningRun(RecordedFacts):
    """Choice of an experiment's hyperparameters by a criterion on held-out shifts."""

    benchmark: Annotated[str, Column("Name of the benchmark and of its file")]
    dataset: Annotated[str, Column("Name of the dataset")]
    experiment: Annotated[str, Column("Name of the experiment in the benchmark file")]
    model: Annotated[str, Column("Name of the model in the benchmark file")]
    method: Annotated[str, Column("Adaptation method")]
    protocol: Annotated[str, Column("Order of the samples and resets of the method")]
    subset: Annotated[str, Column("Which samples of each cell; all by default")]
    held_out: Annotated[
        tuple[str, ...], Column("Shifts that the trials may see: held out by the set, and not reported")
    ]
    reported: Annotated[tuple[str, ...], Column("Shifts that the benchmark reports; no trial saw them")]
    cells: Annotated[tuple[str, ...], Column("Cells that every trial was evaluated on, as speckle_noise|5")]
    grid: Annotated[str, Column("Values to try, by hyperparameter", sql="JSON")]
    num_combinations: Annotated[int, Column("Combinations of the grid", above=0)]
    budget: Annotated[int, Column("Most trials; of more combinations, this many were drawn", above=0)]
    num_trials: Annotated[int, Column("Combinations that were evaluated", above=0)]
    criterion: Annotated[
        CriterionName,
        Column(
            "What decided, on held-out cells: labels, the lowest error; or a score without labels",
            sql="VARCHAR", choices=CRITERIA_NAMES,
        ),
    ]  # fmt: skip
    chosen: Annotated[str, Column("Values that the criterion chose, by hyperparameter", sql="JSON")]
    error: Annotated[
        float, Column("Mean top-1 error of the chosen values on the held-out cells", at_least=0, at_most=1)
    ]
    trials: Annotated[tuple[Trial, ...], SeparatePart()]
    reported_trials: Annotated[tuple[Trial, ...], SeparatePart()]
    """The same combinations on reported cells, evaluated to judge the criteria; no choice depends on them."""

    @classmethod
    def from_trials(cls, trials: tuple[Trial, ...], *, criterion: CriterionName, **others: Any) -> Self:
        """Return the tuning with *trials*, and the fields that follow from them.

        Raises:
            RecordError: there is no trial, or none has a score by the criterion.
        """
        return cls(trials=trials, criterion=criterion, **_derived_fields(trials, criterion), **others)

    @property
    def values(self) -> Mapping[str, Value]:
        """The chosen values, by hyperparameter."""
        found: Mapping[str, Value] = json.loads(self.chosen)
        return found

    @property
    def grid_values(self) -> Mapping[str, Sequence[Value]]:
        """The values to try, by hyperparameter."""
        found: Mapping[str, Sequence[Value]] = json.loads(self.grid)
        return found

    @property
    def choice(self) -> str:
        """The chosen values with their error, and other values with an equal error; the first tried is chosen."""
        rank = CRITERIA[self.criterion].rank
        lowest = min(map(rank, self.trials))
        equal = [each.hyperparameters for each in self.trials if rank(each) == lowest]
        tie = f", as {' and '.join(equal[1:])} {'has' if len(equal) == 2 else 'have'}: the first of the grid is chosen"
        by = "" if self.criterion == DEFAULT_CRITERION else f" by {self.criterion}"
        return f"{self.chosen}{by}, error {self.error:.1%} on {', '.join(self.shifts)}{tie if len(equal) > 1 else ''}"

    def cautions(self) -> tuple[str, ...]:
        """Return what the choice does not show: that it is better than others, or than values beyond the grid.

        Trials keep no predictions, so two errors are compared as if from independent samples. Cells may show the same
        photographs, so only the images of one cell are counted.
        """
        num_images = self.trials[0].num_samples
        others = [each for each in self.trials if each.hyperparameters != self.chosen]
        rivals = [each for each in others if self._may_be_equal(each, num_images)]
        found = []
        if rivals and self.criterion == DEFAULT_CRITERION:
            highest = max(each.error for each in rivals)
            which = "" if rivals == others else f"{len(rivals)} of "
            found.append(
                f"with {num_images:,} images, the best trial cannot be told apart from {which}the other "
                f"{count_of(len(others), 'trial')}: errors of {self.error:.1%} to {highest:.1%}"
            )
        for name, value in self.values.items():
            tried = [each for each in self.grid_values[name] if _is_number(each)]
            if _is_number(value) and len(tried) > 1 and value in (min(tried), max(tried)):
                edge = "least" if value == min(tried) else "largest"
                found.append(f"{name} {value:g} is the {edge} value of the grid: try values beyond it")
        return tuple(found)

    def _may_be_equal(self, trial: Trial, num_images: int) -> bool:
        variance = sum(error * (1 - error) / num_images for error in (self.error, trial.error))
        return bool(abs(trial.error - self.error) <= _QUANTILE * variance**0.5)

    @property
    def choices(self) -> tuple[CriterionChoice, ...]:
        """What each criterion chooses, with its gap to the oracle where the reported cells were evaluated."""
        return choices_of(self.trials, self.reported_trials, decider=self.criterion)

    @property
    def shifts(self) -> tuple[str, ...]:
        """Shifts of the cells, each once."""
        return tuple(dict.fromkeys(cell.partition("|")[0] for cell in self.cells))

    def require_consistent(self) -> None:
        """Check that redundant fields agree, and that no trial saw a shift that is reported.

        Raises:
            RecordError: two fields contradict each other, or a cell is not of a held-out shift.
        """
        for name, expected in _derived_fields(self.trials, self.criterion).items():
            found = getattr(self, name)
            if found != expected and not (name == "error" and abs(found - expected) < _SAME):
                raise RecordError(f"{name} is {found!r:.120}; expected {expected!r:.120}, as computed from the trials")
        seen = {cell.partition("|")[0] for each in self.trials for cell in each.cells}
        if odd := sorted(seen - set(self.held_out) | seen & set(self.reported)):
            raise RecordError(
                f"cells has the shifts {', '.join(odd)}; expected only held-out shifts that are not reported, from "
                f"{', '.join(self.held_out)}"
            )
        seen = {cell.partition("|")[0] for each in self.reported_trials for cell in each.cells}
        combinations = [each.hyperparameters for each in self.reported_trials]
        if seen - set(self.reported) or combinations not in ([], [each.hyperparameters for each in self.trials]):
            raise RecordError(
                f"reported_trials has {len(combinations)} trials on {', '.join(sorted(seen))}; expected the same "
                f"{len(self.trials)} hyperparameter combinations as in trials, on {', '.join(self.reported)}"
            )


def tuning_columns() -> tuple[Field, ...]:
    """Return the columns of the table `tunings` that a record's facts fill, in their order."""
    return columns_of(TuningRun)


def trial_columns() -> tuple[Field, ...]:
    """Return the columns of the table `tuning_trials` that a trial fills, in their order."""
    return columns_of(Trial)


def choice_columns() -> tuple[Field, ...]:
    """Return the columns of the table `tuning_criteria` that a criterion's choice fills, in their order."""
    return columns_of(CriterionChoice)


def _is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _derived_fields(trials: tuple[Trial, ...], criterion: CriterionName) -> dict[str, Any]:
    """Return the fields that follow from *trials*; the choice is the first trial that *criterion* prefers."""
    if not trials:
        raise RecordError("trials is empty; expected at least one trial")
    for each in trials:
        if len(each.errors) != len(each.cells) or abs(each.error - sum(each.errors) / len(each.errors)) > _SAME:
            raise RecordError(
                f"The error of trial {each.trial} is {each.error!r}; expected the mean of its {len(each.errors)} "
                f"errors, one for each of its {len(each.cells)} cells"
            )
    if len({each.cells for each in trials}) > 1:
        raise RecordError("cells differ between trials; expected the same cells in all trials")
    best = require_best_trial(trials, criterion)
    return {
        "cells": tuple(dict.fromkeys(trials[0].cells)),
        "num_trials": len(trials),
        "chosen": best.hyperparameters,
        "error": best.error,
    }
