"""Which room of the package may import which, and that the picture of it is the code's."""

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
import make_architecture  # noqa: E402

BELOW = {
    "adaptation": (),
    "corruptions": (),
    "labels": (),
    "records": (),
    "benchmarks": ("adaptation",),
    "sources": ("benchmarks", "corruptions", "labels"),
    "shards": ("benchmarks", "labels", "sources"),
    "streaming": ("shards",),
    "training": ("benchmarks", "shards", "streaming"),
    "evaluation": ("adaptation", "benchmarks", "labels", "sources", "shards", "streaming", "training", "records"),
    "metrics": ("records",),
    "reports": ("benchmarks", "shards", "streaming", "evaluation", "records", "metrics"),
    "loader_bench": ("benchmarks", "shards", "streaming"),
    "new_benchmark": ("adaptation", "benchmarks", "sources", "shards"),
    "doctor": ("benchmarks", "labels", "sources", "shards", "evaluation", "records", "metrics"),
    "resources": ("evaluation", "records", "metrics"),
    "assets": (
        "benchmarks", "labels", "sources", "shards", "training", "evaluation", "records", "metrics", "reports",
        "loader_bench", "resources",
    ),
    "cli": (
        "adaptation", "benchmarks", "labels", "sources", "shards", "streaming", "evaluation", "records", "metrics",
        "reports", "loader_bench", "new_benchmark", "doctor",
    ),
}  # fmt: skip
"""What each room may import."""


@pytest.mark.parametrize("room", make_architecture.rooms())
def test_a_room_imports_only_rooms_below_it(room: str):
    """Every room is in the table above."""
    assert make_architecture.edges()[room] <= set(BELOW[room])


def test_no_two_rooms_know_each_other():
    """Nor does a longer way lead from a room back to it: the table has an order in which each comes after its own."""
    done = set[str]()
    while left := set(BELOW) - done:
        ready = {room for room in left if set(BELOW[room]) <= done}
        assert ready, f"{sorted(left)} need each other"
        done |= ready


def test_only_the_dagster_layer_imports_dagster():
    """`definitions.py`, `assets/` and `resources/`."""
    package = make_architecture.PACKAGE
    imported = re.compile(r"^\s*(import|from) dagster\b", re.MULTILINE)
    found = {path.relative_to(package) for path in package.rglob("*.py") if imported.search(path.read_text())}

    assert found
    assert {"definitions.py", "assets", "resources"} >= {path.parts[0] for path in found}


def test_the_picture_is_that_of_the_code():
    """Made by `docs/make_architecture.py`."""
    text = make_architecture.PAGE.read_text()

    assert text == make_architecture.page(text)
