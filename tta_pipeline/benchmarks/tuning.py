"""How hyperparameters of an experiment are chosen, on shifts that the benchmark does not report."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError, field_validator

from tta_pipeline.benchmarks.protocol import Subset
from tta_pipeline.util.mistakes import mistakes
from tta_pipeline.util.sections import Section

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.experiments import Experiment

Value = bool | int | float | str
"""A value of a hyperparameter, as a file or a command line has it."""
MOST_TRIALS = 10_000


class Tuning(Section):
    """The search for an experiment's hyperparameters."""

    grid: dict[str, tuple[Value, ...]] = Field(default_factory=dict)
    """Values to try, by hyperparameter; each combination is a trial. A run can name another grid."""
    budget: int = Field(default=20, ge=1, le=MOST_TRIALS)
    """Most trials, 1 to 10,000; of more combinations, so many are drawn, always the same."""
    severities: tuple[int, ...] | None = None
    """Severities of the trials; None: those of the experiment."""
    subset: Subset | None = None
    """Samples of each cell of the trials; None: those of the experiment."""

    @field_validator("grid")
    @classmethod
    def _of_values(cls, found: dict[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
        for name, values in found.items():
            if not values or len(set(values)) < len(values):
                raise ValueError(f"found {name} with {list(values)}; expected at least one value, each once")
        return found


def grid_problems(grid: dict[str, tuple[Value, ...]], experiment: "Experiment") -> Iterator[str]:
    """Yield a sentence for each value in *grid* that is none of a hyperparameter of *experiment*."""
    for name, values in grid.items():
        for value in values:
            changed = {**experiment.hyperparameters, name: value}
            try:
                experiment.entry.configure(experiment.preset, changed, batch_size=experiment.method_batch_size)
            except ValidationError as error:
                for problem, sentence in zip(error.errors(), mistakes(error, ""), strict=True):
                    # A value that does not go with others may go with other values of the grid.
                    if problem["loc"] == (name,) or "unknown field" in sentence:
                        yield sentence
