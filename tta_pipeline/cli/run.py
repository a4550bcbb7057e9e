"""The verb `run`."""

import sys
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import LocalPath, exit_with_error, plain_errors, say, say_left_out, with_device
from tta_pipeline.cli.unfinished_work import make_planner, print_plan
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.cells import Cell, PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.interrupts import is_interrupted
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.benchmark import Benchmark
    from tta_pipeline.benchmarks.load_files import LoadedBenchmarks
    from tta_pipeline.evaluation.work.pieces import Piece


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """The partition keys that the options choose; without options, every key."""

    keys: tuple[str, ...]
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]

    def has(self, key: PartitionKey) -> bool:
        """Return whether each option that is given has *key*; a stream over several cells has no corruption."""
        corruption = key.corruption if isinstance(key, Cell) else None
        return (
            (not self.keys or key.key in self.keys)
            and (not self.corruptions or corruption in self.corruptions)
            and (not self.severities or key.severity in self.severities)
        )

    def require_known(self, benchmark: "Benchmark", known: set[PartitionKey]) -> None:
        """Refuse a value that none of the *known* keys has, and options that have no key in common."""
        cells = [key for key in benchmark.cells if key in known]
        choices = {
            "--cell": (self.keys, [*(cell.key for cell in cells), *sorted(key.key for key in known - {*cells})]),
            "--corruption": (self.corruptions, dict.fromkeys(cell.corruption for cell in cells)),
            "--severity": (self.severities, sorted({key.severity for key in known if key.severity is not None})),
        }
        for option, (given, expected) in choices.items():
            if unknown := [value for value in given if value not in expected]:
                choice = name_choices(unknown, expected, listed_in="the benchmark file")
                raise click.UsageError(f"{option} is {', '.join(map(repr, unknown))}; expected one of {choice}")
        if known and not any(map(self.has, known)):
            raise click.UsageError("the options have no cell in common; expected at least one: leave an option out")


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline run digits_c",
        "tta-pipeline run digits_c --cell 'fog|5' --experiment norm --experiment tent",
        "tta-pipeline run imagenet_c --corruption fog --severity 5 --dry-run",
    ],
)
@click.argument("benchmark_name", metavar="BENCHMARK")
@click.option("--experiment", "experiments", multiple=True, metavar="NAME", help="Only this experiment; can be "
              "repeated.")  # fmt: skip
@click.option("--cell", "cells", multiple=True, metavar="CELL", help="Only this cell, such as fog|5, or the key of a "
              "stream; can be repeated.")  # fmt: skip
@click.option("--corruption", "corruptions", multiple=True, metavar="NAME", help="Only cells of this corruption; can "
              "be repeated.")  # fmt: skip
@click.option("--severity", "severities", multiple=True, type=int, help="Only this severity; can be repeated.")
@with_device
@click.option("--decoded-folder", type=LocalPath(path_type=str), metavar="DIR",
              help="Keep decoded images and features there, so that methods share them; the resource's "
              "`decoded_folder`.")  # fmt: skip
@click.option("--force", is_flag=True, help="Evaluate finished cells again too, for another timing.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and run nothing.")
@plain_errors
def run(
    *,
    benchmark_name: str,
    experiments: tuple[str, ...],
    cells: tuple[str, ...],
    corruptions: tuple[str, ...],
    severities: tuple[int, ...],
    device: str,
    decoded_folder: str | None,
    force: bool,
    dry_run: bool,
) -> None:
    r"""Evaluate a whole benchmark file, from images to report.

    A file with several sets is evaluated set by set. Its unfinished work is done in this process, over the same assets
    as `dg launch`: shards, models, evaluations, and the report at the end. Work that is finished is not done again, so
    type the same command after an interruption. The exit status is 1 if something failed or was left out.

    The web UI shows each run: their history is where DAGSTER_HOME says. Without it, it is that of dagster.yaml in this
    folder or beside the data root, and without that, it is in .dagster in the data root.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks

    loaded = load_all_benchmarks(Locations.from_environment())
    names = loaded.parts_of(benchmark_name)
    selection = _Selection(keys=cells, corruptions=corruptions, severities=severities)
    if len(names) > 1 and selection != _Selection(keys=(), corruptions=(), severities=()):
        raise click.UsageError(
            f"found --cell, --corruption or --severity for the {len(names)} sets of {benchmark_name}; expected one "
            f"set, such as {names[0]}"
        )
    compute = {"device": device, **({"decoded_folder": decoded_folder} if decoded_folder else {})}
    is_whole = [
        _run_one(loaded, name, experiments, selection, compute=compute, force=force, dry_run=dry_run) for name in names
    ]
    if not all(is_whole):
        sys.exit(1)


def _run_one(
    loaded: "LoadedBenchmarks",
    benchmark_name: str,
    experiments: tuple[str, ...],
    selection: _Selection,
    *,
    compute: dict[str, str],
    force: bool,
    dry_run: bool,
) -> bool:
    """Evaluate what is unfinished of one benchmark, and return whether nothing was left out."""
    from tta_pipeline.benchmarks.named_paths import find_missing_source
    from tta_pipeline.benchmarks.stream_plans import partition_keys
    from tta_pipeline.evaluation.device.devices import find_devices
    from tta_pipeline.evaluation.work.pieces import join_pieces
    from tta_pipeline.models.own_transforms import find_other_transforms
    from tta_pipeline.results.database.publication import publish_metrics

    locations = Locations.from_environment()
    benchmark = loaded.benchmark(benchmark_name)
    find_devices(compute["device"])  # rather than fail at each cell
    chosen = loaded.choose_experiments(benchmark_name, experiments)
    keys = {name: partition_keys(benchmark, name) for name in chosen}
    selection.require_known(benchmark, {key for each in keys.values() for key in each})
    say_left_out(
        f"{name}, whose keys are {abbreviate_list([key.key for key in keys[name]])}; the options choose none of them"
        for name in chosen
        if not any(map(selection.has, keys[name]))
    )
    faults = () if experiments else loaded.faults_of(benchmark_name)
    untuned = _find_untuned(benchmark, locations, chosen, is_asked_for=bool(experiments))
    chosen = tuple(name for name in chosen if name not in untuned)
    left_out = (*(fault.sentence for fault in faults), *untuned.values())
    say_left_out(left_out)
    for other in find_other_transforms(benchmark, (benchmark.experiments[name].model for name in chosen)):
        say(f"note: {other}")
    publish_metrics(locations)  # the planner reads measured times from the database
    planner = make_planner(benchmark, locations, chosen, device=compute["device"], is_chosen=selection.has, force=force)
    pieces = join_pieces(benchmark, planner.plan_pieces(planner.find_unfinished(), by="corruption", num_devices=1))
    makes_shards = any(piece.stage in ("sets", "shards") for piece in pieces)
    if makes_shards and (missing := find_missing_source(benchmark)):
        exit_with_error(f"{benchmark.name}: {missing}; put it there, or correct the benchmark file")
    if pieces:
        print_plan(pieces, 1)
    else:
        say("nothing of it is unfinished")
    if not dry_run:
        _materialize(benchmark, locations, pieces, compute=compute, force=force)
        click.echo(f"report: {locations.report(benchmark.name) / 'index.html'}; next: {_say_next(benchmark, chosen)}")
        if pieces:
            say_left_out(left_out)  # once more, since a long log lies between
    return not left_out


def _say_next(benchmark: "Benchmark", experiments: tuple[str, ...]) -> str:
    """Return the commands that answer from the results of *experiments*: two of them on the same streams compare."""
    specs = {name: benchmark.experiments[name] for name in experiments}
    pairs = (
        f", tta-pipeline compare {a} {b}"
        for a, b in combinations(reversed(experiments), 2)
        if (specs[a].protocol, specs[a].subset) == (specs[b].protocol, specs[b].subset)
    )
    return f"tta-pipeline leaderboard{next(pairs, '')}"


def _find_untuned(
    benchmark: "Benchmark", locations: Locations, chosen: tuple[str, ...], *, is_asked_for: bool
) -> dict[str, str]:
    """Return those of the *chosen* experiments whose values were not tuned yet, with what to do.

    What cannot run, such as missing weights, ends the command, and so do these experiments if they are asked for.
    """
    from tta_pipeline.evaluation.refusals import find_refusals

    untuned = {}
    for refused in find_refusals(benchmark, locations, chosen):
        if not refused.is_untuned or is_asked_for:
            exit_with_error(f"{refused.subject}: {refused.found}; or choose other experiments by --experiment")
        untuned[refused.subject.removeprefix(f"{benchmark.name}/")] = f"{refused.subject}: {refused.found}"
    return untuned


def _materialize(
    benchmark: "Benchmark",
    locations: Locations,
    pieces: "tuple[Piece, ...]",
    *,
    compute: dict[str, str],
    force: bool,
) -> None:
    """Materialize *pieces* one after the other, up to the end of the first stage that makes nothing.

    A piece has several experiments: if one of them fails, the results of the others are still reported.
    """
    if not pieces:
        return
    from tta_pipeline.definitions import defs
    from tta_pipeline.defs.history import open_history
    from tta_pipeline.defs.in_process import materialize_piece, run_config, was_interrupted

    config, num_failed = run_config(compute, publishes=True), 0
    with open_history(locations) as instance:
        for _, stage in groupby(enumerate(pieces, 1), lambda numbered: numbered[1].stage):
            makes_something = False
            for number, piece in stage:
                say(f"{number} of {len(pieces)}: {piece.name}")
                result = materialize_piece(defs, benchmark, piece, instance=instance, run_config=config, force=force)
                if is_interrupted() or was_interrupted(result):
                    raise KeyboardInterrupt
                makes_something |= bool(result.get_asset_materialization_events())
                num_failed += not result.success
            if not makes_something:
                break
    if num_failed:
        exit_with_error(
            f"{count_of(num_failed, 'run')} failed: correct what the lines with ERROR name, and type the same command "
            "again, which does only what is left"
        )
