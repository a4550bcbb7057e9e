"""What every kind of model has, and that nobody asks which kind a model is."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import tta_pipeline
from tta_pipeline.benchmarks import model_specs
from tta_pipeline.benchmarks.model_specs import ModelSection, NetworkSection
from tta_pipeline.models.model_kind import ModelKind, NetworkKind

SECTIONS = tuple(
    section
    for section in vars(model_specs).values()
    if inspect.isclass(section) and issubclass(section, ModelSection) and hasattr(section, "implementation")
)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_names_what_loads_it(section: type[ModelSection]):
    """A network's section names a kind of network."""
    module, _, name = section.implementation.partition(":")
    kind = getattr(importlib.import_module(module), name)

    assert issubclass(kind, NetworkKind if issubclass(section, NetworkSection) else ModelKind)
    assert not inspect.isabstract(kind)


def test_no_code_asks_which_kind_a_model_is():
    """Each kind knows itself, so that a new one is its section and its module."""
    named = "|".join(section.__name__ for section in SECTIONS)
    asked = re.compile(rf"isinstance\([^)]*\b({named})\b")
    found = [path for path in Path(tta_pipeline.__file__).parent.rglob("*.py") if asked.search(path.read_text())]

    assert len(SECTIONS) == 9
    assert not found
