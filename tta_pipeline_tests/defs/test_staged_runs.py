"""A run whose shards are copied to a local disk has the same results."""

import json
import os
from pathlib import Path

import pytest

from tta_pipeline.defs.resources import Compute
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark, new_project
from tta_pipeline_tests.defs.in_process import execute, what_failed
from tta_pipeline_tests.flat_facts import flat_row
from tta_pipeline_tests.result_paths import results_of


def contrast_5(project: Project) -> dict:
    """Return the facts of contrast 5."""
    (found,) = (
        each for each in results_of(project.locations.root, "small", "source") if each.result.key == "contrast-5"
    )
    return flat_row(found.result.evaluations[0])


def test_staged_cells_give_the_same_predictions(sweep: Project, tmp_path: Path):
    """Each cell's shards are copied, and nothing else changes."""
    own = new_project(tmp_path)
    own.add_benchmark("small", SMALL)
    copy_benchmark(sweep, own, without=("source", "report", "results"))
    compute = {"local_scratch_dir": str(tmp_path / "stage")}
    finished = execute(own, ["small/evaluation/source"], ["contrast|3", "contrast|5"], compute=compute)
    assert finished.success, what_failed(finished)

    straight, staged = contrast_5(sweep), contrast_5(own)
    assert straight["predictions_sha256"] == staged["predictions_sha256"]
    manifests = [
        own.locations.root / "small" / "shards" / cell / "manifest.json" for cell in ("contrast/3", "contrast/5")
    ]
    shards = {shard["sha256"] for path in manifests for shard in json.loads(path.read_text())["shards"]}
    assert shards == {path.stem for path in (tmp_path / "stage" / "tta_pipeline-shards").glob("*.tar")}


def test_folders_are_named_as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Or not at all, so that nothing is kept."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    machines = [Compute(local_scratch_dir=name).machine() for name in ("$TMPDIR", "~/stage", "")]

    at_home = Path.home() / "stage"
    assert [tmp_path / f"tta_pipeline-{os.getuid()}", at_home, None] == [each.local_scratch for each in machines]
    assert (at_home, None) == (Compute(cache_dir="~/stage").machine().cache, machines[0].cache)


def test_limits_of_caches_are_in_gib():
    """Half a GiB is 2^29 bytes."""
    machine = Compute(local_scratch_limit_gib=0.5, cache_limit_gib=0.5).machine()

    assert 2**29 == machine.local_scratch_limit_bytes == machine.cache_limit_bytes
