"""A simulated cluster: `python -m bench.cluster [WORKERS [EXPERIMENTS [SEEDS]]]`, by default 500, 400 and 3.

Real are the benchmark file, the planner, the submissions, the plans, the result of each evaluation, the process that
publishes them, and the database. Simulated are the workers. They sleep instead of computing, and fail at random: a node
is lost in the middle of a piece, a job is preempted and starts again, the file system stalls, a write is torn.
Unfinished work is submitted again until nothing is left.
"""

import hashlib
import json
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

import tta_pipeline as tta
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.domain.cells import Cell, PartitionKey, parse_key
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.work.pieces import Piece
from tta_pipeline.evaluation.work.planner import Planner
from tta_pipeline.extras.cluster.overview import Overview
from tta_pipeline.extras.cluster.submission import Condition, State, Submission
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.names import find_results
from tta_pipeline.results.plans import Plan, PlannedSegment, PlannedStream, write_plan
from tta_pipeline.results.result_files import Result, store_result, utc_now
from tta_pipeline.shards.manifest import MANIFEST_FILE, read_manifest

NAME = "simulated"
WORK_S = 0.05
"""Seconds that a worker sleeps for each evaluation."""
LOST, PREEMPTED, STALLED, TORN = 0.02, 0.03, 0.01, 0.01
"""Shares of the pieces with a lost node, a preempted job, a stalled file system, and a torn write."""
STALL_S = 5.0
_FIRST = Cell(corruption="fog", severity=5)
_METHODS = 20
_MODEL = "{kind: torchvision, architecture: resnet18, weights: IMAGENET1K_V1}"


def main(num_workers: int = 500, num_experiments: int = 400, num_seeds: int = 3) -> None:
    """Simulate, compare the results with the requested ones, and print the figures."""
    with tempfile.TemporaryDirectory(prefix="tta-cluster-") as folder:
        locations = Locations(root=Path(folder))
        row = prepare(locations, num_experiments, num_seeds)
        benchmark = load_all_benchmarks(locations).benchmark(NAME)
        write_plans(benchmark, locations)
        program = [sys.executable, "-m", "bench.cluster", "--publish", folder]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as publisher:
            try:
                figures = run(benchmark, locations, row, num_workers=num_workers)
            finally:
                publisher.terminate()
            told = publisher.communicate()[0].splitlines()
        figures |= check(benchmark, locations)
        table = Table("what", "figure", title=f"{num_workers} workers that sleep, {num_experiments} experiments")
        for name, value in {**figures, "publications meanwhile": "; ".join(told[-3:])}.items():
            table.add_row(name, value)
        Console(width=110).print(table)


def prepare(locations: Locations, num_experiments: int, num_seeds: int) -> Evaluation:
    """Write the benchmark file and a shard set for each cell, and return a real evaluation of one of them."""
    images, made = locations.root / "images", locations.root / "made"
    _write_benchmark(locations, images, num_experiments, num_seeds)
    _draw(images / _FIRST.path)
    tta.shard(images / _FIRST.path, made / _FIRST.path, samples_per_shard=100)
    manifest = read_manifest(made / _FIRST.path)
    for cell in load_all_benchmarks(locations).benchmark(NAME).cells:
        target = locations.shards(NAME, cell)
        target.mkdir(parents=True)
        own = manifest.model_copy(update={"benchmark": NAME, "corruption": cell.corruption, "severity": cell.severity})
        (target / MANIFEST_FILE).write_bytes(own.serialise())
    network = tta.load_model("torchvision:resnet18", num_classes=2, weights=None, mean=(0.5,) * 3, std=(0.5,) * 3)
    return tta.evaluate(tta.build("source", network, num_classes=2), made / _FIRST.path, batch_size=10)


def _write_benchmark(locations: Locations, images: Path, num_experiments: int, num_seeds: int) -> None:
    models = [f"m{number}" for number in range(max(1, num_experiments // _METHODS))]
    rates = [f"{{tent: {{lr: {1 + number}.0e-4}}, name: tent_{number}}}" for number in range(_METHODS)]
    corruptions = (*load_all_benchmarks(locations).benchmark("digits_c").corruptions, "speckle_noise",
    "gaussian_blur", "spatter",
                   "saturate")  # fmt: skip
    text = f"""
title: A simulated cluster
subset: true
source: {{kind: folder, root: {images}}}
corruptions: [{", ".join(corruptions)}]
image_size: 32
shards: {{samples_per_shard: 100}}
models: {{{", ".join(f"{name}: {_MODEL}" for name in models)}}}
experiments: {{}}
matrix: [{{models: [{", ".join(models)}], methods: [{", ".join(rates)}], seeds: {list(range(num_seeds))}}}]
"""
    locations.benchmark_files.mkdir(parents=True)
    (locations.benchmark_files / f"{NAME}.yaml").write_text(text)


def _draw(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.JPEG")


def _unfinished_keys(results: ExperimentResults) -> Iterator[PartitionKey]:
    """Yield the keys at which a cell has no result by the plan."""
    finished = results.finished_keys()
    return (key for key in results.keys if key not in finished)


def _parts(experiment: str, stream: StreamPlan) -> str:
    """Return the parts of the fingerprint of a stream, which has one segment of one cell."""
    return json.dumps({"experiment": experiment, "stream": stream.key.key, "seed": stream.seed})


def _fingerprint(experiment: str, stream: StreamPlan) -> str:
    return hashlib.sha256(_parts(experiment, stream).encode()).hexdigest()


def write_plans(benchmark: Benchmark, locations: Locations) -> None:
    """Write what each experiment asks for, as a run does that has model and data in its hands."""
    for name in benchmark.experiments:
        results = ExperimentResults(benchmark=benchmark, experiment_name=name, locations=locations)
        streams = tuple(
            PlannedStream(
                key=stream.key.key,
                seed=stream.seed,
                segments=(
                    PlannedSegment(fingerprint=_fingerprint(name, stream), cells=(stream.segments[0].cells[0].key,)),
                ),
            )
            for key in results.keys
            for stream in results.plans(key)
        )
        plan = Plan(benchmark=NAME, file_sha256=benchmark.file_sha256, labels=results.labels, streams=streams)
        write_plan(locations, plan)


def run(benchmark: Benchmark, locations: Locations, row: Evaluation, *, num_workers: int) -> dict[str, str]:
    """Submit the unfinished work until nothing is left, and return figures."""
    planned_s, pieces_of_rounds, begun = [], [], time.monotonic()
    while True:
        before, cpu_before = time.monotonic(), time.process_time()
        planner = Planner(
            benchmark=benchmark,
            locations=locations,
            experiments=tuple(benchmark.experiments),
            unfinished_keys=_unfinished_keys,
        )
        pieces = [
            each
            for each in planner.plan_pieces(planner.find_unfinished(), by="stream", num_devices=num_workers)
            if each.stage == "evaluations"
        ]
        planned_s.append(f"{time.monotonic() - before:.1f} ({time.process_time() - cpu_before:.1f} CPU)")
        if not pieces:
            break
        submission = Submission.create(locations, benchmark=NAME, engine="none", pieces=pieces, compute={})
        sys.stderr.write(f"round {len(pieces_of_rounds) + 1}: {len(pieces):,} pieces\n")
        pieces_of_rounds.append(f"{len(pieces):,}")
        cluster = Cluster(benchmark, locations, row, seed=len(pieces_of_rounds))
        cluster.start(submission, num_workers)
        overview = Overview(submission=submission, states=cluster.states(submission))
        assert overview.is_over, "no piece runs or waits when all workers have ended"
        submission.mark_ended()
    wall_s = time.monotonic() - begun
    first = locations.submissions(NAME) / "1" / "submission.json"
    num_results = sum(len(benchmark.cells) * len(each.all_seeds) for each in benchmark.experiments.values())
    return {
        "pieces of each round": ", ".join(pieces_of_rounds),
        "planner, s": ", ".join(planned_s),
        "file of the first submission, MB": f"{first.stat().st_size / 1e6:.1f}",
        "time of all rounds, s": f"{wall_s:,.0f}",
        "results, 1/s": f"{num_results / wall_s:,.0f}",
    }


class Cluster:
    """An engine whose workers are threads that sleep."""

    def __init__(self, benchmark: Benchmark, locations: Locations, row: Evaluation, *, seed: int) -> None:
        self._benchmark, self._row = benchmark, row
        self._results = {
            name: ExperimentResults(benchmark=benchmark, experiment_name=name, locations=locations)
            for name in benchmark.experiments
        }
        self._keys = {key.key: key for key in next(iter(self._results.values())).keys}
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        self._conditions: dict[int, Condition] = {}
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()

    def start(self, submission: Submission, num_workers: int) -> None:
        """Let the workers take pieces until none is left, and return when all workers have ended."""
        for number in range(len(submission.pieces)):
            self._waiting.put(number)
        workers = [threading.Thread(target=self._work, args=(submission,)) for _ in range(num_workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def states(self, submission: Submission) -> tuple[State, ...]:
        """Return how each piece ended."""
        return tuple(
            State(condition=self._conditions.get(number, "waiting")) for number in range(len(submission.pieces))
        )

    def _work(self, submission: Submission) -> None:
        while True:
            try:
                number = self._waiting.get_nowait()
            except queue.Empty:
                return
            fate = self._random.random()
            is_preempted = LOST < fate < LOST + PREEMPTED and number not in self._conditions
            if fate > 1 - STALLED:
                time.sleep(STALL_S)
            streams = list(self._streams(submission.pieces[number]))
            for position, (results, stream) in enumerate(streams):
                if (fate < LOST or is_preempted) and position == len(streams) // 2:
                    break
                self._evaluate(results, stream)
            else:
                self._conditions[number] = "done"
                continue
            self._conditions[number] = "waiting" if is_preempted else "lost"
            if is_preempted:
                self._waiting.put(number)

    def _streams(self, piece: Piece) -> Iterator[tuple[ExperimentResults, StreamPlan]]:
        for asset in piece.assets:
            results = self._results[asset.rpartition("/")[2]]
            for key in piece.keys:
                yield from ((results, stream) for stream in results.plans(self._keys[key]))

    def _evaluate(self, results: ExperimentResults, stream: StreamPlan) -> None:
        """Store an evaluation of *stream* unless there is one, as a real run does."""
        name, (cell,) = results.experiment_name, stream.segments[0].cells
        fingerprint, key = _fingerprint(name, stream), results.key_folder(stream.key)
        folder = results.results_folder / key
        if any(True for _ in find_results(folder, fingerprint)):
            return
        time.sleep(WORK_S)
        if self._random.random() < TORN:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f".unpublished-torn-{fingerprint[:16]}.json").write_bytes(b'{"format":')
        place = replace(
            self._row.cell, benchmark=NAME, corruption=cell.corruption, severity=cell.severity, seed=stream.seed,
            stream=stream.key.key,
        )  # fmt: skip
        setup = replace(
            self._row.setup, method=results.spec.method, fingerprint=fingerprint,
            fingerprint_parts=_parts(name, stream),
        )  # fmt: skip
        row = replace(self._row, labels=results.labels.of_shift(cell.corruption), cell=place, setup=setup)
        now = utc_now()
        result = Result(
            kind="evaluation", benchmark=NAME, key=key, fingerprint=fingerprint, run_id="simulated", started_at=now,
            finished_at=now, versions={}, evaluations=(row,),
        )  # fmt: skip
        store_result(results.results_folder, result)


def check(benchmark: Benchmark, locations: Locations) -> dict[str, str]:
    """Compare result files and database with the requested results, and return figures.

    Raises:
        AssertionError: a result is missing, or exists twice.
    """
    begun = time.monotonic()
    publish_metrics(locations)
    lag_s = time.monotonic() - begun
    wanted = 0
    for name in benchmark.experiments:
        results = ExperimentResults(benchmark=benchmark, experiment_name=name, locations=locations)
        for key in results.keys:
            for stream in results.plans(parse_key(key.key, results.keys)):
                folder = results.results_folder / results.key_folder(key)
                found = [path.name for path in find_results(folder, _fingerprint(name, stream))]
                assert len(found) == 1, f"{name} at {key.key} has the results {found}; expected one"
                wanted += 1
    with open_metrics(locations.metrics) as connection:
        (count,) = connection.execute("SELECT count(*) FROM evaluations WHERE counts").fetchall()[0]
    assert count == wanted, f"the database has {count} evaluations; expected {wanted}"
    files = [path.stat().st_size for path in locations.results(NAME).rglob("*.json")]
    return {
        "results, each once, also in the database": f"{wanted:,}",
        "last publication after the last result, s": f"{lag_s:.1f}",
        "bytes of a result": f"{sum(files) / len(files):,.0f}",
        "database, MB": f"{locations.metrics.stat().st_size / 1e6:,.0f}",
        "inodes of the results": f"{sum(1 for _ in locations.results(NAME).rglob('*')):,}",
    }


def publish(locations: Locations) -> None:
    """Publish repeatedly, as the only publishing process, and print the duration of each publication."""
    while True:
        begun = time.monotonic()
        num_added = publish_metrics(locations).num_added
        sys.stdout.write(f"{num_added:,} results in {time.monotonic() - begun:.1f} s\n")
        sys.stdout.flush()
        time.sleep(5)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--publish"]:
        publish(Locations(root=Path(sys.argv[2])))
    else:
        main(*map(int, sys.argv[1:]))
