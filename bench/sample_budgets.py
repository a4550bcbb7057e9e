"""Errors of methods that adapt on a part of the stream: `python -m bench.sample_budgets FOLDER`.

FOLDER is the same as in `bench.leaderboard`. A published ResNet-20 sees five corruptions of CIFAR-10 test images, made
here, 2,000 images each in batches of 16 (`adapt` of the protocol; NEO, BoTTA and SNAP have such tables). Data and
results are kept in $TTA_DATA_ROOT; finished evaluations are not repeated. The page is docs/results/sample_budgets.md,
with its data.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from bench.leaderboard import MODELS, first_test_images, run_benchmark, write_benchmark
from bench.result_pages import Row, command, filled, listed, table, write_data, write_page
from tta_pipeline.benchmarks.protocol import Protocol
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.tables import Table, query
from tta_pipeline.results.database.database import open_metrics

PAGE = "sample_budgets"
COLUMNS = (
    "method", "adapt", "adapted_images_per_cell", "error_percent", "forwards_per_image", "backwards_per_image",
)  # fmt: skip
_OF_A_CLASS = 200
_CORRUPTIONS = ("gaussian_noise", "motion_blur", "fog", "contrast", "jpeg_compression")
_METHODS = ("neo", "bn_ema", "tent", "eata", "shot_im")
_BASELINES = ("source", "norm")
"""Methods that learn nothing, so that every part has the same result."""
_SHOWN = ("source", "norm", "neo", "bn_ema", "eata", "tent", "shot_im")
_PARTS: Mapping[str, Mapping[str, float] | None] = {
    "share 0.01": {"share": 0.01},
    "first 64": {"first": 64},
    "every 10": {"every": 10},
    "first 512": {"first": 512},
    "share 0.5": {"share": 0.5},
    "all": None,
}
_OUTCOME = """
SELECT method, protocol, avg(error) AS error, avg(num_samples - num_unadapted) AS num_adapted,
       sum(num_forwards) / sum(num_samples) AS forwards, sum(num_backwards) / sum(num_samples) AS backwards
FROM evaluations WHERE counts AND benchmark = ? AND corruption <> 'clean' GROUP BY ALL
"""


def main(folder: Path) -> None:
    """Run the unfinished evaluations, and write the page and its data."""
    locations = Locations.from_environment()
    sys.path.append(str(folder))  # for resnet.py
    write_benchmark(locations, PAGE, _benchmark(locations, folder))
    run_benchmark(folder, PAGE)
    with open_metrics(locations.metrics) as connection:
        found = query(connection, _OUTCOME, [PAGE])
    write_page(PAGE, page(write_data(PAGE, COLUMNS, data_rows(found))))


def _benchmark(locations: Locations, folder: Path) -> dict[str, object]:
    images = first_test_images(locations, folder, _OF_A_CLASS)
    common = {"preset": "cifar", "batch_size": 16}
    return {
        "title": "Adaptation on a part of the stream",
        "dataset": "cifar_10_c",
        "images": {"kind": "generated", "clean": str(images), "severity_table": "cifar_c"},
        "corruptions": list(_CORRUPTIONS),
        "severities": [5],
        "image_size": 32,
        "shards": {"num_shards": 1},
        "models": {"resnet20": MODELS["resnet"](folder)},
        "experiments": {name: {"model": "resnet20", "method": name, **common} for name in _BASELINES},
        "matrix": {
            "models": ["resnet20"],
            "methods": list(_METHODS),
            "protocols": [{"adapt": part} for part in _PARTS.values()],
            **common,
        },
    }


def data_rows(found: Table) -> Iterator[Sequence[object]]:
    """Yield the row of each method and part, in the order of COLUMNS."""
    rows = {(row[0], row[1]): row[2:] for row in found.rows}
    protocols = {part: Protocol.model_validate({"adapt": adapt}).name for part, adapt in _PARTS.items()}
    for method in (*_BASELINES, *_METHODS):
        for part, protocol in protocols.items():
            if (method, protocol) in rows:
                error, adapted, forwards, backwards = rows[method, protocol]
                yield method, part, round(adapted), f"{100 * error:.1f}", f"{forwards:.2f}", f"{backwards:.2f}"


def page(rows: Sequence[Row], version: str = torch.__version__) -> str:
    """Return the page in Markdown."""
    error = {(row["method"], row["adapt"]): row["error_percent"] for row in rows}
    num_adapted = {row["adapt"]: row["adapted_images_per_cell"] for row in rows}
    parts = [f"{int(num_adapted[part]):,} ({part})" for part in _PARTS]
    shown = [
        [f"`{method}`", *(error.get((method, part), error[method, "all"]) for part in _PARTS)] for method in _SHOWN
    ]
    best = min(_PARTS, key=lambda part: float(error["shot_im", part]))
    return filled(f"""# Adaptation on a part of the stream

**64 images are enough for `neo`.** Of 2,000 images, it adapts on 64 and has {error["neo", "first 64"]} % error, against
{error["neo", "all"]} % if it adapts on all and {error["source", "all"]} % without adaptation. `bn_ema`, frozen after
512 images, has the lowest error, {error["bn_ema", "first 512"]} %. Gradient steps add little to `norm`
({error["norm", "all"]} %): even with all images, `eata` has {error["eata", "all"]} % and `tent`
{error["tent", "all"]} %. `shot_im` takes too many steps: {error["shot_im", best]} % with {num_adapted[best]} images,
{error["shot_im", "all"]} % with all.

## Measure it

{command("python -m bench.sample_budgets FOLDER", needs="CIFAR-10 and a published network")}

The docstring of `bench/leaderboard.py` lists the files of `FOLDER`. In your own benchmark file, write
`protocols: [{{adapt: {{first: 64}}}}, {{adapt: {{every: 10}}}}]`
([settings](../reference/protocols.md#part-of-the-stream)).

## Error by number of images adapted on

Error in %, mean of five corruptions; the other images are predicted by the model as it is.

{table(("method", *parts), shown)}

[`{PAGE}.csv`]({PAGE}.csv) has the passes per image: with `every: 10`, `tent` takes 0.1 backward passes instead of 1,
and `bn_ema` 1.1 forward passes instead of 2.

## Setup and limits

A published ResNet-20 for CIFAR-10, batches of 16, preset `cifar`, a reset before each corruption. Each of
{listed(_CORRUPTIONS)} at severity 5 has the first {_OF_A_CLASS} test images of each class in random order. Measured
with torch {version}.

- The images were JPEG files and were corrupted here. Compare these figures with each other, not with the tables of NEO,
  BoTTA and SNAP.
- Errors count all images of a cell, also those adapted on. There was one seed; do not rank figures
  [half a point apart](../interpreting-results.md).
- The preset's learning rates were not tuned for batches of 16; a lower rate may suit `shot_im`.
- `share: 0.1` has the same batches as `every: 10`. A share begins with the first batch, so 0.01 of 125 batches is two.
- `norm`, `tent`, `eata` and `shot_im` take batch-norm statistics from every batch, also when frozen. `source` and
  `norm` learn nothing, so they ran once.
- SNAP also has a memory of samples, which is not built.
""")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
