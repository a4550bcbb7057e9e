"""Load times of the web UI with few and many assets and partitions: `python -m bench.ui`.

A real `dg dev` and a real Chromium, without a window. A code location is loaded when the server starts, and again at
each reload. A page counts as loaded when it shows a text that depends on its data.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from bench.figures import spread
from tta_pipeline.domain.locations import Locations
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline_tests.chromium import chromium
from tta_pipeline_tests.conftest import Project, new_project
from tta_pipeline_tests.web.server import WebServer, web_server

REPEATS = 3
_PATIENCE_S = 300
_RELOAD = """mutation { reloadRepositoryLocation(repositoryLocationName: "tta_pipeline.definitions") {
  __typename } }"""


def main() -> None:
    """Measure each size, and print medians and ranges."""
    table = Table("assets", "partitions each", "start, s", "reload, s", "lineage, s", "partitions page, s",
                  title=f"Web UI, median and range of {REPEATS}")  # fmt: skip
    for num_benchmarks, num_corruptions in ((1, 15), (10, 15), (1, 400), (10, 400)):
        with tempfile.TemporaryDirectory(prefix="tta-ui-") as folder:
            project = new_project(Path(folder))
            for number in range(num_benchmarks):
                project.add_benchmark(f"large_{number}", _benchmark())
            _add_dataset(project.locations, num_corruptions)
            table.add_row(*_measure(project, num_partitions=5 * num_corruptions))
        Console(width=120).print(table)


def _add_dataset(locations: Locations, num_corruptions: int) -> None:
    """Write the dataset of the benchmarks."""
    names = [f"corruption_{number:03d}" for number in range(num_corruptions)]
    own = {"name": "many", "names": names, "severities": [1, 2, 3, 4, 5]}
    (locations.benchmark_files / "many.dataset.yaml").write_text(yaml.safe_dump(own))


def _benchmark() -> str:
    """Return a benchmark file with 90 experiments on folders of images, which need not exist."""
    methods = [name for name, entry in METHODS.items() if entry.needs == "any" and entry.source_data == "unused"][:30]
    return yaml.safe_dump(
        {
            "title": "Many assets",
            "images": {"kind": "folder", "root": "/nowhere"},
            "class_map": "folders",
            "dataset": "many",
            "image_size": 32,
            "shards": {"num_shards": 1},
            "models": {name: {"kind": "torchvision", "architecture": "resnet50"} for name in ("one", "two", "three")},
            "matrix": [{"models": ["one", "two", "three"], "methods": methods, "preset": "imagenet"}],
        }
    )


def _measure(project: Project, *, num_partitions: int) -> list[str]:
    started = time.perf_counter()
    with web_server(project, project.home / "web_server.log") as server, chromium(project.home / "chromium") as browser:
        start_s = time.perf_counter() - started
        server.ask("mutation { setNuxSeen }")
        num_assets = len(server.ask("{ assetNodes { id } }")["assetNodes"])
        reload_s = [_seconds(lambda: server.ask(_RELOAD)) for _ in range(REPEATS)]
        lineage_s = [_seconds(lambda: _open(browser, server, "/asset-groups", "large_0")) for _ in range(REPEATS)]
        page = "/assets/large_0/shard_manifest?view=partitions"
        partitions_s = [
            _seconds(lambda: _open(browser, server, page, f"Missing ({num_partitions})")) for _ in range(REPEATS)
        ]
    return [
        f"{num_assets:,}",
        f"{num_partitions:,}",
        f"{start_s:.1f}",
        *(spread(each, digits=1) for each in (reload_s, lineage_s, partitions_s)),
    ]


def _open(browser: webdriver.Chrome, server: WebServer, path: str, text: str) -> None:
    browser.get(f"{server.url}{path}")
    where = f"//*[contains(text(), '{text}')]"
    WebDriverWait(browser, _PATIENCE_S, poll_frequency=0.05).until(lambda _: browser.find_elements(By.XPATH, where))
    browser.get("about:blank")


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
