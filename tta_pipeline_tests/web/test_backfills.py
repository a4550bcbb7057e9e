"""Backfills, which Dagster's daemon cuts into runs that do their parts at the same time."""

import time
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tta_pipeline_tests.conftest import SMALL, Project, new_project
from tta_pipeline_tests.web.server import REPOSITORY, WebServer, asset_key, web_server

MORE = SMALL.replace("[gaussian_noise, contrast]", "[gaussian_noise, fog, contrast]").replace("[3, 5]", "[1, 3, 4, 5]")
LAUNCH = """mutation ($backfill: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $backfill) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}"""
BACKFILL = """query ($backfill: String!) {
  partitionBackfillOrError(backfillId: $backfill) { ... on PartitionBackfill { status } }
}"""
RUNS = """query ($filter: RunsFilter!) { runsOrError(filter: $filter) { ... on Runs {
  results { runId status startTime endTime tags { key value } assetMaterializations { partition assetKey { path } } }
} } }"""


@pytest.fixture
def project_of_a_machine(tmp_path: Path) -> Project:
    """A project with the shipped settings of Dagster, but a history of its own."""
    settings = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())
    for place in ("storage", "local_artifact_storage", "compute_logs"):
        del settings[place]
    project = new_project(tmp_path)
    (project.home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    project.add_benchmark("small", MORE)
    return project


@pytest.mark.slow
@pytest.mark.parametrize("cells_per_run", ["", "2", "3"])
def test_a_backfill_makes_the_asked_cells_once_in_runs_side_by_side(
    project_of_a_machine: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells_per_run: str
):
    """Also where some cells of the grid are left out, and whatever number of cells a run may have."""
    monkeypatch.setenv("TTA_CELLS_PER_RUN", cells_per_run)
    left_out = {"fog|3", "contrast|1"}
    asked = {f"{c}|{s}" for c in ("gaussian_noise", "fog", "contrast") for s in (1, 3, 4, 5)} - left_out

    with web_server(project_of_a_machine, tmp_path / "server.log") as server:
        runs = backfilled(server, ["small/images", "small/tar_shards"], asked)

    made = [
        (each["partition"], "/".join(each["assetKey"]["path"])) for run in runs for each in run["assetMaterializations"]
    ]
    assert {"SUCCESS"} == {run["status"] for run in runs}
    assert {(cell, f"small/{name}") for cell in asked for name in ("images", "tar_shards")} == set(made)
    for number in cells_per_run:
        assert all(len(cells(run)) <= int(number) for run in runs)
    assert not [cell for one, other in combinations(runs, 2) for cell in cells(one) & cells(other)]
    assert any(overlap(one, other) for one, other in combinations(runs, 2))
    assert {cell.replace("|", "/") for cell in asked} == {
        path.parent.relative_to(project_of_a_machine.locations.root / "small" / "shards").as_posix()
        for path in (project_of_a_machine.locations.root / "small" / "shards").glob("*/*/writer.json")
    }


def backfilled(server: WebServer, assets: list[str], asked: set[str]) -> list[dict[str, Any]]:
    """Launch a backfill as the web UI does, wait for its end, and return its runs."""
    launched = server.ask(
        LAUNCH, backfill={"assetSelection": [asset_key(each) for each in assets], "partitionNames": sorted(asked)}
    )["launchPartitionBackfill"]
    assert "LaunchBackfillSuccess" == launched["__typename"], launched
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        state = server.ask(BACKFILL, backfill=launched["backfillId"])["partitionBackfillOrError"]["status"]
        if state.startswith("COMPLETED") or state == "FAILED":
            break
        time.sleep(0.5)
    tags = {"tags": [{"key": "dagster/backfill", "value": launched["backfillId"]}]}
    found: list[dict[str, Any]] = server.ask(RUNS, filter=tags)["runsOrError"]["results"]
    return found


def cells(run: Mapping[str, Any]) -> set[str]:
    """Return the cells that a run made."""
    return {each["partition"] for each in run["assetMaterializations"]}


def overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two runs ran at the same time."""
    return bool(max(one["startTime"], other["startTime"]) < min(one["endTime"], other["endTime"]))
