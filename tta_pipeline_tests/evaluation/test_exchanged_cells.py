"""An evaluation reads the shards of its cell, or stops; what their folder holds is not believed by its name."""

from pathlib import Path

import pytest
import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ManifestError, PipelineError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import SMALL, SMALL_CELLS, Project
from tta_pipeline_tests.evaluation.conftest import copy_small
from tta_pipeline_tests.evaluation.small import run_at
from tta_pipeline_tests.result_paths import result_paths
from tta_pipeline_tests.shards.cell import flip_sample


@pytest.fixture
def own(sweep: Project, tmp_path: Path) -> ExperimentResults:
    """The small benchmark without results, and the experiment that adapts nothing."""
    data = copy_small(sweep.locations.root, tmp_path)
    benchmark = Benchmark.model_validate({**yaml.safe_load(SMALL), "name": "small"})
    return ExperimentResults(benchmark=benchmark, experiment_name="source", locations=data)


def evaluate(own: ExperimentResults, cell: Cell) -> None:
    """Evaluate *cell*, finished before or not."""
    run_at(own, cell, force=True)


def test_cells_that_were_exchanged_are_not_evaluated(own: ExperimentResults):
    """Nor is the manifest of one taken for that of the other where finished cells are looked for."""
    one, other = SMALL_CELLS[0], SMALL_CELLS[2]
    evaluate(own, one)
    folders = [own.folder(cell) for cell in (one, other)]
    folders[0].rename(folders[0].with_name("aside"))
    folders[1].rename(folders[0])
    folders[0].with_name("aside").rename(folders[1])

    with pytest.raises(ManifestError, match=r"contrast\|3.*gaussian_noise\|3"):
        evaluate(own, one)
    with pytest.raises(ManifestError, match=r"gaussian_noise\|3.*contrast\|3"):
        own.manifest(other)


def test_a_flipped_bit_ends_an_evaluation_though_the_files_times_are_the_same(own: ExperimentResults):
    """No result is written."""
    cell = SMALL_CELLS[0]
    shard_set = ShardSet.open(own.folder(cell))
    shard_set.require_intact()  # notes inode, size and time of each file, which stay
    path = flip_sample(shard_set, 77)

    with pytest.raises(PipelineError, match=rf"{path.name}.*\b{shard_set.index.keys[77]} .* byte \d+"):
        evaluate(own, cell)
    assert not result_paths(own.locations.root)
