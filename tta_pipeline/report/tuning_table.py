"""The table of what each criterion of a tuning chooses."""

from tta_pipeline.report.tables import Table
from tta_pipeline.results.tuning_record import TuningRun

_COLUMNS = ("criterion", "images", "hyperparameters", "score", "decides")
_COMPARED = ("reported_error", "gap")


def criteria_table(run: TuningRun) -> Table:
    """Return what each criterion chooses; with its error on reported cells and its gap where *run* compared them."""
    names = (*_COLUMNS, *(_COMPARED if run.reported_trials else ()))
    return Table(columns=names, rows=tuple(tuple(getattr(each, name) for name in names) for each in run.choices))
