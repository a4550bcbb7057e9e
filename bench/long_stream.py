"""Memory and accuracy over 100,000 images: `python -m bench.long_stream FOLDER`.

FOLDER is that of `bench.leaderboard`. A published ResNet-20 visits five shifts of 1,000 CIFAR-10 test images, corrupted
here, 20 times (`recurring: 20`, as in Hoang et al. 2024, "Persistent test-time adaptation in recurring testing
scenarios"). Data and results lie in $TTA_DATA_ROOT; finished evaluations are not repeated. The page is
docs/long-streams.md, with its picture.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from bench.leaderboard import DOCS, MODELS, first_test_images, run_benchmark, write_benchmark
from tta_pipeline.report.figure_style import as_png
from tta_pipeline.report.progress_figures import progress_lines
from tta_pipeline.report.queries import STREAM_PROGRESS
from tta_pipeline.report.tables import Table, query
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.util.locations import Locations

NAME = "long_stream"
CORRUPTIONS = ("gaussian_noise", "motion_blur", "fog", "contrast", "jpeg_compression")
EXPERIMENTS: Mapping[str, Mapping[str, object]] = {
    "tent": {"method": "tent"},
    "tent_fast": {"method": "tent", "hyperparameters": {"lr": 0.01}},
    "asr": {"method": "asr"},
    "roid": {"method": "roid"},
    "petta": {"method": "petta"},
}
OUTCOME = """
SELECT c.experiment, c.num_images, 1 - c.accuracy AS error, c.collapsed_at, 1 - c.accuracy_after AS error_after,
       max(e.peak_rss_gib) FILTER (e.position = 0) AS first_gib,
       max(e.peak_rss_gib) FILTER (e.position < 50) AS half_way_gib, max(e.peak_rss_gib) AS last_gib
FROM stream_collapses AS c JOIN latest_evaluations AS e USING (benchmark, shift_set, experiment, subset, seed, stream)
WHERE c.benchmark = ? AND c.stream = '5' GROUP BY ALL ORDER BY error
"""


def main(folder: Path) -> None:
    """Run the unfinished evaluations, and write the page."""
    locations = Locations.from_environment()
    sys.path.append(str(folder))  # for resnet.py
    content = {
        "title": "Five shifts, visited 20 times",
        "shift_set": "cifar_10_c",
        "source": {
            "kind": "generated", "clean": str(first_test_images(locations, folder)), "severity_table": "cifar_c"
        },
        "corruptions": list(CORRUPTIONS),
        "severities": [5],
        "image_size": 32,
        "shards": {"num_shards": 1},
        "models": {"resnet20": MODELS["resnet"](folder)},
        "experiments": {"source": {"model": "resnet20", "method": "source", "batch_size": 200}, **_streams()},
    }  # fmt: skip
    write_benchmark(locations, NAME, content)
    run_benchmark(folder, NAME)
    write(locations)


def write(locations: Locations) -> None:
    """Write the page and its picture from the results."""
    with open_metrics(locations.metrics) as connection:
        found = query(connection, OUTCOME, [NAME])
        progress = query(connection, STREAM_PROGRESS, [NAME, "cifar_10_c"])
    (DOCS / "images" / "long_stream.png").write_bytes(as_png(progress_lines(progress)))
    (DOCS / "long-streams.md").write_text("\n".join(_page(found)) + "\n")


def _streams() -> dict[str, object]:
    common = {"model": "resnet20", "batch_size": 200, "preset": "cifar"}
    protocol = {"shift": "continual", "recurring": 20}
    return {name: {**common, **settings, "protocol": protocol} for name, settings in EXPERIMENTS.items()}


def _page(found: Table) -> Iterator[str]:
    yield f"""# Streams that last

Made by `python -m bench.long_stream FOLDER` with torch {torch.__version__}.
A published ResNet-20 of CIFAR-10 under five corruptions at severity 5, 1,000 test images each, that come again 20
times: 100,000 images without a reset, batches of 200, preset `cifar`; `tent_fast` has ten times the learning rate.
The images were JPEG files, and were **corrupted here**: these figures compare with each other, and with no published
table.

![Accuracy over the stream](images/long_stream.png)

*Memory* is the peak resident memory of the process: after the first shift, half way, and at the end of the stream.
*Collapsed at* is explained in [protocols](protocols.md).

| experiment | images | error | collapsed at | error from there | memory at first, GiB | half way | at the end |
|---|---|---|---|---|---|---|---|"""
    columns = (
        "experiment", "num_images", "error", "collapsed_at", "error_after", "first_gib", "half_way_gib", "last_gib"
    )  # fmt: skip
    for name, images, error, at, after, *memory in zip(*map(found.column, columns), strict=True):
        collapse = "never | " if at is None else f"{at:,} | {100 * after:.1f} %"
        peaks = " | ".join(f"{each:.2f}" for each in memory)
        yield f"| {name} | {images:,} | {100 * error:.1f} % | {collapse} | {peaks} |"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
