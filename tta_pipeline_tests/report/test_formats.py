"""Tables say the same in every form."""

import csv
import decimal
import io
import json

import pytest

from tta_pipeline.report.formats import as_csv, as_json, as_latex, as_terminal
from tta_pipeline.report.tables import Table, as_html, as_markdown, best_cells, drop_obvious_columns

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


def _as_html(table: Table) -> str:
    return as_html(table, name="board", caption="A & B")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (as_latex, [r"x\_1", r"y \& z", r"\textbf{25.0\%}", r"\textbf{2,000}", "llrrr"]),
        (as_markdown, ["x_1", "**25.0%**", "&lt;b&gt;", "**2,000**"]),
        (_as_html, ["&lt;b&gt;", '<td class="best" data-v="0.25">25.0%</td>', "<caption>A &amp; B"]),
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
    """JSON has no word for them, nor for keys that are no text."""
    values = ((float("nan"),), (float("inf"),), ([float("nan")],), ({(1,): float("nan")},))

    found = json.loads(as_json(Table(columns=("x",), rows=values)))

    assert [None, None, [None], {"(1,)": None}] == [row["x"] for row in found]
    assert [] == json.loads(as_json(Table(columns=("x",), rows=())))


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_text_in_a_csv_file_is_a_formula(begin: str):
    """A spreadsheet would compute it; headings are text too."""
    text = f"{begin}HYPERLINK(A1)"
    table = Table(columns=(text,), rows=((text,),))

    assert [[f"'{text}"], [f"'{text}"]] == list(csv.reader(io.StringIO(as_csv(table), newline="")))


def test_numbers_in_a_csv_file_stay_numbers():
    """Negative ones begin like a formula and are none."""
    values = (-0.5, -3, decimal.Decimal("-1.50"), None, True, "a=b")

    assert "-0.5,-3,-1.50,,True,a=b" == as_csv(Table(columns=tuple("abcdef"), rows=(values,))).splitlines()[1]


def test_what_goes_without_saying_is_left_out():
    """Empty columns and those that hold the usual; a table without rows keeps its heading."""
    table = Table(columns=("subset", "num_runs", "mce", "x"), rows=(("all", 1, None, 0),))

    assert ("x",) == drop_obvious_columns(table).columns
    assert ((0,),) == drop_obvious_columns(table).rows
    assert ("subset",) == drop_obvious_columns(Table(columns=("subset",), rows=())).columns
    assert ("subset",) == drop_obvious_columns(Table(columns=("subset",), rows=(("all",), ("first 5",)))).columns
