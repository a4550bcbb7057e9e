"""Partition keys reach our code unchecked, so parsing them is the border."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.domain.cells import grid_of_cells, parse_key
from tta_pipeline.errors import PartitionKeyError
from tta_pipeline_tests.imagenet_c import COMMON_CORRUPTIONS, SEVERITIES

CELLS = grid_of_cells(COMMON_CORRUPTIONS, SEVERITIES)


def test_there_are_75_cells_in_canonical_order():
    """The 15 corruptions come in the order in which papers stream them, each with severities 1 to 5."""
    assert 75 == len(CELLS)
    assert ["gaussian_noise|1", "gaussian_noise|2"] == [cell.key for cell in CELLS[:2]]
    assert "jpeg_compression|5" == CELLS[-1].key


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.key)
def test_a_key_names_its_cell(cell):
    """Every cell is found again by its key."""
    assert cell is parse_key(cell.key, CELLS)


@pytest.mark.parametrize("key", ["../../x|1", "fog|6", "5|fog", "fog", "fog|5|1", " fog|5", "fog|05", ""])
def test_a_foreign_key_is_refused_with_the_choices(key: str):
    """The error names what was found, some of the corruptions, and every severity there is."""
    with pytest.raises(PartitionKeyError) as caught:
        parse_key(key, CELLS)

    assert repr(key) in str(caught.value)
    assert "15 names" in str(caught.value)
    assert "severity is one of 1, 2, 3, 4, 5" in str(caught.value)


@given(st.text())
def test_no_text_but_a_key_becomes_a_cell(text: str):
    """Whatever is parsed either is a key of the benchmark, letter for letter, or refused."""
    try:
        cell = parse_key(text, CELLS)
    except PartitionKeyError:
        return
    assert text == cell.key
