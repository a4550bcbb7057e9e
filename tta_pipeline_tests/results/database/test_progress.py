"""Accuracy along a stream, where it collapses, error over visits, and what late predictions are worth."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.pages.report import fill_parameters
from tta_pipeline.report.progress_figures import progress_lines
from tta_pipeline.report.queries import STREAM_PROGRESS
from tta_pipeline.report.tables import query
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline_tests.results.database.conftest import Ask
from tta_pipeline_tests.results.database.made import evaluation_facts, record, write


def record_segment(
    root: Path, correct: Sequence[int], *, position: int = 0, corruption: str = "fog", compute_s: Sequence[float] = (),
    unadapted: Sequence[int] | None = None, resets: Sequence[int] | None = None, **changes: Any,
) -> None:  # fmt: skip
    """Record a segment of stream 5 with batches of 500 images, of which so many are *correct* each."""
    num_samples, times = 500 * len(correct), list(compute_s or [0.25] * len(correct))
    subject = {"experiment": "tent", "method": "tent", "stream": "5", "position": position, **changes}
    facts = evaluation_facts(
        num_samples=num_samples, error=1 - sum(correct) / num_samples, corruption=corruption, severity=5, **subject
    )
    facts |= {
        "compute_s": sum(times),
        "num_batches": len(correct), "data_wait_s": 0.0,
        "batches": {
            **facts["batches"],
            "num_samples": [500] * len(correct), "num_correct": list(correct), "compute_s": times,
            "data_wait_s": [0.0] * len(correct), "host_to_device_s": [0.0] * len(correct),
            "num_unadapted": unadapted, "num_resets": resets,
            "predicted_class_entropy": [1.0] * len(correct),
        },
        "num_resets": sum(resets or ()),
    }  # fmt: skip
    write(Locations(root=root), facts)


def record_source(root: Path) -> None:
    """Record the unadapted model on a cell, wrong on half of the images."""
    record(Locations(root=root), experiment="source", method="source", corruption="fog", error=0.5)


def test_progress_counts_the_batches_that_begin_in_each_thousand_images(tmp_path: Path, ask: Ask):
    """Positions go on from segment to segment, and every image is in one row."""
    record_source(tmp_path)
    record_segment(tmp_path, [500, 400, 300])
    record_segment(tmp_path, [100, 0], position=1, corruption="snow")

    rows = ask("SELECT position, corruption, first_image, num_images, accuracy, source_accuracy FROM stream_progress "
               "WHERE experiment = 'tent'")  # fmt: skip

    assert [
        (0, "fog", 0, 1000, 0.9, 0.5),
        (0, "fog", 1000, 500, 0.6, 0.5),
        (1, "snow", 1500, 1000, 0.1, None),
    ] == rows
    assert [(500,)] * 5 == ask("SELECT num_images FROM progress_by(500) WHERE experiment = 'tent'")


def test_progress_says_where_the_method_reset_itself(tmp_path: Path, ask: Ask):
    """A segment without resets has zeros."""
    record_segment(tmp_path, [400, 400, 400], resets=[0, 1, 0])
    record_segment(tmp_path, [400, 400], position=1, corruption="snow")

    assert [(1,), (0,), (0,)] == ask("SELECT num_resets FROM stream_progress")
    assert [(0,), (1,), (0,), (0,), (0,)] == ask("SELECT num_resets FROM evaluation_batches ORDER BY position, batch")


@pytest.mark.parametrize(
    ("later", "collapsed_at"),
    [([100] * 10, 2000), ([100] * 8 + [450, 450], None), ([100] * 6, None)],
    ids=["to the end", "recovered", "too short to say"],
)
def test_a_collapse_is_to_stay_behind_the_unadapted_model_to_the_end(
    tmp_path: Path, ask: Ask, later: list[int], collapsed_at: int | None
):
    """Five rows of a thousand images at least, and not one of them better."""
    record_source(tmp_path)
    record_segment(tmp_path, [400, 400, 400, 400, *later])

    assert [(collapsed_at,)] == ask("SELECT collapsed_at FROM stream_collapses WHERE experiment = 'tent'")


@pytest.mark.parametrize(("unadapted", "collapsed_at"), [([450] * 4 + [50] * 10, None), ([450] * 14, 2000)])
def test_a_stretch_that_is_hard_for_the_unadapted_model_too_is_no_collapse(
    tmp_path: Path, ask: Ask, unadapted: list[int], collapsed_at: int | None
):
    """Where `source` ran over the same stream, its accuracy on the same images counts, not its mean over the cell."""
    record_source(tmp_path)
    record_segment(tmp_path, unadapted, experiment="source", method="source")
    record_segment(tmp_path, [450] * 4 + [100] * 10)

    assert [(collapsed_at,)] == ask("SELECT collapsed_at FROM stream_collapses WHERE experiment = 'tent'")


def test_images_of_other_shards_are_not_the_same_images(tmp_path: Path, ask: Ask):
    """Shards made again in another size have the same keys; `source` then counts by its mean over the cell."""
    record_segment(tmp_path, [200, 300], experiment="source", method="source", manifest_sha256="a" * 64)
    record_segment(tmp_path, [450, 50], experiment="dark", method="source", manifest_sha256="b" * 64)
    record_segment(tmp_path, [450, 450], manifest_sha256="a" * 64)
    record_segment(tmp_path, [450, 450], experiment="other", manifest_sha256="c" * 64)

    rows = ask("SELECT experiment, first_image, source_accuracy FROM progress_by(500) "
               "WHERE experiment IN ('tent', 'other') ORDER BY ALL")  # fmt: skip

    assert [("other", 0, 0.5), ("other", 500, 0.5), ("tent", 0, 0.4), ("tent", 500, 0.6)] == rows


def test_no_collapse_is_told_of_without_the_unadapted_model(tmp_path: Path, ask: Ask):
    """Nothing is then known of what it would have done."""
    record_segment(tmp_path, [0] * 20)

    assert [] == ask("FROM stream_collapses")


def test_a_late_prediction_is_worth_less(tmp_path: Path, ask: Ask):
    """At half the way to the threshold hyperbolic decay leaves two thirds, linear decay a half; at it, a half and 0."""
    record_segment(tmp_path, [500, 500, 500, 250], compute_s=[0.05, 0.15, 0.2, 0.3])

    (row,) = ask(
        "SELECT accuracy, in_time_share, deadline_utility, linear_utility, continuous_utility, timeliness, alignment "
        "FROM utility_in_time(0.1, 0.2)"
    )

    decayed = [1, 2 / 3, 1 / 2, 1 / 3]
    utility = (decayed[0] + decayed[1] + decayed[2] + decayed[3] / 2) / 4
    accuracy, timeliness = 1750 / 2000, sum(decayed) / 4
    assert pytest.approx(row) == (
        accuracy, 3 / 4, 3 / 4, (1 + 0.5) / 4, utility, timeliness, utility - accuracy * timeliness
    )  # fmt: skip


def test_the_report_draws_streams_and_marks_the_collapse(tmp_path: Path, ask_published: Ask):
    """A cross stands at the image where it begins, a tick at each reset; a short stream has a panel too."""
    record_source(tmp_path)
    record_segment(tmp_path, [400] * 8 + [100] * 12, resets=[0] * 4 + [1] + [0] * 15)
    record_segment(tmp_path, [400] * 4, stream="3")
    assert ask_published("FROM stream_collapses")
    with open_metrics(Locations(root=tmp_path).metrics) as database:
        table = query(database, fill_parameters(STREAM_PROGRESS, evaluation_facts()["benchmark"], "imagenet_c"))

    short, axis = progress_lines(table).axes

    assert [0, 1000, 2000] == list(short.lines[0].get_xdata())
    line, cross, tick = axis.lines
    assert list(range(0, 11_000, 1000)) == list(line.get_xdata())  # a step ends where the stream does
    assert ([4000], [0.2]) == (list(cross.get_xdata()), list(cross.get_ydata()))
    assert ([2000], [0.8]) == (list(tick.get_xdata()), list(tick.get_ydata()))
