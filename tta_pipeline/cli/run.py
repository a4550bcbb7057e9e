"""The verb `run`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, groupby
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.common import (
    LocalPath,
    exit_with_error,
    plain_errors,
    say,
    say_left_out,
    with_device,
)
from tta_pipeline.cli.run_parts import run_parts
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.cells import Cell, PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.garbage_collection import gc_paused
from tta_pipeline.util.interrupts import is_interrupted
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.processes import MAX_PROCESSES
from tta_pipeline.util.short_lists import abbreviate_list

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.benchmark import Benchmark
    from tta_pipeline.benchmarks.load_files import LoadedBenchmarks
    from tta_pipeline.evaluation.work.parts import Part
    from tta_pipeline.evaluation.work.planned_runs import PlannedRun
    from tta_pipeline.evaluation.work.planner import Planner
    from tta_pipeline.evaluation.work.unfinished import FingerprintComparison


def _parse_part(_: click.Context, __: click.Parameter, value: str) -> "Part | str":
    """Return `prepare`, `report` and an empty *value* as they are, and I/N as a part of the evaluations."""
    from tta_pipeline.evaluation.work.parts import Part

    number, slash, total = value.partition("/")
    if value in ("", "prepare", "report"):
        return value
    if not (slash and number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise click.BadParameter(f"{value!r} is not a part; expected prepare, report, or I/N such as 3/8")
    return Part(number=int(number), num_parts=int(total))


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
            raise click.UsageError(
                "No cell matches all of the options --cell, --corruption and --severity; expected at least one: leave "
                "an option out"
            )


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The work that the options choose."""

    experiments: tuple[str, ...]
    selection: _Selection
    device: str
    cache_dir: str
    part: "Part | str"
    """`prepare`: shards and models; a part of the evaluations; `report`; empty: all of it."""
    num_processes: int
    force: bool
    has_report: bool
    dry_run: bool

    @property
    def compute(self) -> dict[str, str]:
        """Settings of the resource `compute`."""
        return {"device": self.device, **({"cache_dir": self.cache_dir} if self.cache_dir else {})}

    def options(self) -> Iterator[str]:
        """Yield the options with which a process does a part of this."""
        yield f"--device={self.device}"
        yield from (f"--cache-dir={folder}" for folder in [self.cache_dir] if folder)
        yield from (f"--experiment={name}" for name in self.experiments)
        yield from (f"--cell={key}" for key in self.selection.keys)
        yield from (f"--corruption={name}" for name in self.selection.corruptions)
        yield from (f"--severity={severity}" for severity in self.selection.severities)
        yield from (["--force"] if self.force else [])


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline run digits_c",
        "tta-pipeline run digits_c --cell 'fog|5' --experiment norm --experiment tent",
        "tta-pipeline run imagenet_c --corruption fog --severity 5 --dry-run",
        "tta-pipeline run imagenet_c --processes 8",
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
@click.option("--cache-dir", type=LocalPath(path_type=str), metavar="DIR",
              help="Keep decoded images and features in this folder, so that methods share them.")  # fmt: skip
@click.option("--processes", "num_processes", type=click.IntRange(1, MAX_PROCESSES), default=1, show_default=True,
              help="Number of processes that evaluate at the same time, each on its own device.")  # fmt: skip
@click.option("--part", callback=_parse_part, default="", metavar="PART", help="Only a part of the work, for "
              "several machines: `prepare` makes shards and models, I/N evaluates one of N parts of equal cost, "
              "and `report` publishes and reports.")  # fmt: skip
@click.option("--force", is_flag=True, help="Evaluate finished cells again, for another timing.")
@click.option("--no-report", is_flag=True, help="Evaluate, but do not write the report.")
@click.option("--dry-run", is_flag=True, help="Print what would run, without running it.")
@plain_errors
def run(
    *,
    benchmark_name: str,
    experiments: tuple[str, ...],
    cells: tuple[str, ...],
    corruptions: tuple[str, ...],
    severities: tuple[int, ...],
    device: str,
    cache_dir: str | None,
    num_processes: int,
    part: "Part | str",
    force: bool,
    no_report: bool,
    dry_run: bool,
) -> None:
    """Evaluate a whole benchmark file, from images to report.

    Makes shards and models, evaluates the experiments, and writes the report. Finished work is skipped, so run the
    same command again after an interruption. A file with several datasets is evaluated one by one. The exit status
    is 1 if something failed or was left out.

    The web UI shows each run. Their history is stored in DAGSTER_HOME; if it is unset, as set by dagster.yaml in this
    folder or next to the data root; otherwise in .dagster in the data root.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks

    loaded = load_all_benchmarks(Locations.from_environment())
    names = loaded.parts_of(benchmark_name)
    selection = _Selection(keys=cells, corruptions=corruptions, severities=severities)
    if len(names) > 1 and selection != _Selection(keys=(), corruptions=(), severities=()):
        raise click.UsageError(
            f"--cell, --corruption or --severity is given, but {benchmark_name} has {len(names)} datasets; expected "
            f"these options only with one of them, such as {names[0]}"
        )
    if part and num_processes > 1:
        raise click.UsageError(
            "--processes and --part are both given, but a part is evaluated by one process; expected only one of "
            "them: leave one out"
        )
    request = _Request(
        experiments=experiments,
        selection=selection,
        device=device,
        cache_dir=cache_dir or "",
        part=part,
        num_processes=num_processes,
        force=force,
        has_report=not no_report,
        dry_run=dry_run,
    )
    is_whole = [_run_one(loaded, name, request) for name in names]
    if not all(is_whole):
        sys.exit(1)


def _run_one(loaded: "LoadedBenchmarks", benchmark_name: str, request: _Request) -> bool:
    """Do the unfinished work of one benchmark, and return whether nothing was left out."""
    from tta_pipeline.benchmarks.named_paths import find_missing_images
    from tta_pipeline.benchmarks.resolved_experiment import find_untuned
    from tta_pipeline.evaluation.work.planned_runs import REPORT, describe_runs
    from tta_pipeline.results.database.publication import publish_metrics

    locations = Locations.from_environment()
    benchmark = loaded.benchmark(benchmark_name)
    named = loaded.choose_experiments(benchmark_name, request.experiments)
    if request.part == "report":
        _finish(benchmark, locations, named, (REPORT,), request)
        return True
    is_chosen = _find_chosen(benchmark, named, request)
    faults = () if request.experiments else loaded.faults_of(benchmark_name)
    untuned = find_untuned(benchmark, locations, named)
    if untuned and request.experiments:
        exit_with_error(f"{next(iter(untuned.values()))}; or choose other experiments with --experiment")
    chosen = tuple(name for name in named if name not in untuned)
    left_out = (*(fault.sentence for fault in faults), *untuned.values())
    say_left_out(left_out)
    if not request.part and locations.root.exists():
        publish_metrics(locations)  # the planner reads measured times from the database
    require_runnable = cache(lambda: _require_runnable(benchmark, locations, chosen, request.device))
    planner = _make_planner(benchmark, locations, chosen, is_chosen, request=request, require_runnable=require_runnable)
    with gc_paused():  # a plan imports torch
        runs = _runs_of(request, benchmark, planner.plan_runs(planner.find_unfinished()))
    makes_shards = any(planned_run.stage in ("sets", "shards") for planned_run in runs)
    if makes_shards and (missing := find_missing_images(benchmark)):
        exit_with_error(f"{benchmark.name}: {missing}; put it there, or correct the benchmark file")
    say(describe_runs(runs, num_devices=request.num_processes) if runs else "nothing of it is unfinished")
    require_runnable()
    if not request.dry_run:
        _finish(benchmark, locations, chosen, runs, request)
        if runs:
            say_left_out(left_out)  # again, after a long log
    return not left_out


def _find_chosen(
    benchmark: "Benchmark", experiments: tuple[str, ...], request: _Request
) -> "Callable[[str, PartitionKey], bool]":
    """Return the function that tests whether the options and the part choose an experiment at a key."""
    from tta_pipeline.benchmarks.stream_plans import partition_keys

    keys = {name: partition_keys(benchmark, name) for name in experiments}
    request.selection.require_known(benchmark, {key for each in keys.values() for key in each})
    places = [(name, key) for name in experiments for key in keys[name] if request.selection.has(key)]
    say_left_out(
        f"{name}, whose keys are {abbreviate_list([key.key for key in keys[name]])}; the options choose none of them"
        for name in experiments
        if name not in {name for name, _ in places}
    )
    own = frozenset(places if isinstance(request.part, str) else request.part.places(benchmark, places))
    return lambda name, key: (name, key) in own


def _make_planner(
    benchmark: "Benchmark",
    locations: Locations,
    experiments: tuple[str, ...],
    is_chosen: "Callable[[str, PartitionKey], bool]",
    *,
    request: _Request,
    require_runnable: "Callable[[], None]",
) -> "Planner":
    from tta_pipeline.evaluation.work.planner import Planner

    @cache
    def comparison() -> "FingerprintComparison":
        require_runnable()
        from tta_pipeline.evaluation.work.unfinished import FingerprintComparison  # imports torch: not for a new plan

        return FingerprintComparison(device=request.device)

    def find_trained(*arguments: Any, **options: Any) -> object:
        from tta_pipeline.models import trained_models

        return trained_models.find_trained(*arguments, **options)

    return Planner(
        benchmark=benchmark,
        locations=locations,
        experiments=experiments,
        unfinished_keys=lambda results, keys: keys if request.force else comparison().unfinished_keys(results, keys),
        find_trained=find_trained,
        tell=say,
        is_chosen=is_chosen,
    )


def _require_runnable(benchmark: "Benchmark", locations: Locations, experiments: tuple[str, ...], device: str) -> None:
    """End the command if a device, a model or the code of a method is missing, rather than fail at each cell."""
    from tta_pipeline.evaluation.device.devices import find_devices
    from tta_pipeline.evaluation.refusals import find_refusals
    from tta_pipeline.models.own_transforms import find_other_transforms

    find_devices(device)
    for refused in find_refusals(benchmark, locations, experiments):
        exit_with_error(f"{refused.subject}: {refused.found}; or choose other experiments with --experiment")
    for other in find_other_transforms(benchmark, (benchmark.experiments[name].model for name in experiments)):
        say(f"note: {other}")


def _runs_of(request: _Request, benchmark: "Benchmark", runs: "Sequence[PlannedRun]") -> "tuple[PlannedRun, ...]":
    """Return the *runs* that *request* asks for; raise an error if a part's evaluations lack shards or models.

    Other parts run at the same time, so each would make the missing files again.
    """
    part, preparing = request.part, _preparing(runs)
    if part == "prepare":
        return preparing
    if part and preparing:
        exit_with_error(
            f"{benchmark.name}: part {part} needs shards or models that are missing, such as {preparing[0].name}; "
            f"expected all of its shards and models: run `tta-pipeline run {benchmark.name} --part prepare`"
        )
    with_report = not part and request.has_report
    return tuple(planned_run for planned_run in runs if with_report or planned_run.stage != "report")


def _say_next(benchmark: "Benchmark", experiments: tuple[str, ...]) -> str:
    """Return the commands to run on the results of *experiments*; `compare` if two of them have the same streams."""
    specs = {name: benchmark.experiments[name] for name in experiments}
    pairs = (
        f", tta-pipeline compare {a} {b}"
        for a, b in combinations(reversed(experiments), 2)
        if (specs[a].protocol, specs[a].subset) == (specs[b].protocol, specs[b].subset)
    )
    return f"tta-pipeline leaderboard{next(pairs, '')}"


def _finish(
    benchmark: "Benchmark",
    locations: Locations,
    experiments: tuple[str, ...],
    runs: "tuple[PlannedRun, ...]",
    request: _Request,
) -> None:
    """Do *runs*, here or in processes, and print the report's path; exit with status 1 if something failed."""
    from tta_pipeline.evaluation.work.planned_runs import REPORT

    if request.num_processes == 1 or all(planned_run.stage == "report" for planned_run in runs):
        num_failed, num_apart = _materialize(benchmark, locations, runs, request), 0
    else:
        num_failed, num_apart = _materialize(benchmark, locations, _preparing(runs), request), 0
        if not num_failed:  # otherwise each process would only report that something is missing
            num_apart = run_parts(benchmark.name, tuple(request.options()), request.num_processes)
            num_failed = _materialize(benchmark, locations, (REPORT,), request) if request.has_report else 0
    if num_failed or num_apart:
        failed = count_of(num_apart, "process") if num_apart else count_of(num_failed, "run")
        exit_with_error(
            f"{failed} failed; expected no failure: correct what the lines with ERROR name, and run the same command "
            "again, which skips finished work"
        )
    if request.part in ("", "report"):
        report = locations.report(benchmark.name) / "index.html"
        where = f"report: {report}; " if request.has_report and report.exists() else ""
        click.echo(f"{where}next: {_say_next(benchmark, experiments)}")


def _preparing(runs: "Sequence[PlannedRun]") -> "tuple[PlannedRun, ...]":
    """Return the *runs* that make the input of evaluations: shards and trained models."""
    return tuple(planned_run for planned_run in runs if planned_run.stage not in ("evaluations", "report"))


def _materialize(
    benchmark: "Benchmark", locations: Locations, runs: "tuple[PlannedRun, ...]", request: _Request
) -> int:
    """Materialize *runs* one after the other, up to the end of the first stage that makes nothing.

    A run may contain several experiments. If one of them fails, the results of the others are still reported. Only the
    process that makes the report publishes; otherwise many processes would copy the database in turn.

    Returns:
        Number of runs that failed.
    """
    if not runs:
        return 0
    from tta_pipeline.definitions import build_definitions
    from tta_pipeline.defs.history import open_history
    from tta_pipeline.defs.in_process import materialize_run, run_config, was_interrupted

    definitions = build_definitions(locations)
    config, num_failed = run_config(request.compute, publishes=request.part in ("", "report")), 0
    with open_history(locations) as instance:
        for _, stage in groupby(enumerate(runs, 1), lambda numbered: numbered[1].stage):
            makes_something = False
            for number, planned_run in stage:
                say(f"{number} of {len(runs)}: {planned_run.name}")
                result = materialize_run(
                    definitions, benchmark, planned_run, instance=instance, run_config=config, force=request.force
                )
                if is_interrupted() or was_interrupted(result):
                    raise KeyboardInterrupt
                makes_something |= bool(result.get_asset_materialization_events())
                num_failed += not result.success
            if not makes_something:
                break
    return num_failed
