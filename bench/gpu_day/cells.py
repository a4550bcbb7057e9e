"""Section of consecutive cells as an experiment evaluates them, and of a stream that is killed and resumed."""

import hashlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import BENCHMARK, MEAN, STD, cells_of, lease_device
from bench.gpu_day.plan import Plan, plan_of
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import StreamKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.runner import ExperimentRunner

_NUM_OF_SET = 75
_MOST_S = 360
_STREAM = StreamKey(severity=5)


def cells(plan: Plan) -> Iterator[Figure]:
    """Evaluate the cells with source, then a stream with tent: undisturbed, killed, and resumed."""
    with lease_device(plan):
        pass  # only checks the device: each experiment leases it again
    locations = Locations(root=plan.data)
    for folder in (locations.results(BENCHMARK), locations.states(BENCHMARK), locations.predictions(BENCHMARK)):
        shutil.rmtree(folder, ignore_errors=True)  # with results of an earlier day, nothing would be evaluated
    yield from _evaluate_cells(plan)
    yield from _kill_and_resume(plan)


def _evaluate_cells(plan: Plan) -> Iterator[Figure]:
    own = _experiment(plan, "source")
    with _runner(own, plan) as runner:
        for cell in cells_of(plan):
            runner.plan(cell)
        started = time.perf_counter()
        for cell in cells_of(plan):
            runner.evaluate(cell)
        whole_s = time.perf_counter() - started
        rows = [row for cell in cells_of(plan) for row in runner.rows(cell)]
    num = len(rows)
    yield Figure(
        what="images/s of a cell", found=statistics.median(row.num_samples / row.wall_s for row in rows),
        unit="images/s", is_speed=True,
    )  # fmt: skip
    gap_s = (whole_s - sum(row.wall_s for row in rows)) / num
    yield Figure(what="seconds of a cell outside its pass, start-up included", found=gap_s, unit="s", is_speed=True)
    yield Figure(
        what=f"{_NUM_OF_SET} cells x {rows[0].num_samples:,} images, source", found=whole_s * _NUM_OF_SET / num,
        unit="s", asked=f"< {_MOST_S}", is_speed=True, text=f"{num} cells measured, x {_NUM_OF_SET / num:g}",
    )  # fmt: skip


def _kill_and_resume(plan: Plan) -> Iterator[Figure]:
    undisturbed, _ = _evaluate_stream(plan, "undisturbed")
    own = _experiment(plan, "disturbed")
    _kill_after_a_cell(plan, own)
    disturbed, num_resumed = _evaluate_stream(plan, "disturbed")
    yield Figure(what="cells that were left after the kill", found=num_resumed, asked=">= 1")
    num_other = sum(one != other for one, other in zip(undisturbed, disturbed, strict=True))
    yield Figure(what="cells with other predictions than undisturbed", found=num_other, asked="== 0")


def _evaluate_stream(plan: Plan, name: str) -> tuple[list[str], int]:
    """Evaluate the rest of the stream; return hashes of its predictions, and the number of cells that were left."""
    own = _experiment(plan, name)
    num_before = len(_records(own))
    with _runner(own, plan) as runner:
        runner.plan(_STREAM)
        runner.evaluate(_STREAM)
        hashes = [str(row.samples_sha256) for row in runner.rows(_STREAM)]
    return hashes, len(_records(own)) - num_before


def _records(own: ExperimentResults) -> list[Path]:
    return list((own.records_folder / "evaluations" / own.experiment_name).rglob("*.json"))


def _kill_after_a_cell(plan: Plan, own: ExperimentResults) -> None:
    """Evaluate the stream in another process, and kill the process as soon as it has recorded a cell."""
    code = "import sys; from bench.gpu_day.cells import evaluate_disturbed; evaluate_disturbed(*sys.argv[1:])"
    command = [sys.executable, "-c", code, plan.device if plan.is_rehearsal else "", str(plan.folder)]
    with subprocess.Popen(command) as process:
        while process.poll() is None and not _records(own):
            time.sleep(0.002)
        process.kill()


def evaluate_disturbed(rehearsed_on: str, folder: str) -> None:
    """Evaluate the stream, in the process that will be killed."""
    plan = plan_of(rehearsed_on=rehearsed_on, folder=Path(folder))
    with _runner(_experiment(plan, "disturbed"), plan) as runner:
        runner.plan(_STREAM)
        runner.evaluate(_STREAM)


def _runner(own: ExperimentResults, plan: Plan) -> ExperimentRunner:
    return ExperimentRunner(
        own,
        machine=Machine(device=plan.device),
        run_id="gpu_day",
        tell=lambda _: None,
        anew=own.spec.method == "source",
    )


def _experiment(plan: Plan, name: str) -> ExperimentResults:
    """Return one of three experiments of one file, so that none of them adopts the results of another."""
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
        "source": {"kind": "folder", "root": str(plan.folder / "tree")},
        "corruptions": [cell.corruption for cell in cells_of(plan)], "severities": [5],
        "image_size": plan.image_size, "shards": {"num_shards": plan.num_shards}, "models": {"own": model},
        "experiments": {"source": source, "undisturbed": tent, "disturbed": tent},
    }  # fmt: skip
    return ExperimentResults(
        benchmark=Benchmark.model_validate(content), experiment_name=name, locations=Locations(root=plan.data)
    )
