"""Tables say the same in every form."""

import pytest

from tta_pipeline.reports.formats import as_csv, as_json, as_latex, as_terminal
from tta_pipeline.reports.tables import Table, as_html, as_markdown, best_cells, without_obvious

TABLE = Table(
    columns=("benchmark", "experiment", "num_cells", "mean_error", "images_per_s"),
    rows=(
        ("a", "x_1", 75, 0.25, 1000.0),
        ("a", "y & z", 75, 0.5, 2000.0),
        ("a", "unfinished", 3, 0.1, 9000.0),
        ("b", "<b>", 75, None, 3000.0),
    ),
)


def test_only_what_compares_has_a_best():
    """The row of three cells and the other benchmark are alone, so nothing of them is the best."""
    assert {(0, "mean_error"), (1, "images_per_s")} == best_cells(TABLE)


def test_equal_values_are_all_the_best():
    """None of two that are the same is preferred."""
    table = Table(columns=("mean_error",), rows=((0.5,), (0.5,), (None,)))

    assert {(0, "mean_error"), (1, "mean_error")} == best_cells(table)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (as_latex, [r"x\_1", r"y \& z", r"\textbf{25.0\%}", r"\textbf{2,000}", "llrrr"]),
        (as_markdown, ["x_1", "**25.0%**", "&lt;b&gt;", "**2,000**"]),
        (as_html, ["&lt;b&gt;", '<td class="best">25.0%</td>']),
        (as_terminal, ["mean error", "25.0%", "<b>", "-"]),
        (as_csv, ["0.25", "y & z", "b,<b>,75,,3000.0"]),
        (as_json, ['"mean_error": null', '"experiment": "<b>"']),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_form_has_the_values_as_its_readers_need_them(shown, expected: list[str]):
    """Escaped where it must be, with the best in bold for people, and whole numbers for programs."""
    text = str(shown(TABLE))

    assert [] == [part for part in expected if part not in text]


def test_a_narrow_terminal_breaks_headings_and_nothing_else():
    """Words of headings stand one over another; names and numbers stay whole, the best in bold."""
    wide, narrow = as_terminal(TABLE, width=200), as_terminal(TABLE, width=40)

    assert "mean error" in wide
    assert "mean error" not in narrow
    assert "\x1b[1m" in narrow
    assert "unfinished" in narrow
    assert "…" not in narrow


def test_numbers_that_are_none_are_null():
    """JSON has no word for them."""
    assert "NaN" not in as_json(Table(columns=("x",), rows=((float("nan"),), (float("inf"),))))


def test_what_goes_without_saying_is_left_out():
    """Empty columns and those that hold the usual; a table without rows keeps its heading."""
    table = Table(columns=("subset", "num_runs", "mce", "x"), rows=(("all", 1, None, 0),))

    assert ("x",) == without_obvious(table).columns
    assert ((0,),) == without_obvious(table).rows
    assert ("subset",) == without_obvious(Table(columns=("subset",), rows=())).columns
    assert ("subset",) == without_obvious(Table(columns=("subset",), rows=(("all",), ("first 5",)))).columns
