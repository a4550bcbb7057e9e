"""Memory and accuracy over 100,000 images: `python -m bench.long_stream FOLDER`.

FOLDER is that of `bench.leaderboard`. A published ResNet-20 sees two streams of CIFAR-10 test images, corrupted here.
One visits five shifts of 1,000 images 20 times (`recurring: 20`, as in Hoang et al. 2024, "Persistent test-time
adaptation in recurring testing scenarios"). The other has 10,000 images under ten corruptions, each image once for each
corruption, while the severity rises and falls (`slow`, after Press et al. 2023, "RDumb", section 3); its shards have
all five severities, 500,000 images. Data and results lie in $TTA_DATA_ROOT; finished evaluations are not repeated. The
page is docs/long-streams.md, with its pictures; `--page` writes it from the results so far, and runs nothing.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.leaderboard import DOCS, MODELS, first_test_images, run_benchmark, write_benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.figure_style import as_png
from tta_pipeline.report.progress_figures import progress_lines
from tta_pipeline.report.queries import STREAM_PROGRESS
from tta_pipeline.report.tables import Table, query
from tta_pipeline.results.database.database import open_metrics

_METHODS: Mapping[str, Mapping[str, object]] = {
    "tent": {"method": "tent"},
    "tent_fast": {"method": "tent", "hyperparameters": {"lr": 0.01}},
    "asr": {"method": "asr"},
    "roid": {"method": "roid"},
    "petta": {"method": "petta"},
}


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream of 100,000 images, as a benchmark of its own."""

    name: str
    """Name of the benchmark, and of its picture."""
    title: str
    images_of_a_class: int
    corruptions: Sequence[str]
    severities: Sequence[int]
    protocol: Mapping[str, object]
    source_protocol: Mapping[str, object]


RECURRING = Stream(
    name="long_stream",
    title="Five shifts, visited 20 times",
    images_of_a_class=100,
    corruptions=("gaussian_noise", "motion_blur", "fog", "contrast", "jpeg_compression"),
    severities=(5,),
    protocol={"shift": "continual", "recurring": 20},
    source_protocol={"shift": "reset_each_shift"},
)
SLOW = Stream(
    name="slow_stream",
    title="Ten corruptions that rise and fall",
    images_of_a_class=1000,
    corruptions=(
        "gaussian_noise", "shot_noise", "defocus_blur", "motion_blur", "snow", "fog", "brightness", "contrast",
        "pixelate", "jpeg_compression",
    ),
    severities=(1, 2, 3, 4, 5),
    protocol={"shift": "slow"},
    source_protocol={"shift": "slow"},
)  # fmt: skip

_OUTCOME = """
SELECT c.experiment, c.num_images, 1 - c.accuracy AS error, c.collapsed_at, 1 - c.accuracy_after AS error_after,
       max(e.peak_rss_gib) FILTER (e.position = 0) AS first_gib,
       max(e.peak_rss_gib) FILTER (e.position < 50) AS half_way_gib, max(e.peak_rss_gib) AS last_gib
FROM stream_collapses AS c JOIN evaluations AS e USING (benchmark, shift_set, experiment, subset, seed, stream)
WHERE e.counts AND c.benchmark = ? AND c.num_images = 100000 GROUP BY ALL ORDER BY error
"""


def main(folder: Path, *, page_only: bool) -> None:
    """Run the unfinished evaluations, and write the page."""
    locations = Locations.from_environment()
    if not page_only:
        sys.path.append(str(folder))  # for resnet.py
        for stream in (RECURRING, SLOW):
            write_benchmark(locations, stream.name, _benchmark(locations, folder, stream))
            run_benchmark(folder, stream.name)
    write(locations)


def write(locations: Locations) -> None:
    """Write the page and its pictures from the results."""
    found = {}
    with open_metrics(locations.metrics) as connection:
        for stream in (RECURRING, SLOW):
            found[stream.name] = query(connection, _OUTCOME, [stream.name])
            figure = progress_lines(query(connection, STREAM_PROGRESS, [stream.name, "cifar_10_c"]))
            (DOCS / "images" / f"{stream.name}.png").write_bytes(as_png(figure))
    (DOCS / "long-streams.md").write_text("\n".join(_page(found[RECURRING.name], found[SLOW.name])) + "\n")


def _benchmark(locations: Locations, folder: Path, stream: Stream) -> dict[str, object]:
    images = first_test_images(locations, folder, stream.images_of_a_class)
    common = {"model": "resnet20", "batch_size": 200}
    return {
        "title": stream.title,
        "shift_set": "cifar_10_c",
        "source": {"kind": "generated", "clean": str(images), "severity_table": "cifar_c"},
        "corruptions": list(stream.corruptions),
        "severities": list(stream.severities),
        "image_size": 32,
        "shards": {"num_shards": 1},
        "models": {"resnet20": MODELS["resnet"](folder)},
        "experiments": {
            "source": {**common, "method": "source", "protocol": dict(stream.source_protocol)},
            **{
                name: {**common, "preset": "cifar", **settings, "protocol": dict(stream.protocol)}
                for name, settings in _METHODS.items()
            },
        },
    }


def _page(recurring: Table, slow: Table) -> Iterator[str]:
    yield f"""# Streams that last

Made by `python -m bench.long_stream FOLDER` with torch {torch.__version__}.
A published ResNet-20 of CIFAR-10 sees 100,000 images without a reset, in batches of 200, with preset `cifar`;
`tent_fast` has ten times the learning rate. The images were JPEG files, and were **corrupted here**: compare these
figures with each other, not with published tables. [Protocols](protocols.md) explains *collapsed at*.

## Shifts that come again

Five corruptions at severity 5, with 1,000 test images each. The stream visits them 20 times.

![Accuracy over the stream](images/long_stream.png)

| experiment | images | error | collapsed at | error from there | memory at first, GiB | half way | at the end |
|---|---|---|---|---|---|---|---|"""
    for row, first, half_way, last in _rows(recurring):
        yield f"{row} | {first:.2f} | {half_way:.2f} | {last:.2f} |"
    yield """
*Memory* is the peak resident memory of the process: after the first shift, half way, and at the end of the stream.

## A stream like CCC

`protocol: slow`: ten corruptions, 10,000 test images. Each image comes once for each corruption, while the severity
rises from 1 to 5 and falls again, from image to image. CCC's own shards lie on a server (see
[data sets](data-sets.md#ccc)), and were not read here: they have two corruptions at a time, photographs of ImageNet,
and 7.5 million images. A test compares what `slow` makes with the paper's description.

![Accuracy over the stream](images/slow_stream.png)

| experiment | images | error | collapsed at | error from there |
|---|---|---|---|---|"""
    for row, *_ in _rows(slow):
        yield f"{row} |"
    for name, at in zip(slow.column("experiment"), slow.column("collapsed_at"), strict=True):
        if at is not None:
            yield ""
            yield f"From image {at:,} on, `{name}` is worse than `source` on each 1,000 images."


def _rows(found: Table) -> Iterator[tuple[str, float, float, float]]:
    columns = (
        "experiment", "num_images", "error", "collapsed_at", "error_after", "first_gib", "half_way_gib", "last_gib"
    )  # fmt: skip
    for name, images, error, at, after, *memory in zip(*map(found.column, columns), strict=True):
        collapse = "never | " if at is None else f"{at:,} | {100 * after:.1f} %"
        yield f"| {name} | {images:,} | {100 * error:.1f} % | {collapse}", *memory


if __name__ == "__main__":
    main(Path(sys.argv[1]), page_only="--page" in sys.argv)
