"""Shared fixtures: real images in folders, and one small benchmark with all its results."""

import atexit
import gc
import io
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest
from PIL import Image

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import Conversion, ConversionResult, convert
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.locks import locked
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.launcher import Launcher, forked_python, forking_process
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, LIMITS, QUIET

SMALL = """
title: Few digits, few cells
images: {kind: digits, seed: 0, num_test: 150, severity_table: imagenet_c}
corruptions: [gaussian_noise, contrast]
severities: [3, 5]
image_size: 32
shards: {samples_per_shard: 60}
models:
  cnn: {kind: trained, epochs: 4, width: 8}
experiments:
  source: {model: cnn, method: source}
  norm: {model: cnn, method: norm, batch_size: 32}
  tent: {model: cnn, method: tent, preset: cifar, batch_size: 32}
"""
LAUNCHER = "TTA_TEST_LAUNCHER"
"""Environment variable with the address of the process that forks commands."""
UNPUBLISHED = shutil.ignore_patterns(".unpublished-*")
"""Leaves unpublished files out of copies of a data root: another test may be writing them, and they vanish at any
moment."""
LEAVES_RECORDS = ("--config-json", json.dumps({"resources": {"metrics": {"config": {"publishes": False}}}}))
"""Options of a run of many assets, each of which would publish its records: whoever needs the database does it once."""
SMALL_RANGE = "gaussian_noise|3...contrast|5"
SMALL_CELLS = tuple(Cell(corruption=c, severity=s) for c in ("gaussian_noise", "contrast") for s in (3, 5))


def jpeg(seed: int, *, size: int = 32) -> bytes:
    """Return a JPEG of smooth random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def in_one_line(stderr: str) -> str:
    """Return the errors of a terminal as logs have them, each in one line."""
    return stderr.replace("\n  expected: ", "; expected ").replace("\n  fix: ", ": ")


def write_tree(root: Path, *, classes: Mapping[str, int], size: int = 32) -> None:
    """Write class folders under *root*, each with the number of images that *classes* says."""
    for class_number, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / name / f"image_{number:03d}.JPEG").write_bytes(jpeg(1000 * class_number + number, size=size))


def pytest_configure(config: pytest.Config) -> None:
    """Start the process that forks commands, and let it fork the workers of pytest-xdist, too."""
    gc.disable()  # until all tests are collected: a fifth of the time would go into collections of objects that stay
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        stack = ExitStack()
        os.environ[LAUNCHER] = str(stack.enter_context(forking_process()))
        config.add_cleanup(stack.close)
        config.option.tx = [f"popen//python={forked_python(Path(os.environ[LAUNCHER]))}"] * len(config.option.tx)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Let a process run whole files, and all files that share the web server, so that fixtures are made once.

    Marks of groups do not reach the scheduler of pytest-xdist 3.8: since pytest 9 it cannot write them into names.
    """
    from xdist.scheduler import LoadScopeScheduling

    def group(node_id: str) -> str:
        file = node_id.partition("::")[0]
        return "web" if "/web/" in file else file

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group
    return scheduler


@cache
def launcher() -> Launcher:
    """Return the launcher of commands; its process ends with the tests."""
    if LAUNCHER in os.environ:
        return Launcher(Path(os.environ[LAUNCHER]))
    stack = ExitStack()
    atexit.register(stack.close)
    return Launcher(stack.enter_context(forking_process()))


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in a process of its own, which has imported this project, and return when it has ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return launcher().run(["python", "-c", code, *arguments], environment, timeout_s=600)


def start_python(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start the process of `run_python`; *options* are streams, env and cwd of `Popen`."""
    return launcher().start(["python", "-c", code, *map(str, arguments)], **options)


@dataclass(frozen=True, kw_only=True)
class Project:
    """A separate data root and Dagster home, and the commands of a user."""

    locations: Locations
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a user whose data and history lie here."""
        return {
            **os.environ,
            "TTA_DATA_ROOT": str(self.locations.root),
            "DAGSTER_HOME": str(self.home),
            "PYTHONWARNINGS": "ignore",
        }

    def add_benchmark(self, name: str, text: str) -> None:
        """Write a benchmark file."""
        self.locations.benchmark_files.mkdir(parents=True, exist_ok=True)
        (self.locations.benchmark_files / f"{name}.yaml").write_text(text, encoding="utf-8")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, and return when it has ended."""
        return launcher().run(list(command), self.environment, timeout_s=600)

    def materialize(self, select: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Materialize assets as a user does."""
        return self.run(
            "dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", "--select", select, *options
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project."""
    return new_project(tmp_path)


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Project:
    """The small benchmark with every asset materialized over its whole range in one run; tests must not change it.

    All test processes share it: the first process that needs it makes it.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "sweep"
    project = Project(locations=Locations(root=folder / "data"), home=folder / "dagster")
    with locked(folder.with_name("sweep.lock")):
        if not folder.exists():
            folder.mkdir()
            new_project(folder).add_benchmark("small", SMALL)
            finished = project.materialize("+group:small_report", "--partition-range", SMALL_RANGE)
            assert finished.returncode == 0, finished.stderr[-5000:]
    return project


def copy_benchmark(origin: Project, target: Project, *, without: Collection[str] = ()) -> None:
    """Copy the small benchmark, except its folders *without*: `source` has thousands of files, which few tests need.

    `results` and `predictions` mean its results, and the predictions beside them.
    """
    root = origin.locations.root / "small"

    def left_out(folder: str, names: list[str]) -> set[str]:
        return UNPUBLISHED(folder, names) | (set(without) if Path(folder) == root else set())

    shutil.copytree(root, target.locations.root / "small", ignore=left_out, dirs_exist_ok=True)
    if "results" not in without:
        ignored = shutil.ignore_patterns("*.parquet") if "predictions" in without else UNPUBLISHED
        results = target.locations.results("small")
        shutil.copytree(origin.locations.results("small"), results, ignore=ignored, dirs_exist_ok=True)


def copied_results(sweep: Project, folder: Path, *, text: str = SMALL) -> Project:
    """Return a copy of the small benchmark in *folder*, under the file *text*, without its report and loose images."""
    project = new_project(folder)
    copy_benchmark(sweep, project, without=("report", "source"))
    project.add_benchmark("small", text)
    shutil.copy(sweep.locations.metrics, project.locations.metrics)
    return project


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that take longest, so that no process is left with one of them at the end.

    The second process begins with a file that does not need the sweep, which the first process is making then.
    """
    first = ("web", "defs/test_datasets.py", "faults/test_damages.py", "defs", "faults",
             "extras/loader_bench", "evaluation", "report/pages", "test_own_code.py", "extras")  # fmt: skip

    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((at for at, part in enumerate(first) if f"/tta_pipeline_tests/{part}" in path), len(first))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave the millions of objects that exist before the first test out of garbage collections, and run few of these.

    With Python's own threshold, a twentieth of the time would go into searching the few cycles that a test leaves.
    """
    import_module("hypothesis")  # asks, while it is imported, who refers to an object, and frozen ones do not answer
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def new_project(folder: Path) -> Project:
    """Return an empty project in *folder*, its Dagster home initialised."""
    shutil.copytree(_initialised_home().name, folder / "dagster")
    return Project(locations=Locations(root=folder / "data"), home=folder / "dagster")


@cache
def _initialised_home() -> tempfile.TemporaryDirectory[str]:
    """Return a Dagster home whose tables exist: to make them takes a process two seconds."""
    home = tempfile.TemporaryDirectory(prefix="tta-dagster-home-")
    settings = (
        "telemetry: {enabled: false}\npython_logs: {python_log_level: INFO}\n"
        # Output is what a command printed; a second copy of it, by processes that follow its files, takes 0.25 s a run.
        "compute_logs: {module: dagster._core.storage.noop_compute_log_manager, class: NoOpComputeLogManager}\n"
    )
    (Path(home.name) / "dagster.yaml").write_text(settings)
    with dg.DagsterInstance.from_config(home.name):
        return home


@pytest.fixture
def tree(tmp_path: Path) -> FolderTree:
    """Twenty images of three classes."""
    write_tree(tmp_path / "source" / CELL.path, classes={"n01": 9, "n02": 6, "n03": 5})
    return FolderTree(root=tmp_path / "source", cells=(CELL,))


@pytest.fixture
def write(tree: FolderTree, tmp_path: Path) -> Callable[..., ConversionResult]:
    """Return a function that shards the tree into a folder."""

    def write(
        target: Path = tmp_path / "shards", settings: ShardSettings = LIMITS, class_map: ClassMap = CLASS_MAP
    ) -> ConversionResult:
        conversion = Conversion(
            source=tree,
            source_kind="folder",
            generated=False,
            benchmark_name="test",
            class_map=class_map,
            settings=lambda _: settings,
            folder=lambda _: target,
            progress=quiet_reporter,
        )
        with conversion.session([CELL]) as session:
            return convert(session.task(CELL), conversion.progress)

    return write


@pytest.fixture
def shard_set(write: Callable[..., object], tmp_path: Path) -> ShardSet:
    """The shards with their manifest."""
    write()
    return publish_shard_set(tmp_path / "shards", CLASS_MAP, QUIET).shard_set
