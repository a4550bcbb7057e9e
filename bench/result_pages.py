"""Pages of results: docs/results/NAME.md, with its data in docs/results/NAME.csv and its pictures in docs/images.

A page is made from its data alone, so that the tests can make each committed page again from the committed data.
"""

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
RESULTS = DOCS / "results"

Row = Mapping[str, str]
"""A row of data by column, each figure as text with the digits that are known."""
_WIDTH, _UNBROKEN = 120, "\0%"


def write_data(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Sequence[Row]:
    """Write docs/results/NAME.csv, and return its rows."""
    (RESULTS / f"{name}.csv").write_text(csv_text(columns, rows))
    return read_data(name)


def read_data(name: str) -> Sequence[Row]:
    """Return the rows of docs/results/NAME.csv."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def write_page(name: str, text: str) -> None:
    """Write docs/results/NAME.md."""
    (RESULTS / f"{name}.md").write_text(text)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return *rows* as CSV, with the names of the *columns* first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = (headings, ["---"] * len(headings), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def command(line: str, *, needs: str) -> str:
    """Return a block with a command that the tests cannot run, since it needs *needs*."""
    return f"<!-- not run by the tests: it needs {needs} -->\n```sh\n{line}\n```"


def listed(names: Sequence[str]) -> str:
    """Return *names* as code, with commas and an "and"."""
    quoted = [f"`{name}`" for name in names]
    return " and ".join(filter(None, (", ".join(quoted[:-1]), *quoted[-1:])))


def filled(text: str) -> str:
    """Return *text*, Markdown, with its paragraphs and lists in lines of equal width."""
    return "\n\n".join(map(_filled_block, text.strip().split("\n\n"))) + "\n"


def _filled_block(block: str) -> str:
    if block.startswith(("|", "#", "<", "`", "!")) and not re.match(r"`[^`]", block):
        return block
    items = re.split(r"\n(?=- )", block)
    indent = "  " if block.startswith("- ") else ""
    return "\n".join(
        textwrap.fill(
            " ".join(each.split()).replace(" %", _UNBROKEN), _WIDTH, subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False,
        ).replace(_UNBROKEN, " %")
        for each in items
    )  # fmt: skip
