"""Pages of results are made by their programs from the data beside them, and their links and pictures exist."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from bench import (
    clip_table,
    leaderboard,
    long_stream,
    open_set,
    photograph_page,
    sample_budgets,
    seeds,
    tuning_criteria,
)
from bench.result_pages import IMAGES, RESULTS, Row, csv_text, filled, listed, read_data, table
from tta_pipeline.report.tables import Table
from tta_pipeline_tests.extras.tuning.tuned import choice, trial

HELD_OUT = ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
PAGES: dict[str, Callable[[Sequence[Row], str], str]] = {
    "cifar": lambda rows, version: leaderboard.page(leaderboard.BOARDS["resnet"], rows, version),
    "transformers": lambda rows, version: leaderboard.page(leaderboard.BOARDS["vit"], rows, version),
    "photographs": photograph_page.page,
    "clip": clip_table.page,
    "open-set": open_set.page,
    "long-streams": long_stream.page,
    "seeds": seeds.page,
    "sample_budgets": sample_budgets.page,
    "tuning-criteria": lambda rows, _: tuning_criteria.page(rows, read_data("tuning-criteria-rates"), HELD_OUT),
}
COLUMNS = {
    "cifar": leaderboard.COLUMNS,
    "transformers": leaderboard.COLUMNS,
    "photographs": photograph_page.COLUMNS,
    "clip": clip_table.COLUMNS,
    "open-set": open_set.COLUMNS,
    "long-streams": long_stream.COLUMNS,
    "seeds": seeds.COLUMNS,
    "sample_budgets": sample_budgets.COLUMNS,
    "tuning-criteria": tuning_criteria.COLUMNS,
    "tuning-criteria-rates": tuning_criteria.COLUMNS_OF_RATES,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_committed_page_is_what_its_program_writes_from_the_committed_data(name: str):
    """Who changes a text or a figure by hand must change the program or the data."""
    committed = (RESULTS / f"{name}.md").read_text()
    (version,) = re.findall(r"Measured with torch ([\w.+]+)\.", " ".join(committed.split())) or [""]

    assert committed == PAGES[name](read_data(name), version)


@pytest.mark.parametrize("name", COLUMNS)
def test_committed_data_have_the_columns_of_the_program(name: str):
    """Nothing is read under another name."""
    assert list(COLUMNS[name]) == list(read_data(name)[0])


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda path: path.name)
def test_data_and_pictures_of_a_page_are_there(page: Path):
    """A page names only files that exist next to it or among the pictures."""
    text = page.read_text()
    assert all((RESULTS / name).exists() for name in re.findall(r"\]\(([\w-]+\.csv)\)", text))
    assert all((IMAGES / name).exists() for name in re.findall(r"\]\(\.\./images/([\w/-]+\.png)\)", text))


def test_each_figure_of_a_finding_is_on_its_page():
    """The summary says nothing that a page does not show."""
    findings = re.findall(
        r"^\| \d+ \| (.+) \| .+ \| \[.+\]\(([\w-]+)\.md\) \|$", (RESULTS / "index.md").read_text(), re.MULTILINE
    )

    assert 11 == len(findings), "another is of digits, whose page is elsewhere"
    for finding, name in findings:
        page = (RESULTS / f"{name}.md").read_text()
        assert all(figure in page for figure in re.findall(r"(?<![\w-])\d[\d.,]*\d|\d+(?= %)", finding)), finding


def named(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Return *rows* of data by column."""
    return [dict(zip(columns, row, strict=True)) for row in rows]


def test_a_leaderboard_has_a_row_for_each_method():
    """Few images and missing seeds are seen in it, and so is a shorter warm-up."""
    columns = ("experiment", "subset", "mean_error", "sd_error", "mean_ece", "forwards_per_sample",
               "backwards_per_sample", "ms_per_image")  # fmt: skip
    rows = (("rmt", "all", 0.358, 0.0016, 0.297, 4, 3, 12.3), ("memo", "first 100", 0.5, None, 0.4, 33, 32, 100))
    rmt, memo = named(leaderboard.COLUMNS, leaderboard.data_rows(Table(columns=columns, rows=rows)))

    assert ("rmt", 1000, "35.8", "0.16", "12.30") == tuple(
        rmt[each] for each in ("method", "images_per_cell", "error_percent", "sd_over_seeds", "ms_per_image")
    )
    assert "2,000" in str(rmt["note"])
    assert (100, "", "") == tuple(memo[each] for each in ("images_per_cell", "sd_over_seeds", "note"))


def test_open_streams_have_their_change_in_points():
    """A change has its sign, and each row the number of unknown photographs."""
    columns = ("closed_experiment", "closed_error", "error", "error_change", "auroc", "fpr95", "aupr", "h_score")
    found = Table(columns=columns, rows=(("tent", 0.348, 0.34, -0.008, 0.6734, 0.9, 0.8, 0.3),))
    (row,) = named(open_set.COLUMNS, open_set.data_rows(found, 372))

    assert ["tent", "34.8", "34.0", "-0.8", "0.673", "0.900", "0.800", "0.300", 372] == list(row.values())


def test_long_streams_have_collapse_and_memory():
    """A stream without a collapse leaves it empty, and memory is that of the recurring stream."""
    columns = ("experiment", "num_images", "error", "collapsed_at", "error_after", "first_gib", "half_way_gib",
               "last_gib")  # fmt: skip
    found = {
        "long_stream": Table(columns=columns, rows=(("tent", 100_000, 0.346, None, None, 1.27, 1.31, 1.31),)),
        "slow_stream": Table(columns=columns, rows=(("tent", 100_000, 0.654, 25_000, 0.731, 1.0, 1.0, 1.0),)),
    }
    recurring, slow = (list(row) for row in long_stream.data_rows(found))

    assert ["recurring", "tent", 100_000, "34.6", "", "", "1.27", "1.31", "1.31"] == recurring
    assert ["slow", "tent", 100_000, "65.4", 25_000, "73.1", "", "", ""] == slow


def test_methods_for_clip_are_ordered_by_their_mean_error():
    """Each group has its interval, and the change is against the model without adaptation."""
    columns = ("experiment", "shift_group", "mean_error", "error_low", "error_high", "ms_per_image",
               "forwards_per_sample")  # fmt: skip
    rows = tuple(
        (name, group, error, error - 0.05, error + 0.05, 2.0, 1)
        for name, error in (("zero_shot", 0.4), ("tda", 0.37))
        for group in ("natural", "fine_grained", "corruption")
    )
    tda, plain = named(clip_table.COLUMNS, clip_table.data_rows(Table(columns=columns, rows=rows)))

    assert ("tda", "37.0", "32.0", "42.0", "37.0", "-3.0", "2.0", "1") == tuple(
        tda[each]
        for each in ("method", "natural", "natural_low", "natural_high", "mean", "minus_zero_shot", "ms_per_image",
                     "forwards")
    )  # fmt: skip
    assert ("zero_shot", "+0.0") == (plain["method"], plain["minus_zero_shot"])


def test_criteria_have_the_gap_and_rate_of_each_method():
    """The labels of held-out corruptions choose 0.1 here, 10 points above the best rate; of low rates, the best."""
    rates = tuning_criteria.RATES
    seen = [trial(f'{{"lr": {rate}}}', {"spatter|5": 0.5 - rate}) for rate in rates]
    reported = tuple(trial(f'{{"lr": {rate}}}', {"contrast|5": 0.4 if rate > 0.01 else 0.3}) for rate in rates)
    run = choice(*seen, reported_trials=reported, num_combinations=len(rates))
    runs = dict.fromkeys(tuning_criteria.METHODS, run)
    (labels,) = [
        row for row in named(tuning_criteria.COLUMNS, tuning_criteria.data_rows(runs)) if row["criterion"] == "labels"
    ]

    assert ("held-out", "10.0", "0.1", "10.0", "0.0") == tuple(
        labels[each] for each in ("images", "sar_gap", "sar_lr", "mean_gap", "mean_gap_low_rates")
    )
    assert ("deyo", "0.1", "40.0") == list(tuning_criteria.rate_rows(runs))[-1]


def test_text_is_filled_and_the_rest_stays():
    """Lines of tables, headings and blocks stay as they are, and a percentage is not torn apart."""
    long = "word " * 30
    block = "<!-- not run by the tests: it needs a GPU -->\n```sh\nmake\n```"
    text = filled(f"# {long}\n\n{long}1 %\n\n- {long}\n- b\n  c\n\n{table(('a', 'b'), [['1', long]])}\n\n{block}")

    assert text.startswith(f"# {long}\n\nword")
    assert max(map(len, text.split("\n\n")[1].splitlines())) <= 120
    assert "word 1 %\n\n- word" in text
    assert "\n  word" in text
    assert "\n- b c\n\n| a | b |\n| --- | --- |\n| 1 | word" in text
    assert text.endswith(f"{block}\n")


def test_data_are_csv():
    """Commas are quoted, and names are listed as code."""
    assert 'a,b\n1,"2, 3"\n' == csv_text(("a", "b"), [(1, "2, 3")])
    assert "`a`, `b` and `c`" == listed(["a", "b", "c"])
    assert "`a`" == listed(["a"])
