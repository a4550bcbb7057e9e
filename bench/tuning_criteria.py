"""Criteria without labels against the oracle: `python -m bench.tuning_criteria CIFAR`.

CIFAR is the folder of `bench.leaderboard`. Every criterion of `tta-pipeline tune` chooses each method's learning rate
from a grid: with and without labels on held-out corruptions, and without labels on the reported corruptions. The gap is
the error on the reported corruptions at the chosen rate minus the error at the best rate. Each cell has the first
images of its shards (`SUBSET`), at severity 5, in one continual stream without resets. The images are corrupted here
from the first 100 test images of each class. Data and results are kept in $TTA_DATA_ROOT; finished trials are not
repeated. The page is docs/results/tuning-criteria.md, with its data and picture.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.leaderboard import MODELS, first_test_images, launch_assets, materialize, write_benchmark
from bench.open_set import CORRUPTIONS
from bench.result_pages import IMAGES, Row, command, filled, table, write_data, write_page
from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.extras.tuning.search import Search
from tta_pipeline.report.figure_style import as_png
from tta_pipeline.report.tables import Table
from tta_pipeline.report.tuning_figures import criteria_gaps
from tta_pipeline.results.tuning_criteria import CriterionChoice, choices_of
from tta_pipeline.results.tuning_record import TuningRun

NAME = "resnet_tuning"
METHODS = ("tent", "eata", "sar", "deyo")
RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
_HIGHEST_LOW_RATE = 0.01
"""The highest rate at which no method of the page collapses."""
SUBSET, BATCH_SIZE = 400, 50
PAGE, DATA_OF_RATES = "tuning-criteria", "tuning-criteria-rates"
COLUMNS = (
    "criterion", "images", *(f"{method}_{part}" for method in METHODS for part in ("gap", "lr")), "mean_gap",
    "mean_gap_low_rates",
)  # fmt: skip
COLUMNS_OF_RATES = ("method", "lr", "error_percent")
_SHOWN = {
    "labels": "labels",
    "source_agreement": "agreement with the source model",
    "consistency": "consistency with a shifted view",
    "entropy": "entropy",
    "snd": "soft neighbourhood density",
}
"""Criteria in the page's table, and what they are."""


def main(folder: Path) -> None:
    """Run the unfinished trials, and write the page."""
    locations = Locations.from_environment()
    sys.path.append(str(folder))  # for resnet.py
    experiment = {
        "model": "model", "preset": "cifar", "batch_size": BATCH_SIZE, "subset": {"first": SUBSET},
        "protocol": "continual",
    }  # fmt: skip
    write_benchmark(locations, NAME, {
        "title": "Learning rates chosen with and without labels",
        "dataset": "cifar_10_c",
        "corruptions": list(CORRUPTIONS),
        "severities": [5],
        "image_size": 32,
        "shards": {"num_shards": 1},
        "images": {"kind": "generated", "clean": str(first_test_images(locations, folder)),
                   "severity_table": "cifar_c"},
        "models": {"model": MODELS["resnet"](folder)},
        "experiments": {method: {**experiment, "method": method} for method in METHODS},
        "tuning": {method: {"grid": {"lr": list(RATES)}} for method in METHODS},
    })  # fmt: skip
    benchmark = load_all_benchmarks(locations).benchmark(NAME)
    launch_assets(folder, f"*{NAME}/clean/shard_manifest")
    materialize(folder, f"*{NAME}/shard_manifest", benchmark.cells)
    materialize(folder, f"*{NAME}/held_out/shard_manifest", benchmark.held_out_cells)
    runs = {}
    for method in METHODS:
        search = Search(benchmark=benchmark, experiment_name=method, locations=locations, grid={}, compare=True)
        found = search.run(machine=Machine(device="cpu", decode_threads=1), run_id="bench", tell=_say).result.tuning
        assert found is not None, "the search returns the result of a tuning"
        runs[method] = found
    write(runs)


def write(runs: Mapping[str, TuningRun]) -> None:
    """Write the page, its data and its picture."""
    columns = ("experiment", "criterion", "images", "gap")
    gaps = Table(columns=columns, rows=tuple(
        (method, each.criterion, each.images, each.gap) for method, run in runs.items() for each in run.choices
    ))  # fmt: skip
    figure = criteria_gaps(gaps)
    assert figure is not None, "the runs compare criteria"
    (IMAGES / f"{PAGE}.png").write_bytes(as_png(figure))
    found = write_data(PAGE, COLUMNS, data_rows(runs))
    write_page(PAGE, page(found, write_data(DATA_OF_RATES, COLUMNS_OF_RATES, rate_rows(runs)), list(_held_out(runs))))


def _held_out(runs: Mapping[str, TuningRun]) -> Sequence[str]:
    return next(iter(runs.values())).shifts


def page(rows: Sequence[Row], rates: Sequence[Row], held_out: Sequence[str]) -> str:
    """Return the page in Markdown."""
    by_name = {row["criterion"]: row for row in rows if row["images"] == "held-out"}
    shown = [
        [text, by_name[name]["mean_gap"], max((by_name[name][f"{each}_gap"] for each in METHODS), key=float),
         by_name[name]["mean_gap_low_rates"]]
        for name, text in _SHOWN.items()
    ]  # fmt: skip
    errors = {(row["method"], row["lr"]): float(row["error_percent"]) for row in rates}
    lowest, highest = (of(errors["tent", f"{rate:g}"] for rate in RATES) for of in (min, max))
    worst_low = max(float(row["mean_gap_low_rates"]) for row in by_name.values())
    return filled(f"""# Learning rates chosen without labels

**Without labels, most criteria choose a learning rate at which the model collapses.** Entropy and soft neighbourhood
density choose the highest of seven rates for all four methods, on average {by_name["entropy"]["mean_gap"]} points of
error above
the best rate. A collapsed model is sure of itself, so it looks good to them. Labels of held-out corruptions cost only
{by_name["labels"]["mean_gap"]} points on average, and agreement with the source model
{by_name["source_agreement"]["mean_gap"]}.

![Gap of each criterion to the best rate](../images/{PAGE}.png)

{table(_HEADINGS, shown)}

The gap is the error at the chosen rate minus the error at the best rate of the grid, in points. The grid of rates
matters more than the criterion: among rates up to {_HIGHEST_LOW_RATE:g}, every criterion stays within {worst_low}
points on
average. At {RATES[-1]:g}, `tent` has an error of {highest} %; at its best rate, {lowest} %.

So [tune on held-out corruptions with labels](../guides/tuning.md). If you have none, keep the grid
close to the published rate, or choose by agreement with the source model. It rewards methods that change little, which
was right here but may choose too low a rate if adaptation gains much.

[`{PAGE}.csv`]({PAGE}.csv) has the gap and rate of each method, also for criteria that saw the reported images, which
does not help entropy and density. [`{DATA_OF_RATES}.csv`]({DATA_OF_RATES}.csv) has the error by learning rate.

## Measure it again

{command("python -m bench.tuning_criteria CIFAR", needs="CIFAR-10 and a published network")}

The docstring of `bench/leaderboard.py` lists the files of `CIFAR`. Finished trials are not repeated.

## Setup and limits

A published ResNet-20 for CIFAR-10 at severity 5, in batches of {BATCH_SIZE}, with preset `cifar` apart from `lr`, on
one continual stream of the first {SUBSET} images of each corruption. Held out: {", ".join(held_out)}. Reported:
{", ".join(CORRUPTIONS)}.

- This is one network, one seed and 2,000 images per trial, so a point or less is no difference.
- The images were corrupted here. Compare these figures with each other, not with published tables.
- The protocol follows the abstract of Cygert et al. 2024 (arXiv 2407.14231), who find that only strategies with some
  supervision work consistently. Models, data and rates are ours.
""")


_HEADINGS = ("chosen by, on held-out corruptions", "mean gap, points", "largest gap",
             f"mean gap, rates up to {_HIGHEST_LOW_RATE:g}")  # fmt: skip


def data_rows(runs: Mapping[str, TuningRun]) -> Iterator[Sequence[object]]:
    """Yield the row of each criterion, in the order of COLUMNS."""
    whole, low = ([_by_criterion(run, most) for run in runs.values()] for most in (max(RATES), _HIGHEST_LOW_RATE))
    for name, images in whole[0]:
        cells = [part for found in whole for part in _gap_and_rate(found[name, images])]
        means = [statistics.mean(found[name, images].gap or 0 for found in each) for each in (whole, low)]
        yield name, images, *cells, *(f"{100 * mean:.1f}" for mean in means)


def rate_rows(runs: Mapping[str, TuningRun]) -> Iterator[Sequence[object]]:
    """Yield the error of each method by learning rate, in the order of COLUMNS_OF_RATES."""
    for method, run in runs.items():
        for rate, trial in zip(RATES, run.reported_trials, strict=True):
            yield method, f"{rate:g}", f"{100 * trial.error:.1f}"


def _by_criterion(run: TuningRun, most: float) -> Mapping[tuple[str, str], CriterionChoice]:
    """Return what each criterion chooses among the rates up to *most*, by criterion and images."""
    trials, reported = ([each for each in found if float(each.values["lr"]) <= most]
                        for found in (run.trials, run.reported_trials))  # fmt: skip
    return {(each.criterion, each.images): each for each in choices_of(trials, reported)}


def _gap_and_rate(choice: CriterionChoice) -> tuple[str, str]:
    """Return the gap in points, and the chosen rate."""
    return f"{100 * (choice.gap or 0):.1f}", f"{json.loads(choice.hyperparameters)['lr']:g}"


def _say(message: str) -> None:
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
