"""The search: evaluates every unfinished trial on every held-out cell, and records what each criterion chooses."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.resolved_experiment import TUNINGS, find_choices
from tta_pipeline.benchmarks.tuning_settings import Tuning
from tta_pipeline.domain.cells import CLEAN, Cell, PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.inputs import SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import run_experiment
from tta_pipeline.extras.tuning.grid import (
    Combination,
    Grid,
    as_json,
    combination_text,
    combinations,
    num_combinations,
    require_valid_combinations,
    require_valid_grid,
    trial_name,
)
from tta_pipeline.extras.tuning.held_out import (
    benchmark_of_trial,
    require_shards,
    require_tunable,
    require_unreported_images,
)
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.result_files import Result, StoredResult, store_result, utc_now
from tta_pipeline.results.tuning_criteria import CRITERIA, probes_of
from tta_pipeline.results.tuning_record import TuningRun
from tta_pipeline.results.tuning_trial import Trial
from tta_pipeline.util.software_versions import software_versions


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search for the hyperparameters of one experiment."""

    benchmark: Benchmark
    experiment_name: str
    locations: Locations
    grid: Grid
    """Values to try; empty: the grid in the benchmark file."""
    budget: int | None = None
    """Largest number of trials; None: the budget in the benchmark file."""
    compare: bool = False
    """Whether to record all criteria, and judge them by evaluating each trial on the reported cells too."""

    def __post_init__(self) -> None:
        """Refuse an impossible search before anything is evaluated."""
        require_tunable(self.benchmark, self.experiment_name)
        require_valid_grid(self.values, self.benchmark.experiments[self.experiment_name], self.experiment_name)
        require_valid_combinations(self.combinations, self.benchmark.experiments[self.experiment_name])

    @property
    def settings(self) -> Tuning:
        """Settings of the search in the benchmark file."""
        return self.benchmark.tuning[self.experiment_name]

    @property
    def values(self) -> Grid:
        """The grid to search."""
        return self.grid or self.settings.grid

    @cached_property
    def combinations(self) -> tuple[Combination, ...]:
        """The combinations to try, in the order of the grid."""
        return combinations(self.values, self._budget)

    def run(self, *, machine: Machine, run_id: str, tell: Callable[[str], None]) -> StoredResult:
        """Evaluate the unfinished trials, and return the choice, which is recorded once.

        Args:
            machine: Settings of the machine.
            run_id: Run that the results name.
            tell: Called with messages about progress.

        Raises:
            ManifestError, StreamError, EvaluationError: see `run_experiment`.
            RecordError: a result cannot be written.
        """
        started_at = utc_now()
        self.require_images()
        trials = partial(self._evaluate_trials, known=SharedCache(), machine=machine, run_id=run_id, tell=tell)
        found = tuple(trials(self.benchmark.held_out))
        run = self._make_tuning_run(tuple(each.trial for each in found))
        for caution in run.cautions():
            tell(caution)
        if self.compare:  # the choice exists
            reported = tuple(trials(self.benchmark.corruptions))
            run, found = replace(run, reported_trials=tuple(each.trial for each in reported)), (*found, *reported)
        fingerprint = self._fingerprint(run, [each.fingerprints for each in found])
        return self._store(run, fingerprint, run_id=run_id, started_at=started_at)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that trials see: held-out ones, and to compare criteria the reported ones too."""
        return (
            *self._cells(self.benchmark.held_out), *(self._cells(self.benchmark.corruptions) if self.compare else ())
        )  # fmt: skip

    def require_images(self) -> None:
        """Refuse a search whose cells have no shards, or whose held-out cells have the shards of reported ones."""
        require_unreported_images(self.benchmark, self._cells(self.benchmark.held_out), self.locations)
        if self.compare:
            require_shards(self.benchmark, self._cells(self.benchmark.corruptions), self.locations)

    @property
    def _budget(self) -> int:
        return self.budget or self.settings.budget

    def _cells(self, shifts: Sequence[str]) -> tuple[Cell, ...]:
        """Return the cells of every trial on *shifts*; trials differ in hyperparameters only."""
        results = self._results(self.combinations[0], shifts)
        return tuple(
            dict.fromkeys(cell for key in _keys(results) for plan in results.plans(key) for cell in plan.cells)
        )

    def _results(self, combination: Combination, shifts: Sequence[str]) -> ExperimentResults:
        benchmark, name = benchmark_of_trial(self.benchmark, self.experiment_name, combination, shifts)
        return ExperimentResults(benchmark=benchmark, experiment_name=name, locations=self.locations, is_trial=True)

    def _evaluate_trials(
        self, shifts: Sequence[str], *, known: SharedCache, machine: Machine, run_id: str, tell: Callable[[str], None]
    ) -> Iterator["_EvaluatedTrial"]:
        """Yield each trial on *shifts*, after running its unfinished evaluations."""
        probes = probes_of(CRITERIA if self.compare else [self.settings.criterion])
        for number, combination in enumerate(self.combinations, start=1):
            results = self._results(combination, shifts)
            found = run_experiment(
                results, _keys(results), machine=machine, run_id=run_id, tell=tell, keeps_predictions=False,
                known=known, probes=probes,
            )  # fmt: skip
            rows = [row for key in _keys(results) for row in found[key]]
            trial = _make_trial(combination, rows)
            tell(
                f"trial {number} of {len(self.combinations)}, {combination_text(combination)}: error {trial.error:.1%} "
                f"on {', '.join(shifts)}"
            )
            yield _EvaluatedTrial(trial=trial, fingerprints=tuple(row.setup.fingerprint for row in rows))

    def _make_tuning_run(self, trials: tuple[Trial, ...]) -> TuningRun:
        benchmark, results = self.benchmark, self._results(self.combinations[0], self.benchmark.held_out)
        return TuningRun.from_trials(
            trials,
            criterion=self.settings.criterion,
            benchmark=benchmark.file,
            dataset=benchmark.dataset.name,
            experiment=self.experiment_name,
            model=results.spec.model,
            method=results.spec.method,
            protocol=results.spec.protocol.name,
            subset=results.spec.subset.name if results.spec.subset else "all",
            held_out=benchmark.held_out,
            reported=benchmark.corruptions,
            grid=as_json(self.values),
            num_combinations=num_combinations(self.values),
            budget=self._budget,
            reported_trials=(),
        )

    def _fingerprint(self, run: TuningRun, trials: Sequence[Sequence[str]]) -> str:
        """Return the hash of what determines the choice: the grid, the criterion, and each trial's fingerprint."""
        decided = [run.experiment, run.grid, run.budget, run.criterion, run.held_out, run.reported, trials]
        return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()

    def _store(self, run: TuningRun, fingerprint: str, *, run_id: str, started_at: str) -> StoredResult:
        """Return the choice with *fingerprint*, and make it the latest.

        A later timing never changes a choice: an existing choice stays unchanged, or is written again after newer ones.
        """
        made = Result(
            kind="tuning",
            benchmark=self.benchmark.name,
            key=TUNINGS,
            fingerprint=fingerprint,
            run_id=run_id,
            started_at=started_at,
            finished_at=utc_now(),
            versions=software_versions(),
            tuning=run,
        )
        choices = find_choices(self.locations, self.benchmark.name, self.experiment_name)
        if choices and choices[-1][0].result.fingerprint == fingerprint:
            return choices[-1][0]
        earlier = [chosen for stored, chosen in choices if stored.result.fingerprint == fingerprint]
        return store_result(
            self.locations.results(self.benchmark.name), replace(made, tuning=earlier[0]) if earlier else made
        )


@dataclass(frozen=True, kw_only=True)
class _EvaluatedTrial:
    trial: Trial
    fingerprints: tuple[str, ...]
    """Of its evaluations."""


def _keys(results: ExperimentResults) -> tuple[PartitionKey, ...]:
    """Return the keys of a trial's streams, without clean images: their error is reported, so no trial may use it."""
    return tuple(key for key in results.keys if key != CLEAN)


def _make_trial(combination: Combination, rows: Sequence[Evaluation]) -> Trial:
    errors = tuple(row.error for row in rows)
    return Trial(
        trial=trial_name(combination),
        hyperparameters=as_json(combination),
        error=sum(errors) / len(errors),
        errors=errors,
        **_label_free_means(rows),
        cells=tuple(row.cell.key for row in rows),
        num_samples=min(row.scores.num_samples for row in rows),
        num_diverged=sum(row.scores.diverged for row in rows),
        wall_s=sum(row.time.wall_s for row in rows),
    )


def _label_free_means(rows: Sequence[Evaluation]) -> dict[str, float | None]:
    """Return the scores of a trial without labels; none counts if a logit is not finite.

    A network with NaN logits predicts one class for every image, and so agrees with itself on every view.
    """
    columns = {
        "mean_entropy": [row.label_free.mean_entropy for row in rows],
        "view_agreement": [row.label_free.view_agreement for row in rows],
        "neighbourhood_density": [row.label_free.neighbourhood_density for row in rows],
        "source_agreement": [row.label_free.source_agreement for row in rows],
    }
    is_finite = None not in columns["mean_entropy"]
    return {name: _mean(values) if is_finite else None for name, values in columns.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
