"""Section of consecutive cells as an experiment evaluates them, and of a stream that is killed and resumed."""

import hashlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import BENCHMARK, MEAN, STD, cells_of, lease_device
from bench.gpu_day.plan import Plan, plan_of
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import PartitionKey, StreamKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import Rows, run_experiment
from tta_pipeline.results.names import find_results

_NUM_OF_SET = 75
_MOST_S = 360
_STREAM = StreamKey(severity=5)


def cells(plan: Plan) -> Iterator[Figure]:
    """Evaluate the cells with source, then a stream with tent: undisturbed, killed, and resumed."""
    with lease_device(plan):
        pass  # only checks the device: each experiment leases it again
    locations = Locations(root=plan.data)
    for folder in (locations.results(BENCHMARK), locations.states(BENCHMARK)):
        shutil.rmtree(folder, ignore_errors=True)  # with results of an earlier day, nothing would be evaluated
    yield from _evaluate_cells(plan)
    yield from _kill_and_resume(plan)


def _evaluate_cells(plan: Plan) -> Iterator[Figure]:
    own = _experiment(plan, "source")
    started = time.perf_counter()
    rows = _evaluate(own, cells_of(plan), plan)
    whole_s = time.perf_counter() - started
    num = len(rows)
    yield Figure(
        what="images/s of a cell", found=statistics.median(row.scores.num_samples / row.time.wall_s for row in rows),
        unit="images/s", is_speed=True,
    )  # fmt: skip
    gap_s = (whole_s - sum(row.time.wall_s for row in rows)) / num
    yield Figure(what="seconds of a cell outside its pass, start-up included", found=gap_s, unit="s", is_speed=True)
    yield Figure(
        what=f"{_NUM_OF_SET} cells x {rows[0].scores.num_samples:,} images, source", found=whole_s * _NUM_OF_SET / num,
        unit="s", asked=f"< {_MOST_S}", is_speed=True, text=f"{num} cells measured, x {_NUM_OF_SET / num:g}",
    )  # fmt: skip


def _kill_and_resume(plan: Plan) -> Iterator[Figure]:
    own = _experiment(plan, "tent")
    undisturbed, _ = _evaluate_stream(plan, own)
    shutil.rmtree(own.results_folder)  # otherwise the stream would be finished
    _kill_after_a_cell(plan, own)
    disturbed, num_resumed = _evaluate_stream(plan, own)
    yield Figure(what="cells that were left after the kill", found=num_resumed, asked=">= 1")
    num_other = sum(one != other for one, other in zip(undisturbed, disturbed, strict=True))
    yield Figure(what="cells with other predictions than undisturbed", found=num_other, asked="== 0")


def _evaluate_stream(plan: Plan, own: ExperimentResults) -> tuple[list[str], int]:
    """Evaluate the rest of the stream; return hashes of its predictions, and the number of cells that were left."""
    num_before = len(_results(own))
    hashes = [str(row.predicted.predictions_sha256) for row in _evaluate(own, [_STREAM], plan)]
    return hashes, len(_results(own)) - num_before


def _results(own: ExperimentResults) -> list[Path]:
    return list(find_results(own.results_folder / own.key_folder(_STREAM)))


def _kill_after_a_cell(plan: Plan, own: ExperimentResults) -> None:
    """Evaluate the stream in another process, and kill the process as soon as it has the result of a cell."""
    code = "import sys; from bench.gpu_day.cells import evaluate_disturbed; evaluate_disturbed(*sys.argv[1:])"
    num_before = len(_results(own))
    command = [sys.executable, "-c", code, plan.device if plan.is_rehearsal else "", str(plan.folder)]
    with subprocess.Popen(command) as process:
        while process.poll() is None and len(_results(own)) <= num_before:
            time.sleep(0.002)
        process.kill()


def evaluate_disturbed(rehearsed_on: str, folder: str) -> None:
    """Evaluate the stream, in the process that will be killed."""
    plan = plan_of(rehearsed_on=rehearsed_on, folder=Path(folder))
    _evaluate(_experiment(plan, "tent"), [_STREAM], plan)


def _evaluate(own: ExperimentResults, keys: Sequence[PartitionKey], plan: Plan) -> Rows:
    """Evaluate what is left of *own* at *keys*, and return all evaluations."""
    found = run_experiment(own, keys, machine=Machine(device=plan.device), run_id="gpu_day", tell=lambda _: None)
    return tuple(row for key in keys for row in found[key])


def _experiment(plan: Plan, name: str) -> ExperimentResults:
    """Return one of two experiments: source on each cell, or tent on a stream over all of them."""
    weights = plan.folder / "weights.safetensors"
    model = {
        "kind": "checkpoint", "architecture": plan.architecture, "path": str(weights),
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(), "mean": MEAN, "std": STD,
    }  # fmt: skip
    # Adam, since its counters must be restored too; deterministic, to compare bit by bit.
    tent = {
        "model": "own", "method": "tent", "precision": "bf16", "protocol": "continual", "deterministic": True,
        "batch_size": plan.small_batch, "subset": {"first": plan.resumed_images},
        "hyperparameters": {"optimizer": "adam"},
    }  # fmt: skip
    source = {"model": "own", "method": "source", "precision": "bf16", "batch_size": plan.batch_size}
    content = {
        "name": BENCHMARK, "title": "GPU day", "subset": True,
        "images": {"kind": "folder", "root": str(plan.folder / "tree")},
        "corruptions": [cell.corruption for cell in cells_of(plan)], "severities": [5],
        "image_size": plan.image_size, "shards": {"num_shards": plan.num_shards}, "models": {"own": model},
        "experiments": {"source": source, "tent": tent},
    }  # fmt: skip
    return ExperimentResults(
        benchmark=Benchmark.model_validate(content), experiment_name=name, locations=Locations(root=plan.data)
    )
