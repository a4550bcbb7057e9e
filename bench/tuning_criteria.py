"""Criteria without labels against the oracle: `python -m bench.tuning_criteria CIFAR`.

CIFAR is the folder of `bench.leaderboard`. Each method has a learning rate chosen of a grid by every criterion of
`tta-pipeline tune`: by labels and without them on held-out corruptions, and without labels on the corruptions that are
reported. The gap is the error there at the chosen rate minus that at the best one. Of each cell the first images of its
shards are used (`SUBSET`), at severity 5, in one continual stream without resets. The images are corrupted here from
the first 100 test images of each class. Data and results lie in $TTA_DATA_ROOT; finished trials are not repeated. The
page is docs/tuning-criteria.md, with its picture.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.leaderboard import DOCS, MODELS, first_test_images, launch_assets, materialize, write_benchmark
from bench.open_set import CORRUPTIONS
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
PAGE = "tuning-criteria"


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
        "shift_set": "cifar_10_c",
        "corruptions": list(CORRUPTIONS),
        "severities": [5],
        "image_size": 32,
        "shards": {"num_shards": 1},
        "source": {"kind": "generated", "clean": str(first_test_images(locations, folder)),
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
    """Write the page and its picture."""
    columns = ("experiment", "criterion", "images", "gap")
    table = Table(columns=columns, rows=tuple(
        (method, each.criterion, each.images, each.gap) for method, run in runs.items() for each in run.choices
    ))  # fmt: skip
    figure = criteria_gaps(table)
    assert figure is not None, "the runs compare criteria"
    (DOCS / "images" / f"{PAGE}.png").write_bytes(as_png(figure))
    (DOCS / f"{PAGE}.md").write_text("\n".join((*_text(runs), *_gaps(runs), "", *_errors(runs), _LEARNED)) + "\n")


def _text(runs: Mapping[str, TuningRun]) -> Iterator[str]:
    run = next(iter(runs.values()))
    yield f"""# Learning rates chosen without labels

Made by `python -m bench.tuning_criteria CIFAR`. A published ResNet-20 of CIFAR-10 at severity 5, batches of
{BATCH_SIZE}, preset `cifar` but for `lr`, one continual stream without a reset over the first {SUBSET} images of each
corruption, seed 0. `lr` is one of {", ".join(f"{rate:g}" for rate in RATES)}. Held out:
{", ".join(run.shifts)}. Reported: {", ".join(CORRUPTIONS)}.
All images were **corrupted here**: the figures compare with each other, and with no published table.
[The how-to](how-to/experiments.md#choose-without-labels) defines the criteria.

The gap is the error on the reported corruptions at the chosen rate, minus the error at the rate that the labels of
these very images would choose (the oracle, which nothing can use), in points. The protocol is that of Cygert et al.
2024 (arXiv 2407.14231), as far as its abstract and a summary tell; the models, data and rates are ours.

![Gap of each criterion to the oracle](images/{PAGE}.png)
"""


_LEARNED = """
What these figures show, for one network, one seed and 2,000 images a trial, where a point or less is no difference:

- Entropy and soft neighbourhood density choose the highest rate for every method, 8 to 52 points above the oracle, and
  consistency does so for two, on the reported images for three. A collapsed model is sure of itself, consistent, and
  has dense neighbourhoods.
- Seeing the reported images in place of the held-out ones does not help them.
- Agreement with the source model is the only score without labels that never chose a collapse. It rewards methods that
  change little, and here little change was best: where adaptation gains much, it may choose too low a rate.
- The labels of four held-out corruptions stay within 3 points. They chose a rate too high for `deyo`, and so shifts
  that are not those reported have a price too.
- Among rates up to 0.01 every criterion is within 2 points on average: what enters the grid mattered more than how the
  choice was made. A small grid around a published value is a choice with labels that somebody else had.

The abstract of Cygert et al. says that only strategies with some supervision work consistently. That holds here for
entropy, consistency and SND; agreement with the source model is not among the strategies that we know of theirs."""


def _gaps(runs: Mapping[str, TuningRun]) -> Iterator[str]:
    whole, low = ([_by_criterion(run, most) for run in runs.values()] for most in (max(RATES), _HIGHEST_LOW_RATE))
    methods = " | ".join(f"`{method}`" for method in runs)
    yield f"| criterion | images | {methods} | mean gap | mean gap on rates up to {_HIGHEST_LOW_RATE:g} |"
    yield f"|---|---|{'---|' * len(runs)}---|---|"
    for name, images in whole[0]:
        cells = [_cell(found[name, images]) for found in whole]
        means = [statistics.mean(found[name, images].gap or 0 for found in each) for each in (whole, low)]
        yield f"| {name} | {images} | {' | '.join((*cells, *(f'{100 * mean:.1f}' for mean in means)))} |"


def _by_criterion(run: TuningRun, most: float) -> Mapping[tuple[str, str], CriterionChoice]:
    """Return what each criterion chooses among the rates up to *most*, by criterion and images."""
    trials, reported = ([each for each in found if float(each.values["lr"]) <= most]
                        for found in (run.trials, run.reported_trials))  # fmt: skip
    return {(each.criterion, each.images): each for each in choices_of(trials, reported)}


def _cell(choice: CriterionChoice) -> str:
    """Return the gap in points, with the chosen rate."""
    return f"{100 * (choice.gap or 0):.1f} at {json.loads(choice.hyperparameters)['lr']:g}"


def _errors(runs: Mapping[str, TuningRun]) -> Iterator[str]:
    yield "The error on the reported corruptions by learning rate:"
    yield ""
    yield f"| method | {' | '.join(f'{rate:g}' for rate in RATES)} |"
    yield f"|---|{'---|' * len(RATES)}"
    for method, run in runs.items():
        yield f"| `{method}` | {' | '.join(_error_row(run))} |"


def _error_row(run: TuningRun) -> Sequence[str]:
    return [f"{each.error:.1%}" for each in run.reported_trials]


def _say(message: str) -> None:
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
