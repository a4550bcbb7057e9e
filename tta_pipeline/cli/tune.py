"""The verb `tune`."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.common import exit_with_error, plain_errors, print_table, say, with_device
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations

if TYPE_CHECKING:
    from tta_pipeline.extras.tuning.search import Search


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline tune digits_c tent",
        "tta-pipeline tune digits_c tent --grid lr=1e-4,2.5e-4,1e-3",
        "tta-pipeline tune digits_c tent --compare",
        "tta-pipeline tune imagenet_c eata --grid lr=1e-4,2.5e-4,1e-3 --grid e_margin=0.3,0.4,0.5 --budget 6",
    ],
)
@click.argument("benchmark_name", metavar="BENCHMARK")
@click.argument("experiment")
@click.option("--grid", multiple=True, metavar="NAME=VALUE,...", help="Values to try for a hyperparameter; several "
              "--grid make a grid. Default: the grid in the benchmark file.")  # fmt: skip
@click.option("--budget", type=click.IntRange(1, 10_000), help="Maximum number of trials; larger grids are sampled "
              "at random. Default: the budget in the benchmark file, or 20.")  # fmt: skip
@click.option("--compare", is_flag=True, help="Also record what each criterion would choose, and evaluate the "
              "trials on the reported cells: how far is each choice from the oracle's? The choice stays the "
              "same.")  # fmt: skip
@with_device
@click.option("--json", "as_json", is_flag=True, help="Print the whole record.")
@plain_errors
def tune(
    *,
    benchmark_name: str,
    experiment: str,
    grid: tuple[str, ...],
    budget: int | None,
    compare: bool,
    device: str,
    as_json: bool,
) -> None:
    """Choose hyperparameters on held-out shifts.

    The benchmark does not report these shifts. The benchmark file must name the experiment under `tuning`; an
    experiment with `tuned: true` uses the chosen values. Missing shards are made first, and finished trials are
    skipped. `criterion` under `tuning` chooses by labels or by a label-free score. The Dagster asset is
    <benchmark>/tuning/<experiment>.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.definitions import build_definitions
    from tta_pipeline.defs.tuning import materialize_tuning
    from tta_pipeline.extras.tuning.grid import parse_grid
    from tta_pipeline.extras.tuning.search import Search

    locations = Locations.from_environment()
    loaded = load_all_benchmarks(locations)
    loaded.experiment(benchmark_name, experiment)
    search = Search(
        benchmark=loaded.benchmark(benchmark_name),
        experiment_name=experiment,
        locations=locations,
        grid=parse_grid(grid),
        budget=budget,
        compare=compare,
    )
    definitions = build_definitions(locations)
    _make_missing_shards(definitions, search)
    search.require_images()
    done = materialize_tuning(
        definitions, search.benchmark, experiment, locations, grid=grid, budget=budget, compare=compare, device=device
    )
    if not done:
        sys.exit(1)
    _print_trials(locations, search, as_json=as_json)


def _make_missing_shards(definitions: Any, search: "Search") -> None:
    """Make the shards that trials need and that do not exist, as `run` does for reported cells."""
    from tta_pipeline.benchmarks.named_paths import find_missing_images
    from tta_pipeline.defs.tuning import materialize_missing_shards
    from tta_pipeline.extras.tuning.held_out import find_without_shards

    missing = find_without_shards(search.benchmark, search.cells, search.locations)
    if not missing:
        return
    if problem := find_missing_images(search.benchmark):
        exit_with_error(f"{search.benchmark.name}: {problem}; put it there, or correct the benchmark file")
    if not materialize_missing_shards(definitions, search.benchmark, missing, search.locations, tell=say):
        sys.exit(1)


def _print_trials(locations: Locations, search: "Search", *, as_json: bool) -> None:
    """Print the trials, the best first, and how an experiment uses the choice."""
    from tta_pipeline.benchmarks.resolved_experiment import find_choices
    from tta_pipeline.report.tables import Table
    from tta_pipeline.report.tuning_table import criteria_table

    name = search.experiment_name
    _, run = find_choices(locations, search.benchmark.name, name)[-1]
    if as_json:
        choices = [asdict(each) for each in run.choices]
        click.echo(json.dumps({**run.facts(), "choices": choices}, indent=1))
        return
    trials = sorted(run.trials, key=lambda each: each.error)
    names = tuple(run.values)
    rows = [(*each.values.values(), each.error, each.num_diverged, each.wall_s) for each in trials]
    print_table(Table(columns=(*names, "error", "num_diverged", "wall_s"), rows=tuple(rows)))
    click.echo()
    print_table(criteria_table(run))
    for caution in run.cautions():
        say(caution)
    say(f"chosen: {run.choice}; an experiment uses it by `tuned: true`, or `tuned: {name}`")
