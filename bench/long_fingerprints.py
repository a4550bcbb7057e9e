"""Fingerprints of streams of 600, 2,000 and 15,000 segments: `python -m bench.long_fingerprints [SEGMENTS ...]`.

A recurring stream over 15 corruptions of handwritten digits. The time is for a run that
plans the stream and hashes each segment; the memory is the growth of the process's peak.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.projects import materialize, new_project
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.cells import StreamKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.inputs import Inputs, SharedCache
from tta_pipeline.evaluation.machine import Machine

BENCHMARK = """
title: Long streams
images: {kind: digits, num_test: 100, severity_table: imagenet_c}
severities: [5]
image_size: 32
shards: {num_shards: 1}
models:
  cnn: {kind: trained, epochs: 1}
experiments:
  tent: {model: cnn, method: tent, preset: cifar}
"""
NUM_SEGMENTS = (600, 2_000, 15_000)


def main() -> None:
    """Measure each length in its own process, and print seconds, peak memory and bytes in the records."""
    lengths = [int(argument) for argument in sys.argv[1:]] or list(NUM_SEGMENTS)
    table = Table("segments", "s", "peak grows by, MiB", "parts in the records, MB", title="Fingerprints of a stream")
    with tempfile.TemporaryDirectory(prefix="tta-fingerprints-") as folder:
        new_project(Path(folder), "long", BENCHMARK)
        materialize(Path(folder), "*long/evaluation/tent", "gaussian_noise|5...jpeg_compression|5")
        for number in lengths:
            measured = [sys.executable, "-m", "bench.long_fingerprints", "--measure", folder, str(number)]
            table.add_row(f"{number:,}", *subprocess.check_output(measured, text=True).split())
    Console(width=100).print(table)


def _measure(folder: Path, number: int) -> None:
    locations = Locations(root=folder / "data")
    benchmark = load_benchmark(locations.benchmark_files / "long.yaml")
    content = benchmark.model_dump(mode="json")
    content["experiments"]["tent"]["protocol"] = {
        "shift": "continual",
        "recurring": number // len(benchmark.corruptions),
    }
    results = ExperimentResults(
        benchmark=type(benchmark).model_validate(content), experiment_name="tent", locations=locations
    )
    (plan,) = results.plans(StreamKey(severity=5))
    inputs = Inputs(experiment=results, machine=Machine(device="cpu"), known=SharedCache())
    assert [inputs.model, inputs.arithmetic, inputs.code_sha256]  # read before the measurement
    peak_kib, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    num_bytes = sum(len(each.text) for each in inputs.fingerprints(plan) if each.sha256)
    wall_s = time.perf_counter() - begun
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib
    print(f"{wall_s:.2f} {grown_kib / 2**10:.0f} {num_bytes / 1e6:.1f}")  # noqa: T201 - the answer to `main`


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        _measure(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
