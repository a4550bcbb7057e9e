"""Every asset is launched from the web UI, whose runs begin in a process that was started anew."""

from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tta_pipeline_tests.conftest import new_project
from tta_pipeline_tests.web.server import WebServer, web_server

# Trainings that read by processes of their own, by either reason for it.
EVERYTHING = """
title: Every kind of asset
images: {kind: digits, seed: 0, num_test: 40, severity_table: imagenet_c}
corruptions: [gaussian_noise]
severities: [5]
image_size: 32
shards: {num_shards: 1}
models:
  drawn: {kind: trained, epochs: 1, width: 4, randaugment: {}}
  loose: {kind: trained, epochs: 1, width: 4, loader: imagefolder}
experiments:
  source: {model: loose, method: source}
  tent: {model: drawn, method: tent, preset: cifar}
  continual: {model: drawn, method: tent, preset: cifar, protocol: continual}
tuning:
  tent: {grid: {lr: [0.001, 0.01]}}
"""
NODES = """{ assetNodes {
  assetKey { path } dependencyKeys { path } partitionKeys isMaterializable assetMaterializations(limit: 1) { runId }
} }"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    """The web UI on an empty project."""
    project = new_project(tmp_path)
    project.add_benchmark("every", EVERYTHING)
    with web_server(project, tmp_path / "web_server.log") as server:
        yield server


@pytest.mark.slow
def test_every_asset_is_made_from_the_web_ui(server: WebServer):
    """One after the other, and then by the job of all evaluations, which has the trainings too."""
    nodes = {"/".join(node["assetKey"]["path"]): node for node in server.ask(NODES)["assetNodes"]}
    own = {key: node for key, node in nodes.items() if key.startswith("every/") and node["isMaterializable"]}
    needs = {key: ["/".join(each["path"]) for each in node["dependencyKeys"]] for key, node in own.items()}

    for key in TopologicalSorter(needs).static_order():
        run = server.end(server.start_job("__ASSET_JOB", [key], partitions(own[key]["partitionKeys"])))
        assert "SUCCESS" == run.status, f"{key}: {run.errors}"

    made = {
        "/".join(node["assetKey"]["path"]): node["assetMaterializations"] for node in server.ask(NODES)["assetNodes"]
    }
    assert {"every/source_model/drawn", "every/tuning/tent", "every/loader_benchmark"} <= own.keys()
    assert all(made[key] for key in own)
    run = server.end(server.start_job("every__evaluate_everything", None, partitions(["gaussian_noise|5"])))
    assert "SUCCESS" == run.status, run.errors


def partitions(keys: list[str]) -> Mapping[str, str]:
    """Return the tags of one run over all *keys*."""
    if not keys:
        return {}
    return {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
