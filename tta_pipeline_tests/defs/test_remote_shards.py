"""A benchmark file whose root is a URL goes from there to results, and has no shard on disk."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import Project
from tta_pipeline_tests.defs.in_process import execute, what_failed
from tta_pipeline_tests.defs.test_shard_kinds import (  # noqa: F401 - a fixture
    CELLS,
    KEYS,
    LABELS,
    _weights,
    write_shards,
)
from tta_pipeline_tests.loading.servers import Web, web_server

FILE = """
title: Shards far away
subset: true
images: {{kind: shards, root: "{root}", clean: "{clean}"}}
class_map: {names}
corruptions: [fog]
severities: [1, 5]
image_size: 32
models:
  net: {{kind: torchvision, architecture: shufflenet_v2_x0_5, weights: IMAGENET1K_V1}}
experiments:
  norm: {{model: net, method: norm, batch_size: 4}}
"""

STEPS = ("tar_shards", "shard_manifest", "evaluation/norm")
SETS = ("far/clean", "near", "near/clean")


@pytest.fixture
def web(project: Project, tmp_path: Path) -> Iterator[Web]:
    """A server of shards that webdataset wrote, and two benchmarks of them: `far`, at URLs, and `near`."""
    write_shards(tmp_path)
    names = tmp_path / "names.json"
    names.write_text(json.dumps([f"class {label}" for label in range(1000)]))
    with web_server(tmp_path / "theirs") as server:
        for name, root in (("far", server.url), ("near", str(tmp_path / "theirs"))):
            project.add_benchmark(name, FILE.format(root=root, clean=f"{root}/val", names=names))
        yield server


@pytest.mark.usefixtures("_weights")
def test_shards_at_urls_give_the_results_of_shards_here(project: Project, web: Web):
    """Read once for the manifest, streamed for the evaluation; nothing else differs, and a second run asks for none."""
    of_cells = [f"far/{name}" for name in STEPS]
    finished = execute(project, [*of_cells, *(f"{name}/{step}" for name in SETS for step in STEPS)], KEYS)
    assert finished.success, what_failed(finished)

    for cell in CELLS:
        far = ShardSet.open(project.locations.shards("far", cell))
        near = ShardSet.open(project.locations.shards("near", cell))
        assert [*LABELS, *LABELS] == far.index.labels.tolist()
        assert near.index.table.equals(far.index.table)
        assert not list(far.folder.glob("*.tar"))
    publish_metrics(project.locations)
    with open_metrics(project.locations.metrics) as connection:
        rows = connection.execute(
            "SELECT corruption, severity, count(DISTINCT order_hash), count(DISTINCT error), count(*) "
            "FROM evaluations WHERE counts GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    assert [("clean", 0, 1, 1, 2), ("fog", 1, 1, 1, 2), ("fog", 5, 1, 1, 2)] == rows
    asked = [request for request in web.requests() if not request.endswith("=0-0")]

    again = execute(project, of_cells, KEYS)

    assert again.success, what_failed(again)
    assert asked == [request for request in web.requests() if not request.endswith("=0-0")]


def test_a_server_that_went_away_is_one_line(project: Project, web: Web, tmp_path: Path):
    """The run names the URL; the manifest of the cell that had one stays."""
    assert execute(project, ["far/tar_shards", "far/shard_manifest"], ["fog|5"]).success
    shutil.rmtree(tmp_path / "theirs" / "fog")

    finished = project.materialize("far/tar_shards", "--partition", "fog|5")

    assert finished.returncode != 0
    assert f"{web.url}/fog/5 does not exist" in finished.stderr
    assert 8 == ShardSet.open(project.locations.shards("far", Cell(corruption="fog", severity=5))).manifest.num_samples


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("http:/host/a", "images.root: the location begins with 'http:'"),
        ("https://host/a-{000..003}.tar", "names https://host/a-{000..003}.tar for"),
    ],
)
def test_what_cannot_be_streamed_is_refused_when_the_file_is_loaded(tmp_path: Path, root: str, said: str):
    """The error says what to write."""
    path = tmp_path / "far.yaml"
    path.write_text(FILE.format(root=root, clean="https://host/val", names="names.json"))

    with pytest.raises(BenchmarkFileError) as caught:
        load_benchmark(path)

    assert said in str(caught.value)
