"""The grid: what it is read from, how it is refused, and what a budget leaves of it."""

import pytest

from tta_pipeline.errors import EvaluationError
from tta_pipeline.extras.tuning.grid import (
    combinations,
    parse_grid,
    require_valid_combinations,
    require_valid_grid,
    trial_name,
)
from tta_pipeline_tests.extras.tuning.tuned import benchmark_of

TENT = benchmark_of().experiments["tent"]


def test_values_are_numbers_where_they_can_be():
    """Others are text, and spaces and repetitions do not count."""
    grid = parse_grid(["lr=1e-4, 2.5e-4,1e-4", "optimizer=adam,sgd", "nesterov=true"])

    assert {"lr": (1e-4, 2.5e-4), "optimizer": ("adam", "sgd"), "nesterov": (True,)} == grid


@pytest.mark.parametrize("texts", [["lr"], ["lr="], ["=1"], ["lr=1,,2"], ["l r=1"], ["lr=1", "lr=2"]])
def test_a_text_that_is_no_list_of_values_is_refused(texts: list[str]):
    """The message has it, and an example."""
    with pytest.raises(EvaluationError, match=rf"'{texts[-1]}'.*lr=1e-4"):
        parse_grid(texts)


@pytest.mark.parametrize(
    ("grid", "problem"),
    [
        ({}, "tent.*--grid lr=1e-4"),
        ({"lr": (0.001, -1)}, r"\blr .*-1\b.*\b0\b"),
        ({"optimizer": ("adam", "lion")}, "optimizer .*'lion'"),
        *(({name: (1,)}, rf"\b{name};") for name in ("corruptions", "severities", "seed", "model", "subset")),
    ],
)
def test_only_hyperparameters_of_the_method_are_searched(grid: dict, problem: str):
    """Neither cells nor seeds, models or samples."""
    with pytest.raises(EvaluationError, match=problem):
        require_valid_grid(grid, TENT, "tent")


def test_a_value_is_judged_with_the_values_that_it_goes_with():
    """Nesterov's momentum, which Adam does not have, is fine with SGD and refused with Adam."""
    grid = {"nesterov": (True,), "optimizer": ("sgd", "adam")}

    require_valid_grid(grid, TENT, "tent")
    with pytest.raises(EvaluationError, match="nesterov True, optimizer adam"):
        require_valid_combinations(combinations(grid, 2), TENT)


def test_a_larger_budget_adds_to_a_smaller_one():
    """Trials of before are used again, and the order is that of the grid."""
    grid = {"lr": (1, 2, 3, 4), "steps": (1, 2, 3)}
    few, more, every = (combinations(grid, budget) for budget in (3, 7, 20))

    assert (3, 7, 12) == (len(few), len(more), len(every))
    assert [each for each in more if each in few] == list(few)
    assert {"lr": 1, "steps": 1} == every[0]
    assert 12 == len({trial_name(each) for each in every})
