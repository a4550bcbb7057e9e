"""Which samples of several cells show the same photograph."""

import pytest

from tta_pipeline.domain.cells import Cell
from tta_pipeline.shards.photographs import Photographs

CELLS = (Cell(corruption="gaussian_noise", severity=3), Cell(corruption="fog", severity=5))


def keys(form: str, cell: Cell) -> list[str]:
    """Return the keys of 60 samples of a cell."""
    short = cell.corruption[:4]
    return [
        form.format(klass=f"n{i % 7:02d}", i=i, name=cell.corruption, severity=cell.severity, short=short)
        for i in range(1, 61)
    ]


@pytest.mark.parametrize(
    "form",
    [
        "{klass}/ILSVRC2012_val_{i:08d}",
        "{klass}/{name}_{severity}_{i:04d}",
        "{klass}/{i:04d}-{name}",
        "{klass}/{name}{severity}_{i}",
        "{i:05d}_{name}_severity_{severity}",
        "{name}/{severity}/{klass}/{i}",
        "{klass}/{short}-s{severity}-{i}",
    ],
)
def test_names_that_carry_the_cell_show_the_same_photographs(form: str):
    """The order in which the samples are stored decides nothing."""
    photographs = Photographs()

    one, other = (photographs.number(keys(form, cell), cell) for cell in CELLS)
    reversed_ = photographs.number(keys(form, CELLS[0])[::-1], CELLS[0])

    assert one.group == other.group == reversed_.group
    assert one.numbers.tolist() == other.numbers.tolist() == reversed_.numbers[::-1].tolist()
    assert 60 == len(set(one.numbers.tolist()))


def test_a_missing_image_is_no_other_photograph():
    """The rest of the set has the same names."""
    photographs, names = Photographs(), keys("{klass}/{i}", CELLS[0])

    whole, less = photographs.number(names, CELLS[0]), photographs.number(names[1:], CELLS[1])

    assert whole.numbers[1:].tolist() == less.numbers.tolist()


def test_other_names_are_another_group():
    """Nothing is known of them; a pattern says what names the photograph, if a name fits it."""
    names = [[f"a{i * 31 % 97}" for i in range(50)], [f"{i * 17 % 89}-b-{i * 31 % 97}" for i in range(50)]]

    assert [0, 1] == [Photographs().number(names[0], CELLS[0]).group, _second(Photographs(), names)]
    assert 0 == _second(Photographs("([0-9]+)$"), [[*each, "other"] for each in names])


def _second(photographs: Photographs, names: list[list[str]]) -> int:
    """Return the group of the second set."""
    return [photographs.number(each, cell) for each, cell in zip(names, CELLS, strict=True)][1].group
