"""One web server for all tests of the web UI."""

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tta_pipeline.domain.cells import TRAIN
from tta_pipeline.domain.locations import Locations
from tta_pipeline.shards.manifest import read_record
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark
from tta_pipeline_tests.web.server import WebServer, web_server

# Adaptation in many small batches with many steps: it takes minutes on any machine, and reports progress.
SLOW = SMALL.replace("preset: cifar, batch_size: 32", "preset: cifar, batch_size: 2, hyperparameters: {steps: 300}")


@pytest.fixture(scope="package")
def server(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """The web UI on a copy of the sweep, since its runs change history and data."""
    folder = tmp_path_factory.mktemp("web")
    shutil.copytree(sweep.home, folder / "dagster")
    project = replace(sweep, locations=Locations(root=folder / "data"), home=folder / "dagster")
    copy_benchmark(sweep, project, without=("source",))
    project.add_benchmark("small", SMALL)
    project.add_benchmark("slow", SLOW)
    leave_out = shutil.ignore_patterns("results", "report")
    shutil.copytree(folder / "data" / "small", folder / "data" / "slow", ignore=leave_out)
    shutil.rmtree(project.locations.shards("slow", TRAIN))  # the model trained on them is there
    for path in (project.locations.root / "slow").rglob("manifest.json"):
        # A manifest names its benchmark, and must name the copy's.
        path.write_bytes(read_record(path, Manifest).model_copy(update={"benchmark": "slow"}).serialise())
    with web_server(project, folder / "dagster" / "web_server.log") as server:
        yield server
