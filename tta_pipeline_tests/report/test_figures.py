"""What a reader sees of the charts: names that can be read, and intervals of the values they belong to."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.error_figures import corruption_dots, error_against_cost, open_set_dots
from tta_pipeline.report.figure_style import as_svg, lay_out
from tta_pipeline.report.progress_figures import progress_lines
from tta_pipeline.report.queries import WHERE_THE_TIME_GOES
from tta_pipeline.report.significance.estimates import Estimate
from tta_pipeline.report.tables import Table, query
from tta_pipeline.report.time_figures import stage_bars
from tta_pipeline.report.tuning_figures import criteria_gaps, error_over_grid
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline_tests.extras.tuning.tuned import choice, trial
from tta_pipeline_tests.results.database.made import record

COLUMNS = ("protocol", "subset", "num_cells", "experiment", "ms_per_image", "mean_error")


def test_names_beside_points_hide_neither_each_other_nor_the_axes():
    """Also of twenty experiments, several of which are nearly the same in error and cost."""
    rows = tuple(
        ("cell", "all", 75, f"method_{n}", 1 + n % 5 + 0.01 * n, 0.1 * (1 + n % 4) + 0.001 * n) for n in range(20)
    )

    figure = error_against_cost(Table(columns=COLUMNS, rows=rows))

    assert figure is not None
    figure.draw_without_rendering()
    (axis,) = figure.axes
    names = [each for each in axis.texts if isinstance(each, Annotation)]
    assert {row[3] for row in rows} == {each.get_text() for each in names}
    boxes = [Text.get_window_extent(each).padded(-1) for each in names]  # without the lines that lead to the points
    assert not [1 for a, b in combinations(boxes, 2) if Bbox.intersection(a, b) is not None]
    assert all(axis.bbox.padded(2).contains(*corner) for each in boxes for corner in (each.min, each.max))


def test_one_experiment_has_nothing_to_be_compared_with():
    """Neither alone nor beside one on other cells or with another protocol."""
    rows = (
        ("cell", "all", 75, "tent", 1.0, 0.1),
        ("cell", "all", 3, "norm", 1.0, 0.1),
        ("mixed", "all", 75, "eata", 1.0, 0.1),
    )

    assert error_against_cost(Table(columns=COLUMNS, rows=rows)) is None


def test_an_svg_rounds_coordinates_and_no_text():
    """A label of a tick such as 0.565 is as long as it was written."""
    figure = Figure()
    figure.text(1 / 3, 1 / 7, "0.565")

    svg = as_svg(figure)

    assert ">0.565<" in svg
    assert not re.search(r'="[^"]*\d\.\d{3}', svg)


@pytest.mark.parametrize(("mean", "num_drawn"), [(0.3, 1), (0.2, 0)])
def test_an_interval_is_of_the_same_cells_as_its_dot(mean: float, num_drawn: int):
    """Predictions may be kept for some cells only: their interval is of another mean, and is not drawn."""
    errors = {"tent": {Cell(corruption="fog", severity=each): error for each, error in ((3, 0.2), (5, 0.4))}}
    intervals = {
        "tent": {"fog": Estimate(mean=mean, low=mean - 0.1, high=mean + 0.1, p_value=0.0, standard_error=0.05)}
    }

    (axis,) = corruption_dots(errors, ["fog"], {}, {"tent": 0.3}, intervals).axes

    assert num_drawn == len(axis.collections)
    assert axis.get_lines()[0].get_xdata()[0] == pytest.approx(0.3)


def test_an_open_stream_is_drawn_with_and_without_its_closed_one():
    """A dot for each error and each AUROC, and a ring and an arrow where the closed stream was evaluated."""
    rows = (("tent", 0.2, 0.3, 0.8), ("norm", None, 0.25, 0.7))

    figure = open_set_dots(Table(columns=("experiment", "closed_error", "error", "auroc"), rows=rows))

    assert figure is not None
    errors, separation = figure.axes
    assert [0.2, 0.3, 0.25] == [line.get_xdata()[0] for line in errors.lines]
    assert 1 == len(errors.texts)
    assert [0.8, 0.7] == [line.get_xdata()[0] for line in separation.lines if line.get_marker() == "s"]
    assert open_set_dots(Table(columns=("experiment", "closed_error", "error", "auroc"), rows=())) is None


def test_gaps_of_criteria_are_marks_in_points():
    """A ring where the criterion saw the reported images; the oracle, whose gap is 0, is not drawn."""
    columns = ("experiment", "criterion", "images", "gap")
    rows = (
        ("tent", "labels", "held-out", 0.01), ("tent", "entropy", "held-out", 0.3),
        ("tent", "entropy", "reported", 0.2), ("tent", "oracle", "reported", 0.0),
    )  # fmt: skip

    figure = criteria_gaps(Table(columns=columns, rows=rows))

    assert figure is not None
    (axis,) = figure.axes
    assert [1.0, 30.0, 20.0] == [line.get_xdata()[0] for line in axis.lines[1:]]
    assert [False, False, True] == [line.get_markerfacecolor() == "none" for line in axis.lines[1:]]
    assert ["labels", "entropy"] == [each.get_text() for each in axis.get_yticklabels()]
    assert criteria_gaps(Table(columns=columns, rows=rows[-1:])) is None


def test_a_bar_of_stages_ends_with_the_milliseconds_of_an_image():
    """Five seconds for a thousand images are 5 ms each."""
    columns = ("experiment", "subset", "num_samples", "scan_s", "setup_s", "data_wait_s", "compute_s", "other_s")

    (axis,) = stage_bars(Table(columns=columns, rows=(("tent", "all", 1000, 0.5, 0.5, 1.0, 2.0, 1.0),))).axes

    assert [0.1, 0.1, 0.2, 0.4, 0.2] == pytest.approx([bar.get_width() for bar in axis.patches])
    assert ["5 ms"] == [each.get_text() for each in axis.texts]


def test_no_second_is_in_two_stages(tmp_path: Path):
    """Of a pass of 1.25 s, 0.2 s of waiting and 0.8 s of computing leave 0.25 s for everything else."""
    locations = Locations(root=tmp_path)
    record(locations)
    publish_metrics(locations)

    with open_metrics(locations.metrics) as connection:
        times = query(connection, WHERE_THE_TIME_GOES, ["made", "imagenet_c"])

    (found,) = zip(*map(times.column, ("data_wait_s", "compute_s", "other_s", "wall_s")), strict=True)
    assert (0.2, 0.8, 0.25, 1.25) == pytest.approx(found)


def test_long_names_leave_room_for_their_lines():
    """Thirty names of others were as wide as three columns, and the panel vanished with a warning."""
    columns = ("protocol", "stream", "experiment", "subset", "seed", "first_image", "num_images", "accuracy",
               "num_resets", "collapsed_at")  # fmt: skip
    names = [f"baselines:adacontrast_continual_{number}" for number in range(30)]
    rows = tuple(("continual", "5", name, "all", 0, 0, 600, 0.8, 0, None) for name in names)

    figure = progress_lines(Table(columns=columns, rows=rows))
    lay_out(figure)

    assert figure.axes[0].get_position().width > 0.5


def test_a_last_batch_of_few_images_makes_no_spike():
    """Its images count in the step before; protocols have panels of their own, and no two experiments one colour."""
    columns = ("protocol", "stream", "experiment", "subset", "seed", "first_image", "num_images", "accuracy",
               "num_resets", "collapsed_at")  # fmt: skip
    ends = ((0, 1000, 0.8, 0, None), (1000, 992, 0.5, 0, None), (1992, 8, 0.0, 0, None))
    lines = [(protocol, "5", f"tent_{n}", "all", 0) for protocol in ("continual", "mixed") for n in range(6)]
    rows = tuple((*line[:2], f"{line[2]}_{line[0]}", *line[3:], *end) for line in lines for end in ends)

    panels = progress_lines(Table(columns=columns, rows=rows)).axes

    drawn = [line for axis in panels for line in axis.lines if len(line.get_xdata()) > 1]
    assert len(panels) == 2
    assert len({line.get_color() for line in drawn}) == len(drawn) == 12
    assert [0.8, 0.496, 0.496] == pytest.approx(list(drawn[0].get_ydata()))


@pytest.mark.parametrize(
    ("grid", "left_out", "num_panels", "labels"),
    [
        ({"lr": [0.001, 0.1]}, 0, 1, ["0.001", "0.1"]),
        ({"lr": [0.001, 0.1], "optimizer": ["sgd", "adam"]}, 0, 1, ["sgd", "adam"]),  # a map, besides its scale
        ({"lr": [0.001, 0.1], "optimizer": ["sgd", "adam"]}, 1, 2, ["0.001", "0.1"]),
    ],
)
def test_a_tuning_is_a_curve_a_map_or_a_panel_for_each_value(
    grid: Mapping[str, Sequence[object]], left_out: int, num_panels: int, labels: list[str]
):
    """A curve over one hyperparameter, a map over two; a map with holes would say what was not tried."""
    values = [json.dumps(dict(zip(grid, each, strict=True))) for each in product(*grid.values())]
    tried = [trial(each, {"spatter|5": 0.1 + 0.2 * n}) for n, each in enumerate(values[left_out:])]
    run = choice(*tried, grid=json.dumps(grid), num_combinations=len(values))

    figure = error_over_grid(run)

    figure.draw_without_rendering()
    panels = [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]
    assert num_panels == len(panels)
    assert labels == [each.get_text() for each in panels[0].get_xticklabels()]
    assert f"error {run.error:.1%}" in figure.get_suptitle()
