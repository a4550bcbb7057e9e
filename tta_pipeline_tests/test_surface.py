"""The project does not grow unless somebody says for whom."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import yaml

from tta_pipeline_tests.surface import count_all

FILE = Path(__file__).with_name("surface.yaml")
CEILINGS: Mapping[str, Mapping[int, str]] = yaml.safe_load(FILE.read_text())
counted = cache(count_all)


def test_every_number_has_a_ceiling():
    """None is left out, and none is left over."""
    assert sorted(counted()) == sorted(CEILINGS)


@pytest.mark.parametrize("name", CEILINGS)
def test_a_number_is_below_its_ceiling_and_close_to_it(name: str):
    """Whoever adds to it raises the ceiling; whoever takes away at least a twentieth lowers it."""
    number, ceiling = counted()[name], [*CEILINGS[name]][-1]

    assert number <= ceiling, f"add a line to {FILE.name} that says for whom"
    assert number > 0.95 * ceiling or number == ceiling, f"lower the last line of {name} in {FILE.name}"


@pytest.mark.parametrize("name", CEILINGS)
def test_each_rise_of_a_ceiling_says_for_whom(name: str):
    """Numbers rise from line to line, each with its reason in words."""
    numbers, reasons = [*CEILINGS[name]], [*CEILINGS[name].values()]

    assert numbers == sorted(numbers)
    assert all(len(str(reason).split()) > 2 for reason in reasons)
