"""Fixtures for the tests of evaluations."""

import shutil
from pathlib import Path

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.conftest import Project

NOT_COPIED = ("source", "report")
"""Generated images, which evaluations may read and never change, and pages."""


def copy_small(data: Path, target: Path, *without: str) -> Locations:
    """Copy the small benchmark from a data root to another, but for some of its folders, and link its images."""
    ignored = shutil.ignore_patterns(*NOT_COPIED, *without)
    shutil.copytree(data / "small", target / "small", ignore=ignored)
    (target / "small" / "source").symlink_to((data / "small" / "source").resolve())
    return Locations(root=target)


@pytest.fixture
def data(sweep: Project, tmp_path: Path) -> Locations:
    """The shards and the model of the small benchmark, without results."""
    return copy_small(sweep.locations.root, tmp_path, "results", "predictions")
