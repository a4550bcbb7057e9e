"""The reference says what the code says."""

import importlib.util
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import FIRST_FILE, validate_content
from tta_pipeline.errors import BenchmarkFileError

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
BY_HAND = {"frozen-layers.md", "glossary.md", "method-differences.md", "metrics.md", "protocols.md", "queries.md"}
"""Pages that this program does not write; `make_top_layers` writes the first."""
PAGES = sorted(
    {path.relative_to(DOCS / "reference").as_posix() for path in (DOCS / "reference").rglob("*.md")} - BY_HAND
)


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """The program that writes the reference."""
    sys.path.insert(0, str(DOCS))
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_has_been_written(made: ModuleType):
    """No page is missing, and none is left over."""
    assert sorted(made.PAGES) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_gives(made: ModuleType, page: str):
    """Whoever changes a verb, field, asset or column writes the reference anew: `python docs/make_reference.py`."""
    assert made.PAGES[page]() == (DOCS / "reference" / page).read_text()


FIRST = yaml.safe_load(FIRST_FILE.read_text("utf-8"))


@pytest.mark.parametrize("field", [name for name in Benchmark.model_fields if name != "name"])
def test_a_field_is_called_required_if_a_file_without_it_is_an_error(made: ModuleType, field: str, tmp_path: Path):
    """So for each field of a benchmark file, whose defaults often come from the dataset."""
    called_required = made.reference_benchmark.default_in_words(Benchmark.model_fields[field]).startswith("required")
    content = {name: value for name, value in FIRST.items() if name != field}

    expected: AbstractContextManager[object] = nullcontext()
    if called_required:
        expected = pytest.raises(BenchmarkFileError, match=f"{field} is missing|{field}: ")
    with expected:
        validate_content(tmp_path / "first.yaml", content, name="first")


def test_links_between_the_pages_of_a_benchmark_file_lead_somewhere(made: ModuleType):
    """To a page of the reference, and to a heading of it."""
    texts = {name: page() for name, page in made.reference_benchmark.pages().items()}
    for name, text in texts.items():
        for target, anchor in re.findall(r"\]\(([a-z_]*(?:\.md)?)#([a-z-]+)\)", text):
            headings = re.findall("^## (.*)$", texts[f"benchmark/{target}" if target else name], re.MULTILINE)

            assert anchor in {heading.lower().replace(":", "").replace(" ", "-") for heading in headings}
