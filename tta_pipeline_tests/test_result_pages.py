"""Pages of results are made by their programs from the data beside them, and their links and pictures exist."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench import clip_table, leaderboard, long_stream, open_set, photograph_page, tuning_criteria
from bench.result_pages import IMAGES, RESULTS, Row, csv_text, filled, listed, read_data, table

HELD_OUT = ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
PAGES: dict[str, Callable[[Sequence[Row], str], str]] = {
    "cifar": lambda rows, version: leaderboard.page(leaderboard.BOARDS["resnet"], rows, version),
    "transformers": lambda rows, version: leaderboard.page(leaderboard.BOARDS["vit"], rows, version),
    "photographs": photograph_page.page,
    "clip": clip_table.page,
    "open-set": open_set.page,
    "long-streams": long_stream.page,
    "tuning-criteria": lambda rows, _: tuning_criteria.page(rows, read_data("tuning-criteria-rates"), HELD_OUT),
}
COLUMNS = {
    "cifar": leaderboard.COLUMNS,
    "transformers": leaderboard.COLUMNS,
    "photographs": photograph_page.COLUMNS,
    "clip": clip_table.COLUMNS,
    "open-set": open_set.COLUMNS,
    "long-streams": long_stream.COLUMNS,
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

    assert 9 == len(findings), "a tenth is of digits, whose page is elsewhere"
    for finding, name in findings:
        page = (RESULTS / f"{name}.md").read_text()
        assert all(figure in page for figure in re.findall(r"(?<![\w-])\d[\d.,]*\d|\d+(?= %)", finding)), finding


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
