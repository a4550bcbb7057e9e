"""Draws the pictures of docs/reference/protocols.md from the shards of digits_c: `python -m bench.streams`."""

from pathlib import Path
from typing import Any

from bench.stream_figures import stream_picture
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.stream_plans import partition_keys, stream_plans
from tta_pipeline.domain.cells import parse_key
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.open_stream import open_stream
from tta_pipeline.report.figure_style import as_png

ROOT = Path(__file__).parents[1]
STREAMS: dict[str, tuple[Any, str]] = {
    "reset_each_shift": ("reset_each_shift", "fog|5"),
    "continual": ("continual", "5"),
    "continual_clean": ({"shift": "continual", "clean": "after_each"}, "5"),
    "gradual": ("gradual", "all"),
    "mixed": ("mixed", "5"),
    "slow": ("slow", "all"),
    "dynamic": ("dynamic", "5"),
    "correlated": ("correlated", "5"),
    "correlated_dirichlet": ({"shift": "continual", "order": "dirichlet", "delta": 0.1}, "5"),
    "few_classes": ({"shift": "continual", "order": "by_class", "classes_per_batch": 3}, "5"),
    "mixed_correlated": ({"shift": "mixed", "order": "dirichlet", "delta": 0.1}, "5"),
}


def main() -> None:
    """Draw each stream; the shards must exist, as after `make demo`."""
    embedded = load_benchmark(ROOT / "tta_pipeline" / "benchmarks" / "digits_c.yaml")
    folder = ROOT / "docs" / "images" / "protocols"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (protocol, key) in STREAMS.items():
        content = embedded.model_dump(mode="json")
        content["experiments"] = {"own": {"model": "digits_cnn", "method": "source", "protocol": protocol}}
        benchmark = Benchmark.model_validate(content)
        (plan,) = stream_plans(benchmark, "own", parse_key(key, partition_keys(benchmark, "own")))
        locations = Locations.from_environment()
        opened = [
            open_stream(
                [locations.shards(benchmark.name, cell) for cell in segment.cells],
                experiment=benchmark.experiments["own"],
            )
            for segment in plan.segments
        ]
        (folder / f"{name}.png").write_bytes(as_png(stream_picture(opened)))


if __name__ == "__main__":
    main()
