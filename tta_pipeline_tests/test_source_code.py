"""What the hash of source code covers, and what it passes over."""

import re
import sys
from pathlib import Path

import pytest

from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.util.source_code import source_sha256

METHOD = '''"""A method of one's own."""

import json
from my_losses import loss
from my_package.scale import SCALE


def step(x):
    """Return a loss."""
    return SCALE * loss(x)  # scaled
'''
FILES = {
    "my_method.py": METHOD,
    "my_losses.py": "def loss(x):\n    return x\n",
    "my_package/__init__.py": "",
    "my_package/scale.py": "from . import deeper\nfrom .deeper import TWO\nfrom .plain.bias import B\nSCALE = TWO\n",
    "my_package/plain/bias.py": "B = 1\n",
    "my_package/deeper.py": "TWO = 2\n",
    "unrelated.py": "X = 1\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a method of several files."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("my_method.py", "return SCALE *", "return 3 *"),
        ("my_losses.py", "return x", "return -x"),
        ("my_package/scale.py", "SCALE = TWO", "SCALE = TWO + 1"),
        ("my_package/deeper.py", "2", "3"),
        ("my_package/plain/bias.py", "1", "2"),  # in a folder without __init__.py
        ("my_package/__init__.py", "", "import torch\n"),
    ],
)
def test_a_change_of_what_runs_changes_the_hash(folder: Path, name: str, before: str, after: str):
    """Of the file itself, and of what it imports from beside it, directly or not."""
    found = source_sha256("my_method:step")

    (folder / name).write_text(FILES[name].replace(before, after, 1))

    assert found != source_sha256("my_method:step")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("my_method.py", "Return a loss.", "Return the loss, reworded."),
        ("my_method.py", "# scaled", "# times two"),
        ("my_method.py", "SCALE * loss(x)", "(SCALE\n            * loss( x ))"),
        ("my_method.py", '"""A method of one\'s own."""', ""),
        ("unrelated.py", "1", "2"),
    ],
)
def test_rewording_changes_nothing(folder: Path, name: str, before: str, after: str):
    """Comments, docstrings, line breaks and files that are not imported are not part of it."""
    found = source_sha256("my_method:step")

    (folder / name).write_text(FILES[name].replace(before, after, 1))

    assert found == source_sha256("my_method:step")


def test_the_place_of_the_files_changes_nothing(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch):
    """The same code in another folder has the same hash."""
    found = source_sha256("my_method:step")
    other = tmp_path_factory.mktemp("other")
    for name, text in FILES.items():
        (other / name).parent.mkdir(exist_ok=True)
        (other / name).write_text(text)

    monkeypatch.chdir(other)
    monkeypatch.setattr(sys, "path", [str(other), *(path for path in sys.path if path != str(folder))])
    sys.path_importer_cache.clear()

    assert found == source_sha256("my_method:step")


def test_code_that_is_very_deep_is_hashed(folder: Path):
    """A sum of hundreds of terms does not exhaust the stack."""
    (folder / "my_losses.py").write_text("def loss(x):\n    return " + " + ".join(["x"] * 800) + "\n")

    assert 64 == len(source_sha256("my_method:step"))


def test_what_is_no_python_is_named(folder: Path):
    """A file that cannot be parsed is named."""
    (folder / "my_losses.py").write_text("def loss(:\n")

    with pytest.raises(ValueError, match=re.escape(str(folder / "my_losses.py"))):
        source_sha256("my_method:step")


def test_each_implementation_has_a_hash_of_its_own():
    """No two classes of the catalogue have the same; methods that share one differ in their settings."""
    implementations = {entry.implementation for entry in METHODS.values()}

    assert len(implementations) == len({source_sha256(each) for each in implementations})
