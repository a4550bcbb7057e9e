"""Fixtures for the tests of evaluations."""

import shutil
from pathlib import Path

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.conftest import Project

NOT_COPIED = ("source", "report")
"""Generated images, which evaluations may read and never change, and pages."""


def copy_small(data: Path, target: Path, *, with_results: bool = False) -> Locations:
    """Copy shards, model and states of the small benchmark to another data root, and link its images."""
    shutil.copytree(data / "small", target / "small", ignore=shutil.ignore_patterns(*NOT_COPIED))
    (target / "small" / "source").symlink_to((data / "small" / "source").resolve())
    if with_results:
        shutil.copytree(data / "results" / "small", target / "results" / "small")
    return Locations(root=target)


@pytest.fixture
def data(sweep: Project, tmp_path: Path) -> Locations:
    """The shards and the model of the small benchmark, without results."""
    return copy_small(sweep.locations.root, tmp_path)
