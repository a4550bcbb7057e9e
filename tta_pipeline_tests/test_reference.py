"""The reference says what the code says."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path.name for path in (DOCS / "reference").glob("*.md"))


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """The program that writes the reference."""
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_has_been_written(made: ModuleType):
    """No page is missing, and none is left over."""
    assert PAGES == sorted(made.PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_gives(made: ModuleType, page: str):
    """Whoever changes a verb, field, asset or column writes the reference anew: `python docs/make_reference.py`."""
    assert made.PAGES[page]() == (DOCS / "reference" / page).read_text()
