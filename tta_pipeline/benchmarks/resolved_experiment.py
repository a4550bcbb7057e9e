"""Hyperparameters of an experiment and their origin: published, tuned on held-out shifts, set by hand, and others."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError, PipelineError, on_one_line
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.methods.entry import Hyperparameters, NetworkFamily
from tta_pipeline.results.evaluation_parts import BY_HAND, OWN, PRESET, PUBLISHED, TUNED
from tta_pipeline.results.names import find_results
from tta_pipeline.results.result_files import StoredResult, read_result
from tta_pipeline.results.tuning_criteria import DEFAULT_CRITERION
from tta_pipeline.results.tuning_record import TuningRun

_FAMILIES: Mapping[NetworkFamily, re.Pattern[str]] = {
    "clip": re.compile(r"^open_clip |^transformers .*clip(?<!siglip)"),
    "vit": re.compile(r"^(?!open_clip|transformers).*(\b|_)(vit|deit)"),
    "resnet": re.compile(r"^(?!.*(resnetv2|_gn\b|_gn[._])).*(resnet|resnext|wrn|wide_?res)"),
}
"""Names of the architectures of each kind; a ResNet counts as one with batch norm."""


TUNINGS = "tunings"
"""Folder of the choices among a benchmark's results."""


@dataclass(frozen=True, kw_only=True)
class ResolvedExperiment:
    """An experiment with the hyperparameters for its evaluation."""

    experiment: Experiment
    """The experiment, with chosen values among its hyperparameters."""
    origin: str
    """One of `PUBLISHED`, `PRESET`, `TUNED`, `OWN` and `BY_HAND`."""
    tuning: str | None
    """The choice as JSON: its values, cells and grid; None if the experiment uses none."""
    criterion: str | None = None
    """The criterion of the choice, if not labels; None if the experiment uses no choice."""


def resolve_experiment(benchmark: Benchmark, experiment_name: str, locations: Locations) -> ResolvedExperiment:
    """Return the experiment, with its tuned hyperparameters if it uses any.

    Raises:
        EvaluationError: nothing was chosen yet, or the choice was made on shifts that are no longer held out, or for
            another method.
        RecordError: the file of the choice is damaged.
    """
    experiment = benchmark.experiments[experiment_name]
    tuned_as = experiment.tuned_as(experiment_name)
    if tuned_as is None:
        return ResolvedExperiment(experiment=experiment, origin=find_origin(benchmark, experiment), tuning=None)
    stored, run = _read_choice(benchmark, tuned_as, locations)
    require_held_out(benchmark, run.shifts, f"{stored.path} has hyperparameters chosen")
    if run.method != experiment.method:
        raise EvaluationError(
            f"{stored.path} has hyperparameters for method {run.method}; expected hyperparameters for "
            f"{experiment.method}: rerun `tta-pipeline tune {benchmark.name} {tuned_as}`"
        )
    asked = benchmark.tuning[tuned_as].criterion
    if run.criterion != asked:
        raise EvaluationError(
            f"{stored.path} has hyperparameters chosen by {run.criterion}; expected the criterion of "
            f"tuning.{tuned_as}, {asked}: rerun `tta-pipeline tune {benchmark.name} {tuned_as}`"
        )
    with_choice = _apply_choice(experiment, run)
    return ResolvedExperiment(
        experiment=with_choice,
        origin=find_origin(benchmark, with_choice, tuple(run.values)),
        tuning=_choice_json(run, stored),
        criterion=None if run.criterion == DEFAULT_CRITERION else run.criterion,
    )


def find_untuned(benchmark: Benchmark, locations: Locations, experiments: Iterable[str]) -> Mapping[str, str]:
    """Return those of *experiments* that lack a tuning that fits, each with what to do, in one line."""
    untuned = {}
    for name in experiments:
        try:
            resolve_experiment(benchmark, name, locations)
        except PipelineError as error:
            untuned[name] = f"{benchmark.name}/{name}: {on_one_line(error)}"
    return untuned


def require_held_out(benchmark: Benchmark, shifts: tuple[str, ...], who: str) -> None:
    """Raise if some of *shifts* are reported by the benchmark, or not held out by its dataset, in the current files.

    Raises:
        EvaluationError: there are such shifts; the message begins with *who*.
    """
    if odd := [shift for shift in shifts if shift not in benchmark.held_out]:
        held_out = ", ".join(benchmark.held_out) or "none"
        raise EvaluationError(
            f"{who} on {', '.join(odd)}; expected shifts that {benchmark.dataset.name} holds out and {benchmark.name} "
            f"does not report ({held_out}): retune on these, or set the values in hyperparameters"
        )


def find_origin(benchmark: Benchmark, experiment: Experiment, chosen: tuple[str, ...] = ()) -> str:
    """Return the origin of the hyperparameters of *experiment*; those named in *chosen* come from a tuning.

    Chosen values count as tuned only if all other values are a preset's; otherwise the origin is `BY_HAND`. Images that
    this project draws belong to no published dataset, whatever their shifts are called.
    """
    if chosen:
        settings, batch_size = experiment.configured_hyperparameters(), experiment.method_batch_size
        is_preset = experiment.entry.is_preset(settings, batch_size=batch_size, but_for=chosen)
        return TUNED if is_preset else BY_HAND
    return origin_of_settings(
        experiment.method, experiment.configured_hyperparameters(), batch_size=experiment.method_batch_size,
        dataset=None if benchmark.is_drawn else benchmark.dataset.name,
        architecture=benchmark.models[experiment.model].network_name,
    )  # fmt: skip


def origin_of_settings(
    method: str,
    settings: Hyperparameters,
    *,
    batch_size: int,
    dataset: str | None = None,
    architecture: str = "",
) -> str:
    """Return the origin of the untuned *settings* of *method*.

    Args:
        method: Name of the method, with or without its pieces.
        settings: Its hyperparameters.
        batch_size: Number of images in a batch.
        dataset: Name of the published dataset; None: no published dataset, or an unknown one.
        architecture: Library and architecture of the network, as in records.
    """
    entry = METHODS.get(method.partition("+")[0])
    if entry is None:
        return OWN
    if entry.is_published(settings, dataset=dataset, family=_family(architecture), batch_size=batch_size):
        return PUBLISHED
    return PRESET if entry.is_preset(settings, batch_size=batch_size) else BY_HAND


def _family(architecture: str) -> NetworkFamily | None:
    """Return the kind of network that *architecture* names; None if its name does not show it."""
    name = architecture.lower()
    return next((family for family, pattern in _FAMILIES.items() if pattern.search(name)), None)


def _read_choice(benchmark: Benchmark, name: str, locations: Locations) -> tuple[StoredResult, TuningRun]:
    """Return the choice for the experiment *name* from the latest search, since each search has its own grid."""
    found = find_choices(locations, benchmark.name, name)
    if not found:
        raise EvaluationError(
            f"no hyperparameters have been chosen for {name} in {locations.results(benchmark.name) / TUNINGS}; "
            f"expected a finished tuning: run `tta-pipeline tune {benchmark.name} {name}`"
        )
    return found[-1]


def find_choices(locations: Locations, benchmark_name: str, name: str) -> list[tuple[StoredResult, TuningRun]]:
    """Return the choices for the experiment *name*, the latest search last.

    Raises:
        RecordError: a choice is damaged; an earlier one never replaces it.
    """
    stored = map(read_result, find_results(locations.results(benchmark_name) / TUNINGS))
    found = [(each, run) for each in stored if (run := each.result.tuning) and run.experiment == name]
    return sorted(found, key=lambda choice: (choice[0].result.finished_at, choice[0].sha256))


def _apply_choice(experiment: Experiment, run: TuningRun) -> Experiment:
    """Return *experiment* with the values that *run* chose.

    Raises:
        EvaluationError: a value does not fit the method, whose code has changed since.
    """
    changed = experiment.model_copy(update={"hyperparameters": {**experiment.hyperparameters, **run.values}})
    try:
        changed.configured_hyperparameters()
    except ValueError as error:
        raise EvaluationError(
            f"{experiment.method} does not accept the chosen hyperparameters {run.chosen} ({error}); expected values "
            "that it accepts: retune the experiment"
        ) from error
    return changed


def _choice_json(run: TuningRun, stored: StoredResult) -> str:
    """Return the facts about the choice that the experiment's results store, as JSON."""
    facts = {
        "experiment": run.experiment,
        "values": run.values,
        "cells": run.cells,
        "grid": json.loads(run.grid),
        "sha256": stored.sha256,
        **({} if run.criterion == DEFAULT_CRITERION else {"criterion": run.criterion}),
    }
    return json.dumps(facts, sort_keys=True)
