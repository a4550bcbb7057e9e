"""What the gate found about one demand."""

from collections.abc import Sequence
from dataclasses import dataclass

from tta_pipeline.report.tables import WithInterval, format_value


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Whether an experiment, or one of its cells, keeps to a demand, and how this was decided."""

    experiment: str
    cell: str | None = None
    """The cell, with its stream if it is not its own; None: the whole experiment."""
    demand: str
    """What is expected, such as `mean_error at most 0.42`."""
    is_kept: bool
    column: str | None = None
    """The column of the value; None: there is no value."""
    value: float | None = None
    low: float | None = None
    """Lower end of the 95 % interval of the value; None where it has none."""
    high: float | None = None
    test: str
    """How it was decided."""
    reason: str = ""
    """What was found where that is no number, and what to do."""

    @property
    def found(self) -> str:
        """The value with its interval, or what was found instead."""
        if self.value is None or self.column is None:
            return self.reason
        has_interval = self.low is not None and self.high is not None
        shown = WithInterval(self.value, self.low, self.high) if has_interval else float(self.value)  # type: ignore[arg-type]
        return "; ".join(filter(None, (f"{self.column} {format_value(self.column, shown)}", self.reason)))

    @property
    def sentence(self) -> str:
        """The finding in one line."""
        where = f"{self.experiment} at {self.cell}" if self.cell else self.experiment
        return f"{where}: found {self.found}; expected {self.demand} ({self.test})"


def is_passed(findings: Sequence[Finding]) -> bool:
    """Return whether there are *findings*, and all demands are kept."""
    return bool(findings) and all(each.is_kept for each in findings)
