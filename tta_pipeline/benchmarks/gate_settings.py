"""What the results of a benchmark must keep to, for the verb `gate`."""

from collections.abc import Mapping
from math import isfinite
from typing import Literal

from pydantic import Field, field_validator

from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.identifiers import Name
from tta_pipeline.util.nearest_names import name_choices

Direction = Literal["max", "min"]
OF_EXPERIMENT: Mapping[str, Direction] = {
    "mean_error": "max", "mean_error_at_5": "max", "clean_error": "max", "mce": "max", "relative_mce": "max",
    "mean_top5_error": "max", "mean_nll": "max", "mean_brier": "max", "mean_ece": "max", "num_diverged": "max",
    "forwards_per_sample": "max", "backwards_per_sample": "max", "peak_cuda_gib": "max", "images_per_s": "min",
}  # fmt: skip
"""Columns of the leaderboard that a limit can name, and whether a figure may be at most or at least that limit."""
OF_CELL: Mapping[str, Direction] = {
    "error": "max", "top5_error": "max", "nll": "max", "brier": "max", "ece": "max", "max_calibration_error": "max",
    "rms_calibration_error": "max", "adaptive_ece": "max", "aurc": "max", "estimated_error": "max",
    "mean_entropy": "max", "mean_confidence": "min", "predicted_class_entropy": "min", "source_agreement": "min",
    "fpr95": "max", "auroc": "min", "aupr": "min", "unknown_rejected": "min", "h_score": "min",
}  # fmt: skip
"""Likewise for columns of the evaluations, and for the error as estimated without labels; it limits each cell."""
LIMITED: Mapping[str, Direction] = {**OF_EXPERIMENT, **OF_CELL}
DEFAULT_MARGIN = 0.01


class Gate(ConfigModel):
    """What the results of a benchmark must keep to: limits, and an earlier result that they must not be worse than."""

    max: dict[str, float] = Field(default_factory=dict)
    """Largest value by column: of the leaderboard, such as `mean_error`, for each experiment; of the evaluations, such
    as `ece`, for each cell."""
    min: dict[str, float] = Field(default_factory=dict)
    """Smallest value by column, where more is better, such as `auroc`."""
    no_worse_than: str | None = None
    """The baseline: an experiment of this benchmark, or a folder that `results publish` wrote."""
    margin: float = Field(default=DEFAULT_MARGIN, gt=0, lt=1)
    """How much the mean error may exceed the baseline's, in [0, 1]: the upper end of the 95 % interval of the paired
    difference must lie below."""
    experiments: tuple[Name, ...] = ()
    """Experiments that are judged; by default all but the baseline."""

    @field_validator("max")
    @classmethod
    def _of_upper_limits(cls, found: dict[str, float]) -> dict[str, float]:
        return require_limits("max", found)

    @field_validator("min")
    @classmethod
    def _of_lower_limits(cls, found: dict[str, float]) -> dict[str, float]:
        return require_limits("min", found)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked of the results."""
        return not self.max and not self.min and self.no_worse_than is None


def require_limits(direction: Direction, limits: dict[str, float]) -> dict[str, float]:
    """Return *limits*, by column, which are all of this *direction* and finite.

    Raises:
        ValueError: a column is unknown or has the other direction, or a limit is no number.
    """
    known = [name for name, its in LIMITED.items() if its == direction]
    other = "min" if direction == "max" else "max"
    for name, limit in limits.items():
        if LIMITED.get(name) == other:
            raise ValueError(f"found a limit {direction} of {name}; expected {other}, since that is its better side")
        if name not in known:
            raise ValueError(
                f"found a limit of {name!r}; expected one of "
                f"{name_choices(name, known, listed_in='docs/how-to/watch.md')}"
            )
        if not isfinite(limit):
            raise ValueError(f"found {name} {limit}; expected a finite number")
    return limits
