"""What is known of a method stands in its entry; documents agree with it."""

import re
from pathlib import Path

import pytest

from tta_pipeline.methods import METHODS

LINES = (Path(__file__).parents[2] / "docs" / "methods.md").read_text().splitlines()
CELLS = [[cell.strip(" |`") for cell in line.split(" | ")] for line in LINES]
ROWS = {row[0]: row for row in CELLS if len(row) == 9 and row[0] in METHODS}


def most_passes(cell: str) -> int:
    """Return the most passes that *cell* of the table says, such as `1 + kept` or `34, 3 where the source is sure`."""
    most = re.split(r",| if ", cell)[0]
    return sum(int(part) if part.strip().isdigit() else 1 for part in most.split("+"))


def test_the_table_has_each_method_in_order():
    """As the catalogue has them."""
    assert [*METHODS] == [*ROWS]


@pytest.mark.parametrize("method", METHODS)
def test_the_table_says_what_the_entry_says(method: str):
    """Passes, of which a backward one counts as two, the smallest batch, and the paper."""
    entry, row = METHODS[method], ROWS[method]

    assert entry.passes == most_passes(row[-2]) + 2 * most_passes(row[-1])
    assert str(entry.min_batch_size) == row[6]
    if entry.paper:
        author = re.sub(r"\W", "", entry.paper.authors.replace('\\"o', "oe").split(",")[0].split(" and ")[0])
        assert f"{author} {entry.paper.year}, {entry.paper.venue}" in row[1]
