"""A grid of hyperparameters: parsing, checks, and the combinations within a budget."""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, product
from math import prod

from pydantic import ValidationError

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.tuning_settings import HyperparameterValue, grid_problems
from tta_pipeline.errors import EvaluationError
from tta_pipeline.util.validation_errors import mistakes

Grid = Mapping[str, tuple[HyperparameterValue, ...]]
Combination = Mapping[str, HyperparameterValue]
_MOST_COMBINATIONS = 1_000_000


def parse_grid(texts: Iterable[str]) -> Grid:
    """Parse *texts* such as `lr=1e-4,1e-3` into a grid; a value that is no JSON is text."""
    grid: dict[str, tuple[HyperparameterValue, ...]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        found = tuple(dict.fromkeys(_value(each.strip()) for each in values.split(",")))
        if not sign or not name.isidentifier() or name in grid or "" in found:
            raise EvaluationError(
                f"The grid contains {text!r}; expected each hyperparameter once, with its values, such as "
                "lr=1e-4,2.5e-4,1e-3"
            )
        grid[name] = found
    return grid


def require_valid_grid(grid: Grid, experiment: Experiment, experiment_name: str) -> None:
    """Refuse a *grid* that is empty, or has values that are invalid for a hyperparameter of *experiment*."""
    if not grid:
        raise EvaluationError(
            f"There is no grid for {experiment_name}; expected tuning.{experiment_name}.grid in the benchmark file, "
            "or --grid lr=1e-4,1e-3: add one"
        )
    if problems := "; ".join(grid_problems(dict(grid), experiment)):
        raise EvaluationError(
            f"The grid of {experiment_name} has {problems}: only hyperparameters of {experiment.method} can be tuned"
        )


def require_valid_combinations(found: Iterable[Combination], experiment: Experiment) -> None:
    """Refuse combinations whose values are valid for *experiment* one by one, but not together."""
    for each in found:
        changed = {**experiment.hyperparameters, **each}
        try:
            experiment.entry.configure(experiment.preset, changed, batch_size=experiment.method_batch_size)
        except ValidationError as error:
            raise EvaluationError(
                f"The grid contains {combination_text(each)}, which the method does not accept: "
                f"{'; '.join(mistakes(error, experiment.method))}; expected valid combinations: remove one of these "
                "values"
            ) from None


def combinations(grid: Grid, budget: int) -> tuple[Combination, ...]:
    """Return all combinations of *grid* in its order, or *budget* of them, drawn at random.

    The draw is a function of grid and budget, and a larger budget extends the draw of a smaller one.
    """
    number = num_combinations(grid)
    if number > _MOST_COMBINATIONS:
        raise EvaluationError(
            f"The grid has {number:,} combinations; expected at most {_MOST_COMBINATIONS:,}: remove some values"
        )
    drawn = list(range(number))
    random.Random(0).shuffle(drawn)  # noqa: S311 - not a secret
    chosen = set(drawn[:budget])
    every = (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
    return tuple(each for at, each in enumerate(islice(every, number)) if at in chosen)


def num_combinations(grid: Grid) -> int:
    """Return the number of combinations of *grid*."""
    return prod(len(values) for values in grid.values())


def as_json(combination: Combination | Mapping[str, Sequence[HyperparameterValue]]) -> str:
    """Return *combination*, or a grid, as canonical JSON."""
    return json.dumps(combination, sort_keys=True)


def trial_name(combination: Combination) -> str:
    """Return the name of a trial's folder: a hash, since values can be any text."""
    return hashlib.sha256(as_json(combination).encode()).hexdigest()[:16]


def combination_text(combination: Combination) -> str:
    """Return *combination* for a log, such as `lr 0.001, steps 2`."""
    return ", ".join(f"{name} {value}" for name, value in combination.items())


def _value(text: str) -> HyperparameterValue:
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, bool | int | float | str) else text
