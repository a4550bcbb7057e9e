"""Several processes evaluate a cell together, and the result is that of one."""

import json
from pathlib import Path

import pytest

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.ranks import Ranks
from tta_pipeline.evaluation.runner import ExperimentRunner
from tta_pipeline.util.partitions import Cell
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark, launcher, new_project
from tta_pipeline_tests.launcher import forked_python

BIN = Path(__import__("sys").executable).parent
KEY = "small/evaluation/norm"


def launched(num_processes: int, *, are_forked: bool = True) -> str:
    """Return the run configuration that has evaluations done by torchrun; without *are_forked* it is a new Python."""
    python = forked_python(launcher().address)
    options = f"--nproc-per-node {num_processes}"
    forked = f"{python} -m torch.distributed.run {options} --no-python {python}"
    command = forked if are_forked else f"{BIN}/torchrun {options}"
    return json.dumps({"resources": {"compute": {"config": {"launch": command, "device": "cpu"}}}})


@pytest.fixture(scope="module")
def own_sweep(tmp_path_factory: pytest.TempPathFactory, sweep: Project) -> Project:
    """A copy of the small benchmark with its shards and model, but without results."""
    project = new_project(tmp_path_factory.mktemp("launched"))
    project.add_benchmark("small", SMALL)
    copy_benchmark(sweep, project, without=("source", "report", "results"))
    return project


def newest(project: Project, experiment: str) -> dict:
    """Return the newest facts of contrast 5."""
    folder = project.locations.results("small") / "evaluations" / experiment / "contrast-5"
    return json.loads(max(folder.glob("*.json")).read_text())["record"]["facts"]


def test_two_processes_give_the_result_of_one(own_sweep: Project, sweep: Project):
    """To the last prediction; samples, forwards and calibration too; and the run materializes the cells."""
    finished = own_sweep.materialize(KEY, "--partition-range", "contrast|3...contrast|5", "--config-json", launched(2))
    assert 0 == finished.returncode, finished.stderr[-3000:]
    assert "contrast|5: error" in finished.stderr
    assert "unexpected message" not in finished.stderr

    alone, together = newest(sweep, "norm"), newest(own_sweep, "norm")
    for fact in ("num_samples", "num_correct", "predictions_sha256", "order_hash", "num_forwards", "num_batches"):
        assert alone[fact] == together[fact]
    assert pytest.approx(alone["ece"], abs=1e-6) == together["ece"]

    again = own_sweep.materialize(KEY, "--partition-range", "contrast|3...contrast|5", "--config-json", launched(2))
    assert 0 == again.returncode
    assert newest(own_sweep, "norm") == together


def test_a_method_that_adapts_is_refused_in_several(own_sweep: Project):
    """What one process learns no other one would know; nothing is recorded."""
    benchmark = load_benchmark(own_sweep.locations.benchmark_files / "small.yaml")
    results = ExperimentResults(benchmark=benchmark, experiment_name="tent", locations=own_sweep.locations)
    machine, cell = Machine(device="cpu", decode_threads=1), Cell(corruption="contrast", severity=5)
    with ExperimentRunner(results, machine=machine, run_id="", tell=print, ranks=Ranks(num_ranks=2)) as runner:
        runner.plan(cell)
        with pytest.raises(EvaluationError, match="expected a method that treats each"):
            runner.evaluate(cell)

    assert not (own_sweep.locations.results("small") / "evaluations" / "tent").exists()


def test_processes_that_fail_fail_the_run(own_sweep: Project):
    """What stops them is on its error output; nothing is recorded."""
    fails = json.dumps({"resources": {"compute": {"config": {"launch": "ls --no-such-option"}}}})
    finished = own_sweep.materialize("small/evaluation/tent", "--partition", "contrast|5", "--config-json", fails)

    assert 0 != finished.returncode
    assert "unrecognized option" in finished.stderr
    assert not (own_sweep.locations.results("small") / "evaluations" / "tent").exists()


@pytest.mark.slow
def test_torchrun_stops_with_what_its_processes_say(own_sweep: Project):
    """As an example, that a method cannot be shared; nothing is recorded."""
    config = launched(2, are_forked=False)
    finished = own_sweep.materialize("small/evaluation/tent", "--partition", "contrast|5", "--config-json", config)

    assert 0 != finished.returncode
    assert "expected a method that treats each" in finished.stderr
    assert not (own_sweep.locations.results("small") / "evaluations" / "tent").exists()


def test_staged_cells_give_the_same_predictions(own_sweep: Project, sweep: Project, tmp_path: Path):
    """Each cell's shards are copied to the stage, the copying is timed, and nothing else changes."""
    config = json.dumps({"resources": {"compute": {"config": {"stage_folder": str(tmp_path / "stage")}}}})
    cells = ("--partition-range", "contrast|3...contrast|5")
    finished = own_sweep.materialize("small/evaluation/source", *cells, "--config-json", config)
    assert 0 == finished.returncode, finished.stderr[-3000:]

    straight, staged = newest(sweep, "source"), newest(own_sweep, "source")
    assert straight["predictions_sha256"] == staged["predictions_sha256"]
    assert staged["staging_s"] > straight["staging_s"] == 0
    assert staged["manifest_sha256"] in {path.name for path in (tmp_path / "stage" / "tta_pipeline-staged").iterdir()}
    assert 2 == len(list((tmp_path / "stage" / "tta_pipeline-staged").glob("*/manifest.json")))
