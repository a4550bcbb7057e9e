"""Tables say the same in every form."""

import decimal
import io
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tta_pipeline.cli.table_output import Form, choose_columns
from tta_pipeline.report.formats import as_csv, as_latex, as_terminal, drop_overflow, write_json
from tta_pipeline.report.tables import (
    Table,
    WithSpread,
    as_html,
    as_html_text,
    as_markdown,
    best_cells,
    drop_obvious_columns,
    fold_constant_columns,
    format_value,
    has_marks,
    mark_rows,
    shorten,
)

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


@pytest.mark.parametrize("column", ["protocol", "shift_group", "datasets", "stream"])
def test_only_rows_of_one_kind_compete(column: str):
    """One protocol, one group of datasets, the same sets of the group, one stream."""
    assert not best_cells(Table(columns=(column, "mean_error"), rows=(("x", 0.25), ("y", 0.5))))


def test_equal_values_are_all_the_best():
    """None of two that are the same is preferred."""
    table = Table(columns=("mean_error",), rows=((0.5,), (0.5,), (None,)))

    assert {(0, "mean_error"), (1, "mean_error")} == best_cells(table)


def test_values_that_read_the_same_are_equally_good():
    """Readers of a rounded table would not know why only one of two equal figures is bold."""
    table = Table(columns=("mean_error", "ms_per_image"), rows=((0.98611, 2.0), (0.98614, 1.0)))

    assert {(0, "mean_error"), (1, "mean_error"), (1, "ms_per_image")} == best_cells(table)


LOADED = Table(
    columns=("experiment", "mean_error", "ms_per_image", "under_load"),
    rows=(("x", 0.25, 0.85, True), ("y", 0.5, 7.66, False), ("z", 0.5, 8.5, False)),
)


@pytest.mark.parametrize(
    ("shown", "marked", "best"),
    [
        (as_latex, "0.850*", r"\textbf{7.66}"),
        (as_markdown, "0.850*", "**7.66**"),
        (as_terminal, "0.850*", "7.66"),
        (
            lambda table: as_html(table, name="board", caption="A"),
            '<td data-v="0.85">0.850*</td>',
            '"best" data-v="7.66"',
        ),
    ],
)
def test_a_time_under_load_is_marked_and_never_the_best(shown, marked: str, best: str):
    """A method would seem fast or slow by what else ran on the machine."""
    table = mark_rows(LOADED)
    text = str(shown(table))

    assert marked in text
    assert best in text
    assert "under_load" not in table.columns
    assert has_marks(table)
    assert not has_marks(mark_rows(replace(LOADED, rows=LOADED.rows[1:])))


def test_a_command_in_a_sentence_of_a_page_is_code():
    """Pages know no backquotes; names in the command stay escaped."""
    assert "run <code>tta-pipeline run &lt;b&gt;</code>." == as_html_text("run `tta-pipeline run <b>`.")


def _as_json(table: Table) -> str:
    file = io.StringIO()
    write_json(table.columns, table.rows, file)
    return file.getvalue()


def _as_html(table: Table) -> str:
    return as_html(table, name="board", caption="A & B", grouped_by="benchmark")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (as_latex, ["x 1 &", r"y \& z", r"Error (\%)", r"\textbf{25.0} &", r"\textbf{2,000}", "llrrr"]),
        (as_markdown, ["x_1", "**25.0%**", "&lt;b&gt;", "**2,000**"]),
        (
            _as_html,
            [
                "&lt;b&gt;",
                '<td class="best" data-v="0.25">25.0%</td>',
                "<caption>A &amp; B",
                'colspan="4">benchmark b</th>',
                '<th scope="row" class="text">x_1</th>',
            ],
        ),
        (as_terminal, ["cells", "25.0%", "<b>", "-"]),
        (as_csv, ["0.25", "y & z", "b,<b>,75,,3000.0"]),
        (_as_json, ['"mean_error": null', '"experiment": "<b>"']),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_form_has_the_values_as_its_readers_need_them(shown, expected: list[str]):
    """Escaped where it must be, with the best in bold for people, and whole numbers for programs."""
    text = str(shown(TABLE))

    assert [] == [part for part in expected if part not in text]


def test_a_narrow_terminal_breaks_headings_and_nothing_else():
    """Words of headings stand one over another; names and numbers stay whole, the best in bold."""
    table = replace(TABLE, columns=(*TABLE.columns[:3], "mean_error_at_5", TABLE.columns[4]))
    wide, narrow = (as_terminal(table, width=width, is_styled=True) for width in (200, 50))

    assert "images/s" in wide
    assert "error (severity 5)" in wide
    assert "error (severity 5)" not in narrow
    assert "\x1b[1m" in narrow
    assert "unfinished" in narrow
    assert "…" not in narrow
    assert "\x1b" not in as_terminal(TABLE, width=50)


def test_a_name_in_a_heading_stays_whole():
    """The columns of a comparison have the names of experiments, which a narrow terminal does not take apart."""
    table = Table(columns=("tent_seeds error", "tent_seeds gain"), rows=((0.25, 0.125),))

    heading, words, row = as_terminal(table, width=20).splitlines()
    assert (["tent_seeds", "tent_seeds"], ["error", "gain"]) == (heading.split(), words.split())
    assert ["25.0%", "+12.5%"] == row.split()


def test_columns_without_room_are_left_out_and_named():
    """The last ones; what is left fits, and the first column and the error always stay."""
    shown, left_out = drop_overflow(TABLE, 36)

    assert ("images_per_s",) == left_out
    assert max(map(len, as_terminal(shown, width=36).splitlines())) <= 36
    assert ("benchmark", "mean_error") == drop_overflow(TABLE, 1)[0].columns


def test_rows_are_judged_before_columns_are_left_out():
    """A mean over fewer cells is never the best, even if a narrow terminal does not show the number of cells."""
    form = Form(name="table", is_wide=False, width=30, is_styled=True)
    shown = choose_columns(TABLE, form, TABLE.columns)

    assert "num_cells" not in shown.columns
    assert (0, "mean_error") in best_cells(shown)
    assert (2, "mean_error") not in best_cells(shown)


def test_an_interval_stands_behind_its_value():
    """As the standard deviation does, in one column, and the best is found; a row without any has its value alone."""
    columns = ("benchmark", "experiment", "mean_error", "error_low", "error_high", "sd_error")
    rows = (
        ("a", "x", 0.25, 0.2, 0.3, 0.004), ("a", "y", 0.5, None, None, 0.01), ("a", "z", 0.75, None, None, None),
        ("a", "unfinished", None, None, None, None),
    )  # fmt: skip
    shown = shorten(Table(columns=columns, rows=rows), ("benchmark", "experiment", "mean_error", "missing"))

    assert ("experiment", "mean_error") == shown.columns
    texts = [format_value("mean_error", each) for each in shown.column("mean_error")]
    assert ["25.0 ± 0.4% [20.0, 30.0]", "50.0 ± 1.0%", "75.0%", "-"] == texts
    assert {(0, "mean_error")} == best_cells(shown)
    assert r"x & \textbf{25.0 $\pm$ 0.4} {\footnotesize [20.0, 30.0]} \\" in as_latex(shown)


@pytest.mark.skipif(not shutil.which("kpsewhich"), reason="no LaTeX is installed")
def test_latex_compiles(tmp_path: Path):
    """A paper that has booktabs takes the table as it is."""
    if subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True, check=False).returncode:
        pytest.skip("this LaTeX has no booktabs")
    table = Table(
        columns=("experiment", "mean_error"),
        rows=(("tent_hot", WithSpread(0.25, sd=0.01, ends=(0.2, 0.3))), ("&%", 0.5)),
    )
    document = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + as_latex(
        table, leading={0}, notes=["5 %"]
    )
    (tmp_path / "paper.tex").write_text(document + r"\end{document}")

    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout


def test_numbers_that_are_none_are_null():
    """JSON has no word for them, nor for keys that are no text."""
    values = ((float("nan"),), (float("inf"),), ([float("nan")],), ({(1,): float("nan")},))

    found = json.loads(_as_json(Table(columns=("x",), rows=values)))

    assert [None, None, [None], {"(1,)": None}] == [row["x"] for row in found]
    assert [] == json.loads(_as_json(Table(columns=("x",), rows=())))


def test_numbers_in_a_csv_file_stay_numbers():
    """In full, and what is missing is empty."""
    values = (-0.5, -3, decimal.Decimal("-1.50"), None, True, "a=b")

    assert "-0.5,-3,-1.50,,True,a=b" == as_csv(Table(columns=tuple("abcdef"), rows=(values,))).splitlines()[1]


def test_what_goes_without_saying_is_left_out():
    """Empty columns and those that hold the usual; a table without rows keeps its heading."""
    table = Table(columns=("subset", "num_runs", "mce", "x"), rows=(("all", 1, None, 0),))

    assert ("x",) == drop_obvious_columns(table).columns
    assert ((0,),) == drop_obvious_columns(table).rows
    assert ("subset",) == drop_obvious_columns(Table(columns=("subset",), rows=())).columns
    assert ("subset",) == drop_obvious_columns(Table(columns=("subset",), rows=(("all",), ("first 5",)))).columns


def test_what_all_rows_say_is_said_once():
    """In a sentence, with the words of the headings; equal errors are results and stay, and one row is not several."""
    columns = ("experiment", "mean_error", "num_cells", "protocol", "hyperparameters")
    rows = (("x", 0.5, 75, "mixed", "lr 1"), ("y", 0.5, 75, "mixed", None))
    table = Table(columns=columns, rows=rows)

    shown, same = fold_constant_columns(table)

    assert ("experiment", "mean_error", "hyperparameters") == shown.columns
    assert ("y", 0.5, None) == shown.rows[1]
    assert same == "The same in all rows: cells 75, protocol mixed."
    assert same in as_html(table, name="board", caption="Board")
    alone = Table(columns=columns, rows=rows[:1])
    assert (alone, "") == fold_constant_columns(alone)
