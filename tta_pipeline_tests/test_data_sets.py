"""The files on the page "Choose a dataset" are read as they stand."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.benchmarks.load_files import load_benchmarks
from tta_pipeline.data.datasets.dataset_files import ENDING

PAGE = (Path(__file__).parents[1] / "docs" / "guides" / "datasets.md").read_text()
FILES = {
    name: f"{text.replace('...', 64 * '0')}"
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
}
"""The text of each file on the page, with a hash where the user's stands."""
(BORDERS,) = re.findall(r"```python\n# borders\.py\n(.*?)```", PAGE, re.DOTALL)
BENCHMARKS = [name for name in FILES if not name.endswith(ENDING)]


def test_every_yaml_block_of_the_page_is_a_file():
    """Its first line names it, and no name is there twice."""
    assert len(FILES) == PAGE.count("```yaml")
    assert all(name.endswith(".yaml") for name in FILES)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_file_of_the_page_is_read_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """Beside the datasets and the function of the page, and with paths that need not exist."""
    (tmp_path / "borders.py").write_text(BORDERS)
    monkeypatch.syspath_prepend(tmp_path)
    for each in (name, *(own for own in FILES if own.endswith(ENDING))):
        (tmp_path / each).write_text(FILES[each])

    loaded = load_benchmarks(tmp_path)

    assert loaded.faults == ()
    assert {Path(name).stem} == {found.partition("/")[0] for found in loaded.benchmarks}


def test_the_function_of_the_page_takes_the_border_away():
    """Two pixels on each side."""
    image, names = np.arange(6 * 7 * 3, dtype=np.uint8).reshape(6, 7, 3), dict[str, Callable[[object], object]]()

    exec(BORDERS, names)

    np.testing.assert_array_equal(image[2:4, 2:5], names["without_border"](image))
