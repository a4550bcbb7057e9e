"""The search for an experiment's hyperparameters, on shifts that the benchmark does not report."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field, ValidationError, field_validator

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.file_context import FileContext
from tta_pipeline.benchmarks.protocol import Subset
from tta_pipeline.results.tuning_criteria import CRITERIA_NAMES, DEFAULT_CRITERION, CriterionName
from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.validation_errors import mistakes

HyperparameterValue = bool | int | float | str
"""A value of a hyperparameter in a file or on a command line."""
MOST_TRIALS = 10_000


class Tuning(ConfigModel):
    """The search for an experiment's hyperparameters."""

    grid: dict[str, tuple[HyperparameterValue, ...]] = Field(default_factory=dict)
    """Values to try, by hyperparameter; each combination is a trial. `tta-pipeline tune --grid` overrides it."""
    budget: int = Field(default=20, ge=1, le=MOST_TRIALS)
    """Maximum number of trials, 1 to 10,000. Larger grids are sampled at random, always in the same way."""
    severities: tuple[int, ...] | None = None
    """Severities of the trials. Default: the experiment's severities."""
    subset: Subset | None = None
    """Samples of each cell of the trials. Default: the experiment's subset."""
    criterion: CriterionName = DEFAULT_CRITERION
    """How to choose among the trials, on held-out shifts. `labels`: lowest error. Without labels, `entropy`: lowest
    mean entropy; `consistency`: most predictions shared with a shifted view of the image; `snd`: highest soft
    neighbourhood density; `source_agreement`: most predictions shared with the source model."""

    @field_validator("criterion", mode="before")
    @classmethod
    def _no_oracle(cls, found: Any) -> Any:
        if found == "oracle":
            raise ValueError(
                f"oracle chooses by the labels of the reported cells; expected one of {', '.join(CRITERIA_NAMES)}: "
                "run `tta-pipeline tune` with --compare to record the oracle's choice too"
            )
        return found

    @field_validator("grid")
    @classmethod
    def _of_values(
        cls, found: dict[str, tuple[HyperparameterValue, ...]]
    ) -> dict[str, tuple[HyperparameterValue, ...]]:
        for name, values in found.items():
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} has the values {list(values)}; expected at least one value and no duplicates")
        return found

    def problems(self, name: str, experiment: Experiment, file: FileContext) -> Iterator[str]:
        """Yield a sentence for each problem with the *experiment* called *name*, or with other sections of *file*."""
        if not file.held_out:  # of several sets, some may have none
            return
        if unknown := sorted(set(self.severities or ()) - set(file.severities)):
            yield f"tuning.{name}.severities has {unknown}; expected any of {list(file.severities)}"
        for problem in grid_problems(self.grid, experiment):
            yield f"tuning.{name}.grid: {problem}"


def grid_problems(grid: dict[str, tuple[HyperparameterValue, ...]], experiment: Experiment) -> Iterator[str]:
    """Yield a sentence for each value in *grid* that no hyperparameter of *experiment* can have."""
    for name, values in grid.items():
        for value in values:
            changed = {**experiment.hyperparameters, name: value}
            try:
                experiment.entry.configure(experiment.preset, changed, batch_size=experiment.method_batch_size)
            except ValidationError as error:
                for problem, sentence in zip(error.errors(), mistakes(error, ""), strict=True):
                    # A value that conflicts with other hyperparameters may fit other values of the grid.
                    if problem["loc"] == (name,) or "unknown field" in sentence:
                        yield sentence
