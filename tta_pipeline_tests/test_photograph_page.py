"""The page of the leaderboard on photographs says what its figures allow, and no more."""

import numpy as np

from bench.photograph_page import ALL, COLUMNS, SOME, data_rows, graded, make_rows, severity_rows
from bench.photographs import cost_minutes, reason_left_out
from tta_pipeline.report.significance.pairwise import WrongSamples
from tta_pipeline.shards.photographs import Numbered

CELLS = ("fog|5", "snow|5")
WRONG = np.arange(200) < 100


def cells(is_wrong: np.ndarray, names: tuple[str, ...] = CELLS) -> dict[str, WrongSamples]:
    """Return the same wrong samples on each cell."""
    return {
        name: WrongSamples(
            samples=name,
            photographs=Numbered(group=0, numbers=np.arange(len(is_wrong))),
            cell=name,
            seed=0,
            counts_in_mean=not name.startswith("clean"),
            is_wrong=is_wrong,
            predictions_sha256="",
            order_hash="1",
            batch_size=64,
        )
        for name in names
    }


def measured() -> dict[str, dict[str, WrongSamples]]:
    """Return a method that mends 40 of 100 errors, one that mends one, and one on a cell only."""
    return {
        "source": cells(WRONG, (*CELLS, "clean|0")),
        "norm": cells(np.arange(200) < 60),
        "tent": cells(np.arange(200) < 59),
        "sar": cells(WRONG, ("fog|5",)),
    }


def test_a_difference_by_chance_is_not_called_better():
    """Only a method that mends more than chance explains is better, and one without all cells has no row."""
    rows = {row.name: row for row in make_rows(measured(), CELLS)}
    assert set(rows) == {"source", "norm", "tent"}
    assert rows["norm"].verdict("source") == rows["tent"].verdict("source") == "better"
    assert rows["tent"].verdict("norm") == "alike"
    assert rows["source"].verdict("norm") == "worse"


def test_the_lowest_error_is_compared_with_all_others():
    """Those that cannot be told apart from the best are named, and so are those that are worse."""
    assert [("tent", "best"), ("norm", "alike"), ("source", "worse")] == [
        (row.name, row.against_best) for row in make_rows(measured(), CELLS)
    ]


def test_a_row_has_error_interval_and_differences():
    """Each difference to a reference has its interval and verdict; a cost that is not known is left out."""
    costs = {"tent": (0.1, 1.0, 0.0, 12.0)}
    tent, _, source = (
        dict(zip(COLUMNS, map(str, row), strict=True))
        for row in data_rows(SOME, 5, make_rows(measured(), CELLS), costs)
    )
    assert ("29.5", "23.5", "36.0") == tuple(tent[f"error_{each}"] for each in ("percent", "low", "high"))
    assert ("-20.5", "better", "alike", "best") == tuple(
        tent[each] for each in ("minus_source", "vs_source", "vs_norm", "vs_best")
    )
    assert ("10.0", "1.0", "0.0", "12") == tuple(tent.values())[-4:]
    assert ("", "", "+20.0", "worse") == tuple(
        source[each] for each in ("minus_source", "vs_source", "minus_norm", "vs_norm")
    )
    assert ("",) * 4 == tuple(source.values())[-4:]


def test_severities_are_compared_if_every_method_has_all_of_them():
    """A corruption that one method lacks at one severity is not graded, and then no mean is written."""
    milder = [f"{corruption}|{severity}" for corruption in ("fog", "snow") for severity in (1, 2, 3, 4)]
    wrong = {
        "norm": cells(WRONG), "norm_milder": cells(WRONG, milder),
        "tent": cells(WRONG), "tent_milder": cells(WRONG, milder[:-1]),
    }  # fmt: skip

    assert ["fog"] == graded(wrong, ["norm", "tent"], ["fog", "snow"])
    assert [] == list(severity_rows(wrong, ["norm", "tent"], ["fog", "snow"]))
    found = [row[:6] for row in severity_rows(wrong, ["norm", "tent"], ["fog"])]
    assert [(ALL, severity, name, "50.0", "43.0", "57.0") for name in ("norm", "tent") for severity in range(1, 5)] == (
        found
    )


def test_what_a_method_needs_is_said():
    """A method that needs another model, or images of every class, is left out with the reason."""
    assert reason_left_out("foa") == "it needs a ViT"
    assert "all 1,000 classes" in reason_left_out("petta")
    assert reason_left_out("tent") == ""
    assert cost_minutes(0.06, 2) == 1.0
