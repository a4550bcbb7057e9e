"""The web UI: what it lists and shows, what it starts, what it refuses, and who can reach it."""

import base64
import io
import ipaddress
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tta_pipeline.domain.cells import Cell
from tta_pipeline.results.plans import read_plan
from tta_pipeline.results.result_files import Result
from tta_pipeline_tests.conftest import SMALL_CELLS, Project
from tta_pipeline_tests.result_paths import results_of
from tta_pipeline_tests.web.server import WebServer, asset_key, happens, is_running

CELL_ASSETS = ("images", "tar_shards", "shard_manifest", *(f"evaluation/{e}" for e in ("source", "norm", "tent")))
SINGLE_ASSETS = (
    *(f"clean/{name}" for name in CELL_ASSETS),
    *(f"train/{name}" for name in ("images", "tar_shards", "shard_manifest")),
    "source_model",
    "robustness_report",
)
GRIDS = {name: {"corruption": ["gaussian_noise", "contrast"], "severity": ["3", "5"]} for name in ("small", "slow")}
HOSTILE_KEY = "../../x|1"
pytestmark = pytest.mark.web


@pytest.fixture(scope="module")
def assets(server: WebServer) -> dict[str, dict[str, Any]]:
    """What the web UI knows of every asset, by key."""
    nodes = server.ask(
        "{ assetNodes { assetKey { path } groupName description kinds "
        "partitionKeysByDimension { name partitionKeys } } }"
    )["assetNodes"]
    return {"/".join(node["assetKey"]["path"]): node for node in nodes}


@pytest.mark.parametrize("benchmark", GRIDS)
def test_every_asset_of_a_benchmark_is_listed(assets: dict[str, dict[str, Any]], benchmark: str):
    """Its groups have the assets of its cells, its clean and its training images, its model, and its report."""
    kinds = ("", "_images", "_clean", "_clean_images", "_training", "_report")
    listed = {key for key, node in assets.items() if node["groupName"] in {f"{benchmark}{kind}" for kind in kinds}}

    assert {f"{benchmark}/{name}" for name in (*CELL_ASSETS, *SINGLE_ASSETS)} == listed


@pytest.mark.parametrize("benchmark", GRIDS)
def test_the_grid_has_corruptions_and_severities_in_canonical_order(assets: dict[str, dict[str, Any]], benchmark: str):
    """Assets of cells have the dimensions corruption and severity in the order of the papers; the others have none."""
    grids = {
        key: {dimension["name"]: dimension["partitionKeys"] for dimension in node["partitionKeysByDimension"]}
        for key, node in assets.items()
    }

    for name in CELL_ASSETS:
        assert GRIDS[benchmark] == grids[f"{benchmark}/{name}"]
    for name in SINGLE_ASSETS:
        assert grids[f"{benchmark}/{name}"] == {}


def test_every_asset_says_what_it_is(assets: dict[str, dict[str, Any]]):
    """Every asset has a description, a kind, and the group of its benchmark."""
    for key, node in assets.items():
        assert node["description"], key
        assert node["kinds"], key
        assert node["groupName"].startswith(key.split("/")[0])


def test_every_cell_of_the_sweep_shows_as_materialized(server: WebServer):
    """The grid of an experiment shows each of its cells as materialized, and none as missing or failed."""
    node = server.ask(
        """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
          partitionStats { numPartitions numMaterialized numFailed numMaterializing }
          assetPartitionStatuses { ... on MultiPartitionStatuses { primaryDimensionName ranges {
            primaryDimStartKey primaryDimEndKey
            secondaryDim { ... on DefaultPartitionStatuses { materializedPartitions } }
          } } }
        } } }""",
        key=asset_key("small/evaluation/tent"),
    )["assetNodeOrError"]

    assert {"numPartitions": 4, "numMaterialized": 4, "numFailed": 0, "numMaterializing": 0} == node["partitionStats"]
    assert node["assetPartitionStatuses"]["primaryDimensionName"] == "corruption"
    assert set(SMALL_CELLS) == _materialized(node["assetPartitionStatuses"]["ranges"])


@pytest.mark.parametrize("cell", SMALL_CELLS, ids=lambda cell: cell.key)
def test_a_cell_shows_its_result_and_a_picture(server: WebServer, cell: Cell):
    """A materialized cell shows its error, its speed, and a picture that needs no other file."""
    metadata = _metadata(server, "small/evaluation/tent", cell)

    assert 0 < metadata["error"]["floatValue"] < 1
    assert all(metadata[name]["floatValue"] > 0 for name in ("ece", "images_per_s", "wall_s", "peak_rss_gib"))
    assert f"| result | error {metadata['error']['floatValue']:.1%}" in metadata["summary"]["mdStr"]
    assert ["summary", "page", "samples"] == list(metadata)[:3]
    assert ["order_hash", "predictions_sha256"] == [name for name in metadata if "hash" in name or "sha256" in name]
    assert "sha256" not in metadata["summary"]["mdStr"]
    assert metadata["page"]["path"].endswith(f"/report/cells/{cell.corruption}-{cell.severity}.html#experiment-tent")
    record = json.loads(metadata["record"]["jsonString"])
    assert (record["corruption"], record["severity"]) == (cell.corruption, cell.severity)
    assert metadata["error"]["floatValue"] == pytest.approx(record["error"], rel=1e-5)
    picture = re.fullmatch(r"!\[[^\]]+\]\(data:image/png;base64,([^)]+)\)", metadata["samples"]["mdStr"])
    assert picture
    with Image.open(io.BytesIO(base64.b64decode(picture[1], validate=True))) as image:
        image.load()
        assert image.format == "PNG"


def test_a_check_says_what_it_found_and_in_which_cells(server: WebServer):
    """It has a result of each cell, and that of the newest cell says what was found; all passed."""
    results = _results(server, "small/evaluation/tent", "every_sample_evaluated_once")

    assert {cell.key: True for cell in SMALL_CELLS} == {each["partition"]: each["success"] for each in results}
    assert "150" in {str(value) for entry in results[0]["metadataEntries"] for value in entry.values()}


def test_only_this_machine_can_reach_the_server(server: WebServer):
    """Every TCP socket on which a process of `make ui` listens has a loopback address."""
    if not Path("/proc/net/tcp").exists():
        pytest.skip("needs /proc/net/tcp to see who listens")
    listening = server.listening()

    assert ("127.0.0.1", server.port) in listening
    assert all(ipaddress.ip_address(address).is_loopback for address, _ in listening), listening


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asset", "refusal"),
    [
        # An asset without partitioned inputs reaches our own check; otherwise Dagster looks for the inputs' first.
        ("small/images", f"partition key '{HOSTILE_KEY}' does not exist; expected"),
        ("small/tar_shards", "Nonexistent partition keys:\\n                ['../../x']"),
    ],
    ids=["images", "tar_shards"],
)
def test_a_partition_key_that_is_a_path_is_refused(server: WebServer, asset: str, refusal: str):
    """A run whose key leads out of its folder fails, names the key, and leaves every file as it was."""
    before = _files(server.project)

    run = server.launch(asset, HOSTILE_KEY)

    assert run.status == "FAILURE"
    assert refusal in run.errors
    assert before == _files(server.project)


def test_a_cell_can_be_materialized_from_the_web_ui(server: WebServer):
    """The run succeeds, and its result is there, with the error of the same cell elsewhere; the plan asks for it."""
    run = server.launch("slow/evaluation/source", "contrast|5")

    assert run.status == "SUCCESS", run.errors
    known, made = (contrast_5(server.project, benchmark, "source") for benchmark in ("small", "slow"))
    assert (run.run_id, known.evaluations[0].error) == (made.run_id, made.evaluations[0].error)
    plan = read_plan(server.project.locations, "slow", "source")
    assert plan is not None
    assert made.fingerprint in {each for stream in plan.streams for each in stream.fingerprints}
    newest = _materialization(server, "slow/evaluation/source", Cell(corruption="contrast", severity=5))
    assert run.run_id == newest["runId"]
    (check,) = _results(server, "slow/evaluation/source", "every_sample_evaluated_once")
    assert check["success"]


def contrast_5(project: Project, benchmark: str, experiment: str) -> Result:
    """Return the one result of contrast 5 by *experiment*."""
    found = (stored.result for stored in results_of(project.locations.root, benchmark, experiment))
    (result,) = (result for result in found if result.key == "contrast-5")
    return result


def test_a_run_that_is_cancelled_ends_soon_and_leaves_nothing_half_done(server: WebServer):
    """In the middle of adaptation: no result, no unpublished file, no process, and the web UI says so."""
    run_id = server.start("slow/evaluation/tent", "contrast|5")
    assert happens(lambda: any(" of 150 images, " in line for line in server.messages(run_id)), within_s=300)
    (process_id,) = re.findall(r"Started process for run \(pid: (\d+)\)", "\n".join(server.messages(run_id)))

    run = server.cancel(run_id)

    assert "CANCELED" == run.status, run.errors
    assert happens(lambda: not is_running(int(process_id)), within_s=60)
    assert not list(server.project.locations.root.rglob("*unpublished*"))
    assert [] == results_of(server.project.locations.root, "slow", "tent")


def _materialized(ranges: list[dict[str, Any]]) -> set[Cell]:
    """Return the cells of rectangles of the grid of `small`."""
    corruptions = GRIDS["small"]["corruption"]
    found = set()
    for each in ranges:
        start, end = (corruptions.index(each[f"primaryDim{edge}Key"]) for edge in ("Start", "End"))
        rectangle = product(corruptions[start : end + 1], each["secondaryDim"]["materializedPartitions"])
        found |= {Cell(corruption=corruption, severity=int(severity)) for corruption, severity in rectangle}
    return found


def _materialization(server: WebServer, asset: str, cell: Cell) -> dict[str, Any]:
    """Return the newest materialization of *cell*."""
    found = server.ask(
        """query ($key: AssetKeyInput!, $partitions: [String!]) {
          assetNodeOrError(assetKey: $key) { ... on AssetNode {
            assetMaterializations(partitions: $partitions, limit: 1) {
              runId
              metadataEntries {
                label ... on FloatMetadataEntry { floatValue } ... on MarkdownMetadataEntry { mdStr }
                ... on PathMetadataEntry { path } ... on JsonMetadataEntry { jsonString }
              }
            }
          } }
        }""",
        key=asset_key(asset),
        partitions=[cell.key],
    )
    return found["assetNodeOrError"]["assetMaterializations"][0]


def _results(server: WebServer, asset: str, check: str) -> list[dict[str, Any]]:
    """Return the results of a check of *asset*, the newest first."""
    found = server.ask(
        """query ($key: AssetKeyInput!, $check: String!) {
          assetCheckExecutions(assetKey: $key, checkName: $check, limit: 10) {
            evaluation { success severity partition metadataEntries {
              ... on TextMetadataEntry { text } ... on IntMetadataEntry { intValue }
            } }
          }
        }""",
        key=asset_key(asset),
        check=check,
    )["assetCheckExecutions"]
    return [each["evaluation"] for each in found]


def _metadata(server: WebServer, asset: str, cell: Cell) -> dict[str, dict[str, Any]]:
    return {entry["label"]: entry for entry in _materialization(server, asset, cell)["metadataEntries"]}


def _files(project: Project) -> dict[Path, tuple[int, int]]:
    """Return size and time of change of everything beside and under the data root, Dagster's own history left out."""
    beside = project.locations.root.parent.rglob("*")
    found = {path: path.stat() for path in beside if not path.is_relative_to(project.home)}
    return {path: (status.st_size, status.st_mtime_ns) for path, status in found.items()}
