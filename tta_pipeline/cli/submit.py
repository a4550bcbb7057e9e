"""The verb `submit`."""

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import LocalPath, parse_settings, plain_errors, print_table, say, say_left_out
from tta_pipeline.cli.engines import DEFAULT, ENGINES, EngineEntry, engine_of, names_of
from tta_pipeline.cli.unfinished_work import make_planner, print_plan
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import SubmissionError
from tta_pipeline.util.files import locked
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.benchmark import Benchmark
    from tta_pipeline.evaluation.work.pieces import Cut, Piece
    from tta_pipeline.extras.cluster.engine import Engine
    from tta_pipeline.extras.cluster.overview import Overview
    from tta_pipeline.extras.cluster.submission import Submission

_FinishedPlaces = Mapping["Piece", frozenset[tuple[str, str]]]
"""For each piece, the places that it has finished."""
_CONFIGS = "; ".join(f"{name}: {entry.config}" for name, entry in ENGINES.items() if entry.config)
_DEVICES_OF_A_CLUSTER = 4
_SYNC_EVERY_S = 30.0
"""Seconds after which a watching submitter updates the database and Dagster's history again."""


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline submit mine --dry-run",
        "tta-pipeline submit mine --engine slurm --devices 8 --watch",
        "tta-pipeline submit mine --status",
        "tta-pipeline submit mine --cancel --number 3",
    ],
)
@click.argument("benchmark_name", metavar="BENCHMARK")
@click.option("--experiment", "experiments", multiple=True, metavar="NAME", help="Only this experiment; can be "
              "repeated.")  # fmt: skip
@click.option("--piece", "by", type=click.Choice(["corruption", "cell", "stream"]), default="corruption",
              show_default=True, help="The most that a piece covers: a corruption, a cell, or one stream of one "
              "experiment.")  # fmt: skip
@click.option("--engine", "engine_name", type=click.Choice(tuple(ENGINES)), help="What starts the pieces: "
              f"{'; '.join(f'{name}, {entry.what}' for name, entry in ENGINES.items())}. Default: {DEFAULT}; --status "
              "and --cancel ask the engine of the submission.")  # fmt: skip
@click.option("--devices", "num_devices", type=click.IntRange(1, 100_000), help="Number of pieces that compute at "
              f"a time; default: the devices here, or {_DEVICES_OF_A_CLUSTER} on a cluster; dagster.yaml limits "
              f"{names_of(lambda entry: entry.uses_dagster)}.")  # fmt: skip
@click.option("--device", help="Kind of device that computes, such as cuda or cpu; default: the kind found here; for "
              f"{names_of(lambda entry: entry.is_elsewhere)}: cuda.")  # fmt: skip
@click.option("--compute", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the resource compute, "
              "such as stage_folder='$TMPDIR'.")  # fmt: skip
@click.option("--engine-config", "config_path", type=LocalPath(exists=True, dir_okay=False),
              help=f"YAML file for {_CONFIGS}.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the plan, and submit nothing.")
@click.option("--watch", "watches", is_flag=True, help="Report progress until the work ends; Ctrl-C leaves it running.")
@click.option("--status", "asks_status", is_flag=True, help="Show the progress of a submission.")
@click.option("--cancel", "cancels", is_flag=True, help="Stop the running pieces of a submission, and start no more.")
@click.option("--number", type=click.IntRange(1), help="Submission for --status and --cancel; default: the newest.")
@plain_errors
def submit(
    *,
    benchmark_name: str,
    experiments: tuple[str, ...],
    by: "Cut",
    engine_name: str | None,
    num_devices: int | None,
    device: str | None,
    settings: tuple[str, ...],
    config_path: Path | None,
    dry_run: bool,
    watches: bool,
    asks_status: bool,
    cancels: bool,
    number: int | None,
) -> None:
    r"""Evaluate a whole benchmark: here, on many GPUs, by Slurm.

    Its unfinished work becomes pieces that run in parallel. Shards come before evaluations, and the report is made at
    the end. Work that is finished, running or waiting is not submitted again. A piece that fails is tried a second
    time; if it fails again, it is listed with its log.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks

    asks = asks_status or cancels
    if number and not asks:
        raise click.UsageError("--number is given without --status or --cancel: leave it out to submit")
    if dry_run and asks:
        raise click.UsageError("--dry-run is given with --status or --cancel: leave one out")
    if config_path and not asks and not ENGINES[engine_name or DEFAULT].config:
        raise click.UsageError(
            f"--engine-config is given with the engine {engine_name or DEFAULT}, which reads no file: leave it out, or "
            f"name an --engine that does: {names_of(lambda entry: entry.config)}"
        )
    locations = Locations.from_environment()
    loaded = load_all_benchmarks(locations)
    benchmark = loaded.benchmark(benchmark_name)
    say_left_out(fault.sentence for fault in loaded.faults_of(benchmark.name))
    submission = _require_submission(locations, benchmark.name, number, engine_name) if asks else None
    submitter = _Submitter(
        benchmark=benchmark,
        locations=locations,
        engine_name=submission.engine if submission else engine_name or DEFAULT,
        entry=engine_of(submission) if submission else ENGINES[engine_name or DEFAULT],
        num_devices=num_devices,
        config_path=config_path,
    )
    submission = submission or submitter.submit(
        loaded.choose_experiments(benchmark.name, experiments),
        by=by,
        device=device,
        compute=parse_settings("--compute", settings),
        dry_run=dry_run,
    )
    if submission is None:
        return
    if cancels:
        submitter.engine.cancel(submission)
        say(f"cancelled: submission {submission.number} of {benchmark.name}")
    if watches:
        submitter.watch(submission)
    elif not asks:
        _say_all(submitter.engine.obstacles(submission))
    if asks or watches:
        sys.exit(submitter.print_status(submission))


def _require_submission(locations: Locations, benchmark: str, number: int | None, engine: str | None) -> "Submission":
    """Return the submission that the user asks about; refuse *engine* if another one has the submission."""
    from tta_pipeline.extras.cluster.submission import find_submission

    found = find_submission(locations, benchmark, number)
    if engine not in (None, found.engine):
        raise click.UsageError(
            f"submission {found.number} of {benchmark} is with {found.engine}, not with {engine}: leave out --engine, "
            "or name another submission by --number"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class _Submitter:
    """Submits pieces of a benchmark to an engine, and asks it for their states."""

    benchmark: "Benchmark"
    locations: Locations
    engine_name: str
    entry: EngineEntry
    num_devices: int | None
    config_path: Path | None

    @cached_property
    def max_running(self) -> int:
        """Largest number of pieces that compute at the same time."""
        if self.num_devices:
            return self.num_devices
        if self.entry.is_elsewhere:
            return _DEVICES_OF_A_CLUSTER
        from tta_pipeline.evaluation.device.devices import device_facts

        return len(device_facts()) or 1

    @cached_property
    def engine(self) -> "Engine":
        """The engine of the user's choice."""
        return self.entry.open(self.locations.root, self.config_path)

    def device_kind(self, asked: str | None) -> str:
        """Return the kind of device that computes; on a cluster, this machine need not have one."""
        from tta_pipeline.evaluation.device.devices import CLUSTER_DEVICE_KIND, device_type

        return asked or (CLUSTER_DEVICE_KIND if self.entry.is_elsewhere else device_type("auto"))

    def submit(
        self, experiments: tuple[str, ...], *, by: "Cut", device: str | None, compute: JsonObject, dry_run: bool
    ) -> "Submission | None":
        """Print the plan, and submit it unless it is empty or *dry_run* is set."""
        if not dry_run:
            self.engine.require_ready()
        kind = self.device_kind(device)
        compute = _validate_compute({**compute, "device": kind})
        # Two submitters at the same time would both find the same work unfinished, and submit it twice.
        with locked(self.locations.submissions(self.benchmark.name) / "submitting.lock"):
            pieces = self.plan(experiments, by=by, device=kind)
            return self._create_and_start(pieces, compute) if pieces and not dry_run else None

    def plan(self, experiments: tuple[str, ...], *, by: "Cut", device: str) -> "tuple[Piece, ...]":
        """Return the pieces to submit, and print the plan."""
        from tta_pipeline.extras.cluster.under_way import plan_beside
        from tta_pipeline.results.database.publication import publish_metrics

        publish_metrics(self.locations)  # the planner reads measured times from the database
        busy = tuple(self._find_active())
        planner = make_planner(self.benchmark, self.locations, experiments, device=device)
        pieces = plan_beside(planner, busy, by=by, num_devices=self.max_running)
        if busy:
            say(f"{len(busy):,} pieces of {self.benchmark.name} run or wait already")
        if not pieces:
            say("nothing else is unfinished" if busy else f"nothing of {self.benchmark.name} is unfinished")
            return ()
        print_plan(pieces, self.max_running)
        return pieces

    def _find_active(self) -> "Iterator[Piece]":
        """Yield the pieces of earlier submissions that run or wait; mark submissions without any as over."""
        from tta_pipeline.extras.cluster.overview import Overview
        from tta_pipeline.extras.cluster.submission import find_open_submissions

        for submission in find_open_submissions(self.locations, self.benchmark.name):
            engine = engine_of(submission).open(self.locations.root, None)
            overview = Overview(submission=submission, states=engine.states(submission))
            yield from overview.active
            if not overview.is_over:
                _say_all(engine.obstacles(submission))
            _mark_if_over(overview)

    def _create_and_start(self, pieces: "tuple[Piece, ...]", compute: JsonObject) -> "Submission":
        """Submit *pieces*, and print the commands that show, watch and stop them."""
        from tta_pipeline.extras.cluster.submission import Submission

        submission = Submission.create(
            self.locations,
            benchmark=self.benchmark.name,
            engine=self.engine_name,
            pieces=pieces,
            compute=compute,
            owner=self.engine.owner(),
        )
        self.engine.start(submission, num_devices=self.max_running)
        name = self.benchmark.name
        say(
            f"submitted {count_of(len(pieces), 'piece')} as submission {submission.number} of {name}, in "
            f"{submission.folder}\n"
            f"its progress:  tta-pipeline submit {name} --status\n"
            f"to watch it:   tta-pipeline submit {name} --status --watch\n"
            f"to stop it:    tta-pipeline submit {name} --cancel"
        )
        return submission

    def watch(self, submission: "Submission") -> None:
        """Print the progress of *submission* until it is over, or until Ctrl-C."""
        said, told = "", time.monotonic()
        try:
            overview = self._overview(submission)
            while not overview.is_over:
                lines = "\n".join([overview.line(self.max_running), *self.engine.obstacles(submission)])
                if lines != said:
                    say(lines)
                if time.monotonic() - told > _SYNC_EVERY_S:
                    self._sync_results(overview)
                    told = time.monotonic()
                said = lines
                time.sleep(self.entry.poll_every_s)
                overview = self._poll(submission) or overview
        except KeyboardInterrupt:
            say(f"it keeps running; to watch it again: tta-pipeline submit {self.benchmark.name} --status --watch")

    def _poll(self, submission: "Submission") -> "Overview | None":
        """Return the overview of *submission*; None if the engine, which answered before, does not answer now."""
        try:
            return self._overview(submission)
        except SubmissionError as error:
            say(f"{error}; asking again in {self.entry.poll_every_s:.0f} s")
            return None

    def print_status(self, submission: "Submission") -> int:
        """Print the progress and the failures of *submission*, and return the exit status: 0 unless a piece failed."""
        from tta_pipeline.extras.cluster.overview import STATUS_COLUMNS
        from tta_pipeline.report.tables import Table

        overview = self._overview(submission)
        finished = self._finished_places(overview)
        self._sync_results(overview, finished)
        overview = overview.with_finished(finished)
        _mark_if_over(overview)
        print_table(Table(columns=STATUS_COLUMNS, rows=tuple(overview.rows())))
        say(overview.line(self.max_running))
        if not overview.is_over:
            _say_all(self.engine.obstacles(submission))
        problems = tuple(overview.problems())
        for problem in problems:
            say(problem)
        return 1 if problems else 0

    def _overview(self, submission: "Submission") -> "Overview":
        from tta_pipeline.extras.cluster.overview import Overview

        return Overview(submission=submission, states=self.engine.states(submission))

    def _finished_places(self, overview: "Overview") -> "_FinishedPlaces":
        """Return the places that are finished although their piece ended without being done."""
        if not overview.unsuccessful:
            return {}
        from tta_pipeline.extras.cluster.under_way import finished_places

        device = str(overview.submission.compute.get("device", "auto"))
        planner = make_planner(self.benchmark, self.locations, tuple(self.benchmark.experiments), device=device)
        return finished_places(planner, overview.unsuccessful)

    def _sync_results(self, overview: "Overview", finished: "_FinishedPlaces | None" = None) -> None:
        """Update the database from the results, and add to Dagster's history what no run has reported there.

        These are all results of an engine that keeps no history, and the *finished* places of pieces that are not done.
        """
        from tta_pipeline.results.database.publication import publish_metrics

        publish_metrics(self.locations)
        untold = () if self.entry.uses_dagster else overview.done
        finished = finished or {}
        if not untold and not any(finished.values()):
            return
        from tta_pipeline.definitions import defs
        from tta_pipeline.defs.resources.queued_runs import persistent_instance
        from tta_pipeline.defs.sync_history import covered_places, sync_history

        graph = defs.resolve_asset_graph()
        places = [place for piece in untold for place in covered_places(graph, self.benchmark, piece)]
        places += [place for of_piece in finished.values() for place in sorted(of_piece)]
        with persistent_instance() as instance:
            num_new = sync_history(
                instance,
                graph,
                self.benchmark,
                self.locations,
                places=places,
                tell=say,
            )
        if num_new:
            say(f"added {count_of(num_new, 'partition')} to Dagster's history")


def _mark_if_over(overview: "Overview") -> None:
    """Mark a submission that is over, so that its engine is not asked again; a sensor marks its own submissions."""
    if overview.is_over and not overview.submission.owner:
        overview.submission.mark_ended()


def _say_all(lines: tuple[str, ...]) -> None:
    for line in lines:
        say(line)


def _validate_compute(compute: JsonObject) -> JsonObject:
    """Return *compute* after checking that the resource `compute` accepts these settings."""
    from pydantic import ValidationError

    from tta_pipeline.defs.resources import Compute
    from tta_pipeline.util.validation_errors import mistakes

    if unknown := compute.keys() - Compute.model_fields.keys():
        known = name_choices(unknown, sorted(Compute.model_fields), listed_in="docs/reference/dagster.md")
        raise click.UsageError(f"--compute has {', '.join(sorted(unknown))}; expected some of {known}")
    try:
        Compute.model_validate(compute)
    except ValidationError as error:
        raise click.UsageError(f"--compute: {'; '.join(mistakes(error, ''))}") from None
    return compute
