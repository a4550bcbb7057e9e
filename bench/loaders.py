"""The reader against other loaders, and line by line against the limit: `python -m bench.loaders`.

The loaders of `bench.other_loaders` take part if their packages are installed.
"""

import os
import statistics
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import checksum_cost, reader_lines
from bench.figures import spread
from bench.other_loaders import installed_loaders
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.extras.loader_bench.loaders import LOADERS
from tta_pipeline.extras.loader_bench.measure import LoaderRow, Settings, measure
from tta_pipeline.extras.loader_bench.prepared_data import PreparedData, generate_shards, prepared
from tta_pipeline.loading.reader import Stream
from tta_pipeline.util.processes import Workers

REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))
NUM_CORES = len(os.sched_getaffinity(0))
BATCH_SIZE = 64
FIRST_SYSTEM = "webdataset"
WORKER_COUNTS = (1, 2, 4)
"""Numbers of workers to try for the first system; the best one counts."""
COMPARED = {**LOADERS, **installed_loaders()}

Repeat = Mapping[str, LoaderRow]
"""Measurements of one turn of all loaders, by their names."""


def main() -> None:
    """Make the images, measure, and print two tables."""
    root = Path(os.environ.get("TTA_DATA_ROOT", "data")) / "bench"
    table = Table(title=f"Loaders, batches of {BATCH_SIZE}, {NUM_CORES} cores: medians \\[range]", box=None)
    for name in ("what", "indexed", "reference", "ratio", "asked"):
        table.add_column(name)
    lines = Table(
        *reader_lines.COLUMNS, title="The reader line by line; the last ratios are asked to be >= 0.9", box=None
    )
    for size, num_images, asked in ((64, 20_000, 11), (224, 6_000, 6)):
        settings = ShardSettings(num_shards=16)
        shards = generate_shards(root / f"loaders_{size}", num_images=num_images, image_size=size, settings=settings)
        with prepared(shards, COMPARED) as data:
            repeats = [_repeat(data) for _ in range(REPEATS)]
        _add_rows(table, repeats, size, asked_of_first_system=asked)
        with Workers(1) as workers:
            shape = {"image_size": size, "batch_size": BATCH_SIZE, "num_threads": NUM_CORES}
            what, ratio = workers.submit(checksum_cost.checking_row, shards, **shape).result()
            for row in workers.submit(reader_lines.line_rows, shards, **shape).result():
                lines.add_row(*row)
        table.add_row(what, "", "", ratio, "<= 1.02")
    Console(width=150).print(table, lines)


def _repeat(data: PreparedData) -> Repeat:
    """Measure each loader once, one after another."""
    others = {name: loader for name, loader in COMPARED.items() if name != FIRST_SYSTEM}
    settings, say = Settings(batch_size=BATCH_SIZE, repeats=1), Console(stderr=True).print
    first = Settings(batch_size=BATCH_SIZE, repeats=1, num_threads=WORKER_COUNTS)
    rows = (*measure(data, others, settings, say), *measure(data, {FIRST_SYSTEM: COMPARED[FIRST_SYSTEM]}, first, say))
    return {row.loader: row for row in rows}


def _add_rows(table: Table, repeats: list[Repeat], size: int, *, asked_of_first_system: int) -> None:
    speeds = {name: [repeat[name].images_per_s for repeat in repeats] for name in repeats[0]}
    ours = speeds.pop("indexed")
    for name, reference in speeds.items():
        ratios = [mine / other for mine, other in zip(ours, reference, strict=True)]
        asked = f">= {asked_of_first_system}" if name == FIRST_SYSTEM else "> 1"
        what = f"{size}x{size} images/s against {name}"
        table.add_row(what, spread(ours), spread(reference), spread(ratios, digits=2), asked)
    rows = [repeat["indexed"] for repeat in repeats]
    first_s = [row.time_to_first_batch_s for row in rows]
    table.add_row(
        f"{size}x{size} time to first batch, s", f"{statistics.median(first_s):.4f} [{min(first_s):.4f}-"
        f"{max(first_s):.4f}]", "", "", "<= 0.02" if size == 64 else "",
    )  # fmt: skip
    batches_mib = Stream.prefetch * BATCH_SIZE * size**2 * 3 / 2**20
    own_mib = statistics.median(row.peak_memory_mib - row.base_memory_mib for row in rows)
    table.add_row(f"{size}x{size} anonymous memory, MiB", f"{own_mib:,.0f}", "", "", f"<= {batches_mib + 100:,.0f}")


if __name__ == "__main__":
    main()
