"""Fixtures for the tests of evaluations."""

import shutil
from pathlib import Path

import pytest

from tta_pipeline.util.locations import Locations
from tta_pipeline_tests.conftest import Project


@pytest.fixture
def data(sweep: Project, tmp_path: Path) -> Locations:
    """The shards and the model of the small benchmark, without results."""
    ignored = shutil.ignore_patterns("results", "predictions")
    shutil.copytree(sweep.locations.root / "small", tmp_path / "small", ignore=ignored)
    return Locations(root=tmp_path)
