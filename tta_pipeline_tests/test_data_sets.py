"""The page "Which data set?" has a row and a file for each set, and both say what the sets say."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.benchmarks.load_files import load_benchmarks
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.data.shifts.shift_set_files import ENDING, shipped_sets

PAGE = (Path(__file__).parents[1] / "docs" / "data-sets.md").read_text()
FILES = {
    name: f"{text.replace('...', 64 * '0')}"
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
}
"""The text of each file on the page, with a hash where the user's stands."""
(BORDERS,) = re.findall(r"```python\n# borders\.py\n(.*?)```", PAGE, re.DOTALL)
BENCHMARKS = [name for name in FILES if not name.endswith(ENDING)]


def rows(number: int) -> dict[str, list[str]]:
    """Return the cells of a table of the page by the set that its row is about."""
    tables = [table for table in PAGE.split("\n\n") if table.startswith("| shift set")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[number].splitlines()[2:]]
    return {re.sub(r"[\[\]`]|\(.*\)", "", first): others for first, *others in cells}


def number(text: str) -> int:
    """Return the first number in *text*."""
    return int(re.findall(r"[\d,]+", text)[0].replace(",", ""))


def test_every_yaml_block_of_the_page_is_a_file():
    """Its first line names it, and no name is there twice."""
    assert len(FILES) == PAGE.count("```yaml")
    assert all(name.endswith(".yaml") for name in FILES)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_file_of_the_page_is_read_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """Beside the shift sets and the function of the page, and with paths that need not exist."""
    (tmp_path / "borders.py").write_text(BORDERS)
    monkeypatch.syspath_prepend(tmp_path)
    for each in (name, *(own for own in FILES if own.endswith(ENDING))):
        (tmp_path / each).write_text(FILES[each])

    loaded = load_benchmarks(tmp_path)

    assert loaded.faults == ()
    assert {Path(name).stem} == {found.partition("/")[0] for found in loaded.benchmarks}


def test_the_function_of_the_page_takes_the_border_away():
    """One pixel on each side."""
    image, names = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3), dict[str, Callable[[object], object]]()

    exec(BORDERS, names)

    np.testing.assert_array_equal(image[1:3, 1:4], names["without_border"](image))


@pytest.mark.parametrize("name", shipped_sets())
def test_a_set_has_a_file_of_its_name(name: str):
    """It is copied with the name of the set, or has it among several; a file that names none is of ImageNet-C."""
    of_several = FILES["fine_grained.yaml"]
    assert f"\n  {name}: " in of_several or name == "imagenet_c" or f"shift_set: {name}\n" in FILES[f"{name}.yaml"]


def test_both_tables_have_a_row_for_each_set():
    """And no other row."""
    assert set(shipped_sets()) == set(rows(0)) == set(rows(1))


@pytest.mark.parametrize("name", shipped_sets())
def test_a_row_says_what_the_set_says(name: str):
    """Shifts, severities, archives and licence."""
    shift_set = shipped_sets()[name]
    shifts, severities, _, _, archives, licence = rows(1)[name]

    held_out = f" + {len(shift_set.held_out)} for tuning" if shift_set.held_out else ""
    assert f"{len(shift_set.in_mean)}{held_out}" == shifts
    assert ("1 to 5" if shift_set.severities else "none") == severities
    assert bool(shift_set.archives) == archives[0].isdigit()
    assert not shift_set.archives or len(shift_set.archives) == number(archives)
    assert (
        shift_set.licence.replace("of the repository; none is stated for the images", "repository") or "not found"
    ) == licence


@pytest.mark.parametrize("name", shipped_sets())
def test_sizes_of_archives_are_those_of_the_set(name: str):
    """Where every archive's size is known, the page has the sum, in GB."""
    sizes = [archive.size_bytes for archive in shipped_sets()[name].archives.values()]
    if None in sizes or not sizes:
        return
    assert f"{sum(filter(None, sizes)) / 1e9:.1f} GB" in rows(1)[name][4]


def test_classes_on_the_page_are_those_of_the_lists():
    """The number of classes is that of the list that the set names; a split has the classes of the others."""
    for name, shift_set in shipped_sets().items():
        assert shift_set.split or number(rows(1)[name][2]) == len(shipped_classes(shift_set.classes or "imagenet"))
