"""Memory and accuracy over 100,000 images: `python -m bench.long_stream FOLDER`.

FOLDER is the same as in `bench.leaderboard`. A published ResNet-20 sees two streams of CIFAR-10 test images, corrupted
here. One visits five shifts of 1,000 images 20 times (`recurring: 20`, as in Hoang et al. 2024, "Persistent test-time
adaptation in recurring testing scenarios"). The other has 10,000 images under ten corruptions, each image once for each
corruption, while the severity rises and falls (`slow`, after Press et al. 2023, "RDumb", section 3); its shards have
all five severities, 500,000 images. Data and results are kept in $TTA_DATA_ROOT; finished evaluations are not repeated.
The page is docs/results/long-streams.md, with its data and pictures; `--page` writes it from the results so far, and
runs nothing.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.leaderboard import MODELS, first_test_images, run_benchmark, write_benchmark
from bench.result_pages import IMAGES, Row, command, filled, table, write_data, write_page
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
    """A stream of 100,000 images, as a separate benchmark."""

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
PAGE = "long-streams"
COLUMNS = (
    "stream", "experiment", "images", "error_percent", "collapsed_at", "error_after_percent", "memory_first_gib",
    "memory_half_way_gib", "memory_end_gib",
)  # fmt: skip
_NAMES = {RECURRING.name: "recurring", SLOW.name: "slow"}
_OUTCOME = """
SELECT c.experiment, c.num_images, 1 - c.accuracy AS error, c.collapsed_at, 1 - c.accuracy_after AS error_after,
       max(e.peak_rss_gib) FILTER (e.position = 0) AS first_gib,
       max(e.peak_rss_gib) FILTER (e.position < 50) AS half_way_gib, max(e.peak_rss_gib) AS last_gib
FROM stream_collapses AS c JOIN evaluations AS e USING (benchmark, dataset, experiment, subset, seed, stream)
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
    """Write the page, its data and its pictures from the results."""
    found = {}
    with open_metrics(locations.metrics) as connection:
        for stream in (RECURRING, SLOW):
            found[stream.name] = query(connection, _OUTCOME, [stream.name])
            figure = progress_lines(query(connection, STREAM_PROGRESS, [stream.name, "cifar_10_c"]))
            (IMAGES / f"{stream.name}.png").write_bytes(as_png(figure))
    write_page(PAGE, page(write_data(PAGE, COLUMNS, data_rows(found))))


def _benchmark(locations: Locations, folder: Path, stream: Stream) -> dict[str, object]:
    images = first_test_images(locations, folder, stream.images_of_a_class)
    common = {"model": "resnet20", "batch_size": 200}
    return {
        "title": stream.title,
        "dataset": "cifar_10_c",
        "images": {"kind": "generated", "clean": str(images), "severity_table": "cifar_c"},
        "corruptions": list(stream.corruptions),
        "severities": list(stream.severities),
        "image_size": 32,
        "shards": {"num_shards": 1},
        "models": {"resnet20": MODELS["resnet"](folder)},
        "experiments": {
            "images": {**common, "method": "source", "protocol": dict(stream.source_protocol)},
            **{
                name: {**common, "preset": "cifar", **settings, "protocol": dict(stream.protocol)}
                for name, settings in _METHODS.items()
            },
        },
    }


def data_rows(found: Mapping[str, Table]) -> Iterator[Sequence[object]]:
    """Yield the row of each experiment, in the order of COLUMNS; memory is measured on the recurring stream."""
    columns = (
        "experiment", "num_images", "error", "collapsed_at", "error_after", "first_gib", "half_way_gib", "last_gib"
    )  # fmt: skip
    for name, outcome in found.items():
        for experiment, images, error, at, after, *gib in zip(*map(outcome.column, columns), strict=True):
            collapse = ("", "") if at is None else (at, f"{100 * after:.1f}")
            memory = [f"{each:.2f}" if name == RECURRING.name else "" for each in gib]
            yield _NAMES[name], experiment, images, f"{100 * error:.1f}", *collapse, *memory


def page(rows: Sequence[Row], version: str = torch.__version__) -> str:
    """Return the page in Markdown."""
    recurring, slow = ({row["experiment"]: row for row in rows if row["stream"] == name} for name in _NAMES.values())
    fast, source = slow["tent_fast"], slow["source"]
    growth = max(float(row["memory_end_gib"]) - float(row["memory_half_way_gib"]) for row in recurring.values())
    shown = [_cells(name, recurring, slow) for name in sorted({**slow, **recurring}, key=lambda name: _at(slow, name))]
    return filled(f"""# Long streams

**A method can collapse after tens of thousands of images.** `tent_fast`, which is `tent` with ten times its learning
rate, survives five shifts that recur 20 times ({recurring["tent_fast"]["error_percent"]} % error). On a stream whose
severity rises and falls slowly, it collapses at image {int(fast["collapsed_at"]):,}, and from there on its error is
{fast["error_after_percent"]} %: over the whole stream {fast["error_percent"]} %, against {source["error_percent"]} %
without adaptation. No method collapses at its published rate.

![Accuracy over the slow stream](../images/{SLOW.name}.png)

{table(_HEADINGS, shown)}

Both streams have 100,000 images and no reset. *Recurring* visits five corruptions at severity 5 with 1,000 images each,
20 times ([picture](../images/{RECURRING.name}.png)). *Slow* shows 10,000 images once under each of ten corruptions,
while the severity rises from 1 to 5 and falls again. [Protocols](../reference/protocols.md) defines both streams, and
*collapsed at*. In the second half of the recurring stream, no process needed more than {growth:.2f} GiB of additional
memory. [`{PAGE}.csv`]({PAGE}.csv) has the memory of each process.

## Measure it again

{command("python -m bench.long_stream FOLDER", needs="CIFAR-10 and a published network")}

The docstring of `bench/leaderboard.py` lists the files of `FOLDER`. Finished evaluations are not repeated.

## Setup and limits

A published ResNet-20 for CIFAR-10, batches of 200, preset `cifar`. Measured with torch {version}.

- The images were JPEG files and were corrupted here. Compare these figures with each other, not with published tables.
- *Slow* imitates CCC. CCC itself has photographs of ImageNet, two corruptions at a time and 7.5 million images
  ([read it](../guides/datasets.md#ccc)).
- `petta` was not run on the slow stream, where it takes about half an hour of a core. `source` was not run on the
  recurring stream, since its predictions do not depend on the order.
""")


_HEADINGS = ("experiment", "error, recurring", "error, slow", "collapsed at, slow")


def _at(slow: Mapping[str, Row], name: str) -> float:
    return float(slow[name]["error_percent"]) if name in slow else 100


def _cells(name: str, recurring: Mapping[str, Row], slow: Mapping[str, Row]) -> Sequence[str]:
    errors = [f"{found[name]['error_percent']} %" if name in found else "not run" for found in (recurring, slow)]
    at = slow[name]["collapsed_at"] if name in slow else None
    return f"`{name}`", *errors, "" if at is None else f"image {int(at):,}" if at else "never"


if __name__ == "__main__":
    main(Path(sys.argv[1]), page_only="--page" in sys.argv)
