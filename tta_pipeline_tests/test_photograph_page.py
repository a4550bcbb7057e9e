"""The page of the leaderboard on photographs says what its figures allow, and no more."""

import numpy as np

from bench.photograph_page import graded, make_rows, sentences, severities, table
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


def test_the_sentences_follow_the_verdicts():
    """The best method is named with those that cannot be told apart from it."""
    against_source, against_norm, best = sentences(make_rows(measured(), CELLS), measured(), CELLS, "here")
    assert "`tent`, `norm` are better than `source` by more than chance" in against_source
    assert against_norm == "- On these photographs here, `tent` is not to be told apart from `norm`."
    assert best == "- `tent` has the lowest error here; `norm` cannot be told apart from it."


def test_a_row_has_error_interval_and_differences():
    """Differences that are more than chance are bold, and clean errors are there where clean images were evaluated."""
    costs = dict.fromkeys(("source", "norm", "tent"), (0.1, 1.0, 0.0, 12.0))
    lines = list(table(make_rows(measured(), CELLS), costs))
    assert lines[2].startswith("| tent | 29.5 % | 23.5 to 36.0 |  | **-20.5 (")
    assert "| source | 50.0 % |" in lines[-1]
    assert "| 50.0 % |  | **+20.0 (" in lines[-1]
    assert lines[-1].endswith("| 10.0 % | 1.0 | 0.0 | 12 |")


def test_severities_are_compared_over_the_corruptions_that_every_method_has_at_all_of_them():
    """A corruption that one method lacks at one severity is in no mean."""
    milder = [f"{corruption}|{severity}" for corruption in ("fog", "snow") for severity in (1, 2, 3, 4)]
    wrong = {
        "norm": cells(WRONG), "norm_milder": cells(WRONG, milder),
        "tent": cells(WRONG), "tent_milder": cells(WRONG, milder[:-1]),
    }  # fmt: skip

    assert ["fog"] == graded(wrong, ["norm", "tent"], ["fog", "snow"])
    assert list(severities(wrong, ["norm"], ["fog"]))[-1] == f"| norm |{' 50.0 % (43.0 to 57.0) |' * 5}"


def test_what_a_method_needs_is_said():
    """A method that needs another model, or images of every class, is left out with the reason."""
    assert reason_left_out("foa") == "it needs a ViT"
    assert "all 1,000 classes" in reason_left_out("petta")
    assert reason_left_out("tent") == ""
    assert cost_minutes(0.06, 2) == 1.0
