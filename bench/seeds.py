"""How many orders of a stream are worth how many images: `python -m bench.seeds FOLDER`.

FOLDER is described in `bench.leaderboard`. Each experiment sees the first 40 test images of each class of CIFAR-10,
corrupted here at severity 5, in one continual stream, in `NUM_SEEDS` orders. Three variances of its error follow from
two-way analysis of variance without repetition (Searle, Casella and McCulloch 1992, "Variance components", section
4.3): of photographs, of orders, and of what is left. From them follows the standard error for any number of
photographs and orders. Data and results are kept in $TTA_DATA_ROOT; finished evaluations are not repeated. The page
is docs/results/seeds.md, with its data and picture.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

import tta_pipeline as tta
from bench.leaderboard import MODELS, first_test_images, run_benchmark, write_benchmark
from bench.open_set import CORRUPTIONS
from bench.result_pages import IMAGES, Row, command, filled, table, write_data, write_page
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.figure_style import MARKERS, SERIES, WIDTH_IN, as_png, hide_frame
from tta_pipeline.util.plurals import count_of

NAME, PAGE = "resnet_seeds", "seeds"
NUM_SEEDS = 8
_OF_A_CLASS = 40
EXPERIMENTS: Mapping[str, Mapping[str, object]] = {
    "norm": {"method": "norm", "protocol": "continual"},
    "tent": {"method": "tent", "protocol": "continual"},
    "tent_correlated": {"method": "tent", "protocol": {"shift": "continual", "order": "dirichlet", "delta": 0.1}},
}
SIZES = (1_000, 5_000, 10_000, 50_000)
_SHOWN_SEEDS = (1, 3, 5, 8)
COLUMNS = ("experiment", "num_photographs", "num_seeds", "error_percent", "sd_photographs", "sd_orders", "sd_rest")


def main(folder: Path) -> None:
    """Run the unfinished evaluations, and write the page."""
    locations = Locations.from_environment()
    sys.path.append(str(folder))  # for resnet.py
    common = {"model": "model", "preset": "cifar", "batch_size": 50, "seeds": {"count": NUM_SEEDS}}
    write_benchmark(locations, NAME, {
        "title": "CIFAR-10 in eight orders", "dataset": "cifar_10_c", "corruptions": list(CORRUPTIONS),
        "severities": [5], "image_size": 32, "shards": {"num_shards": 1},
        "images": {"kind": "generated", "clean": str(first_test_images(locations, folder, _OF_A_CLASS)),
                   "severity_table": "cifar_c"},
        "models": {"model": MODELS["resnet"](folder)},
        "experiments": {name: {**common, **each} for name, each in EXPERIMENTS.items()},
    })  # fmt: skip
    run_benchmark(folder, NAME)
    rows = write_data(PAGE, COLUMNS, [data_row(name, wrong_share(name)) for name in EXPERIMENTS])
    (IMAGES / f"{PAGE}.png").write_bytes(as_png(standard_errors(rows)))
    write_page(PAGE, page(rows))


def wrong_share(experiment: str) -> npt.NDArray[np.float64]:
    """Return in which share of the corruptions each photograph is wrong in each order, (seeds, photographs)."""
    orders = []
    for seed in range(NUM_SEEDS):
        cells = [tta.predictions(NAME, experiment, f"{each}|5", seed=seed).to_pandas() for each in CORRUPTIONS]
        orders.append(np.mean([1 - cell.sort_values("key").correct.to_numpy() for cell in cells], axis=0))
    return np.array(orders)


def data_row(name: str, wrong: npt.NDArray[np.float64]) -> Sequence[object]:
    """Return the row of an experiment, in the order of COLUMNS, with standard deviations in points."""
    num_seeds, num_photographs = wrong.shape
    orders, photographs = wrong.mean(1), wrong.mean(0)
    left = wrong - orders[:, None] - photographs + wrong.mean()
    rest = (left**2).sum() / ((num_seeds - 1) * (num_photographs - 1))
    of_photographs = max(0.0, photographs.var(ddof=1) - rest / num_seeds)
    of_orders = max(0.0, orders.var(ddof=1) - rest / num_photographs)
    spreads = (f"{100 * np.sqrt(each):.2f}" for each in (of_photographs, of_orders, rest))
    return name, num_photographs, num_seeds, f"{100 * wrong.mean():.1f}", *spreads


def standard_error(row: Row, num_photographs: float, num_seeds: float) -> float:
    """Return the standard error of the mean error in points, for so many photographs in so many orders."""
    of_photographs, of_orders, rest = (float(row[name]) for name in COLUMNS[4:])
    variance = of_photographs**2 / num_photographs + of_orders**2 / num_seeds
    return float(np.sqrt(variance + rest**2 / (num_photographs * num_seeds)))


def standard_errors(rows: Sequence[Row]) -> Figure:
    """Draw the standard error against the number of orders, a panel for each experiment and a line for each size."""
    figure = Figure(figsize=(2 * WIDTH_IN, 3.4), layout="constrained")
    axes = figure.subplots(1, len(rows), sharey=True)
    seeds = np.arange(1, NUM_SEEDS + 1)
    for axis, row in zip(axes, rows, strict=True):
        for size, colour, marker in zip(SIZES, SERIES, MARKERS, strict=False):
            errors = [standard_error(row, size, each) for each in seeds]
            axis.plot(seeds, errors, color=colour, marker=marker, markersize=4, label=f"{size:,} images")
        axis.set(title=row["experiment"], xlabel="orders (seeds)", xticks=seeds)
        hide_frame(axis)
    axes[0].set(ylabel="standard error, points", ylim=(0, 1.05 * max(standard_error(row, SIZES[0], 1) for row in rows)))
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def page(rows: Sequence[Row], _: str = "") -> str:
    """Return the page in Markdown."""
    by_name = {row["experiment"]: row for row in rows}
    num_photographs, num_seeds = (int(rows[0][name]) for name in ("num_photographs", "num_seeds"))
    shown = [
        [f"`{row['experiment']}`", f"{row['error_percent']} %", row["sd_orders"],
         *(f"{standard_error(row, num_photographs, each):.2f}" for each in _SHOWN_SEEDS),
         f"{standard_error(row, 10_000, 1):.2f}", f"{standard_error(row, 10_000, 5):.2f}"]
        for row in rows
    ]  # fmt: skip
    headings = ("experiment", "error", "sd of orders", *(count_of(each, "order") for each in _SHOWN_SEEDS),
                "10,000 images, 1 order", "10,000 images, 5 orders")  # fmt: skip
    tent, correlated = by_name["tent"], by_name["tent_correlated"]
    return filled(f"""# How many seeds are worth how many images

**{_finding(tent, correlated)}

![Standard error against the number of orders](../images/{PAGE}.png)

{table(headings, shown)}

Standard errors of the mean error, in points, extrapolated from the variances of {num_photographs:,} photographs in
{num_seeds} orders; they are for {num_photographs:,} images unless another number is given. *Sd of orders*
is the standard deviation of the error over orders that would remain with any number of images; 0.00 if it is
too small to be measured. The intervals of `leaderboard`, `compare` and the report include both kinds of uncertainty
([metrics](../reference/metrics.md)).

## Measure it again

{command(f"python -m bench.{PAGE} FOLDER", needs="CIFAR-10 and a published network")}

The docstring of `bench/leaderboard.py` lists the files of `FOLDER`. Finished evaluations are not repeated.

## Setup and limits

A published ResNet-20 for CIFAR-10 under {", ".join(CORRUPTIONS[:-1])} and {CORRUPTIONS[-1]} at severity 5, as one
continual stream in batches of 50, preset `cifar`, {num_seeds} orders of the same {num_photographs:,} photographs.
`tent_correlated` draws its order with `delta` 0.1.

- The standard deviation of the orders is itself estimated from {num_seeds} orders: it may be a third lower or higher.
- A longer stream is adapted longer, so for other numbers of images the spread of the orders may differ.
- All images were corrupted here. Compare these figures with each other, not with published tables.
""")


def _finding(tent: Row, correlated: Row) -> str:
    one, five, all_images = (standard_error(correlated, *each) for each in ((10_000, 1), (10_000, 5), (50_000, 1)))
    return (
        f"If classes come in clusters, more images do not make up for a single order.** One order of 10,000 images "
        f"leaves tent a standard error of {one:.2f} points, and one of 50,000 images {all_images:.2f}; five orders of "
        f"10,000 images leave {five:.2f}. **If images come in random order, more images help and more orders hardly "
        f"do:** {standard_error(tent, 10_000, 1):.2f} points with one order, "
        f"{standard_error(tent, 10_000, 5):.2f} with five, {standard_error(tent, 50_000, 1):.2f} with 50,000 images."
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
