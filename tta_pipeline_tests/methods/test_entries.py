"""The entries of the methods agree with the methods, and the documents name only methods that exist."""

import re
from pathlib import Path

import pytest
from torch import nn

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import METHODS, build
from tta_pipeline_tests.methods.models import NUM_CLASSES, source_batches

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "methods.md").read_text()
BY_HAND = (
    *re.findall(r"^\| (.*?) \|", (DOCS / "reference" / "method-differences.md").read_text(), re.MULTILINE),
    *re.findall(r"^\| (.*?) \|", PAGE.split("## Published errors")[1], re.MULTILINE),
)
"""First cells of the tables that are written by hand."""


def test_the_page_has_a_section_for_each_method_in_order():
    """As the catalogue has them."""
    assert [*METHODS] == re.findall("^### (.*)", PAGE, re.MULTILINE)


@pytest.mark.parametrize("method", METHODS)
def test_the_section_has_the_facts_of_the_entry(method: str):
    """The paper with its year and place, the smallest batch, and the code that it was compared with."""
    entry = METHODS[method]
    section = PAGE.split(f"### {method}\n")[1].split("\n#")[0]

    assert entry.summary in section
    if entry.paper:
        author = re.sub(r"\W", "", entry.paper.authors.replace('\\"o', "ö").split(",")[0].split(" and ")[0])
        assert author in section
        assert f"{entry.paper.venue} {entry.paper.year}" in section
        assert f"written from {entry.written_from}; checked against " in section
        assert "against nothing" not in section
    if entry.min_batch_size > 1:
        assert f"batches of at least {entry.min_batch_size}" in section
    assert ("source data" in section) == (entry.source_data == "required")


def test_the_tables_by_hand_name_methods():
    """Each name in the first cell of a row, and each method with a difference that parity knows."""
    named = {name for cell in BY_HAND for name in re.findall("`([a-z0-9_]+)`", cell)}

    assert named - {"loss", "symmetric"} <= {*METHODS}
    assert {"sar", "foa", "roid", "rmt", "oga"} <= named


@pytest.mark.parametrize("method", METHODS)
def test_passes_contain_the_backward_ones_twice(method: str):
    """At least one forward pass is left; a method that goes backward adapts something."""
    entry = METHODS[method]

    assert entry.passes - 2 * entry.backwards >= 1
    assert entry.adapts or not entry.backwards


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if entry.layers and entry.needs == "any"])
def test_a_network_without_the_layers_is_refused(method: str):
    """A convolution as classifier is no linear head, and a network without norm layers adapts none."""
    network = nn.Sequential(nn.Conv2d(3, NUM_CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    with pytest.raises(AdaptationError, match=r"\bnorm layer|\bbatch norm\b|\blinear layer\b"):
        build(method, network, num_classes=NUM_CLASSES, preset="cifar", source_data=source_batches())


GUIDE = (DOCS / "guides" / "choose-a-method.md").read_text()


def test_the_guide_has_the_passes_of_the_entries():
    """Each row names a method, with its forward and backward passes, and says if it reads source data."""
    rows = re.findall(r"^\| \w[^|]* \| [^|]+ \| (\w+) \| `(\w+)` \| (\d+) \+ (\d+) \|", GUIDE, re.MULTILINE)

    assert len(rows) >= 15
    for source_data, method, forwards, backwards in rows:
        entry = METHODS[method]
        assert (entry.passes - 2 * entry.backwards, entry.backwards) == (int(forwards), int(backwards)), method
        assert (source_data != "no") == (entry.source_data == "required"), method
