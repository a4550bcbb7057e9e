"""Charts of training: error and loss by epoch."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tta_pipeline.report.figure_style import WIDTH_IN, hide_frame, pick_colours
from tta_pipeline.report.tables import Table
from tta_pipeline.results.training_record import TrainingRun

_MAX_MARKED_EPOCHS = 20
"""Most epochs whose points are marked; more would hide the line."""
_QUANTITIES = ("error", "loss")
_COLUMNS = ("model", "epoch", *(f"{part}_{quantity}" for quantity in _QUANTITIES for part in ("train", "validation")))


def learning_curves(epochs: Table) -> Figure | None:
    """Return error and loss of each model by epoch, on training and on validation images; None without epochs.

    Args:
        epochs: A row for each epoch of one run of each model, with the columns `model`, `epoch`, `train_error`,
            `validation_error`, `train_loss` and `validation_loss`; unknown values are None.
    """
    rows = list(zip(*(epochs.column(name) for name in _COLUMNS), strict=True))
    models = list(dict.fromkeys(model for model, *_ in rows))
    if not models:
        return None
    figure = Figure(figsize=(WIDTH_IN, 0.6 + 2.2 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), len(_QUANTITIES), squeeze=False)
    for of_model, model in zip(axes, models, strict=True):
        numbers, *curves = zip(*(row[1:] for row in rows if row[0] == model), strict=True)
        _draw_curves(of_model[0], "error", numbers, curves[:2])
        _draw_curves(of_model[1], "loss", numbers, curves[2:])
        of_model[0].yaxis.set_major_formatter(PercentFormatter(1))
        of_model[0].set_title(_model_title(model, numbers, curves[1]), loc="left", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("epoch")
    lines = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    figure.legend(handles=list(lines.values()), loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    return figure


def learning_curves_of_run(run: TrainingRun) -> Figure:
    """Return error and loss of one run by epoch."""
    rows = tuple((run.model, *(getattr(each, name) for name in _COLUMNS[1:])) for each in run.epochs)
    figure = learning_curves(Table(columns=_COLUMNS, rows=rows))
    assert figure is not None, "a run has an epoch"
    return figure


def _model_title(model: str, epochs: Sequence[int], errors: Sequence[float | None]) -> str:
    """Return the name of *model* with its lowest validation error, if known."""
    known = [(error, epoch) for error, epoch in zip(errors, epochs, strict=True) if error is not None]
    if not known:
        return model
    error, epoch = min(known)
    return f"{model}: lowest validation error {error:.1%}, epoch {epoch}"


def _draw_curves(axis: Axes, quantity: str, epochs: Sequence[int], curves: Sequence[Sequence[float | None]]) -> None:
    """Draw the *curves* of a quantity on training and on validation images, from zero upwards."""
    on_validation, on_training = pick_colours(2)
    marker = "o" if len(epochs) <= _MAX_MARKED_EPOCHS else None
    highest = 0.0
    styles = (("training", on_training, "--"), ("validation", on_validation, "-"))
    for (label, colour, line), values in zip(styles, curves, strict=True):
        known = [(epoch, value) for epoch, value in zip(epochs, values, strict=True) if value is not None]
        if known:
            axis.plot(*zip(*known, strict=True), label=label, color=colour, linestyle=line, marker=marker, markersize=3)
            highest = max(highest, *(value for _, value in known))
    axis.set_ylim(0, 1.08 * highest or 1)
    axis.set_ylabel(quantity)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    hide_frame(axis)
