"""The search: evaluates every unfinished trial on every held-out cell, and records what each criterion chooses."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.tuning_settings import Tuning
from tta_pipeline.domain.cells import CLEAN, Cell, PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.inputs import SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.runner import ExperimentRunner
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
from tta_pipeline.results.probed_scores import ProbedScores
from tta_pipeline.results.records import Record, latest_record, publish_record, utc_now
from tta_pipeline.results.tuning_criteria import CRITERIA, probes_of
from tta_pipeline.results.tuning_record import TuningRun
from tta_pipeline.results.tuning_trial import Trial


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search for the hyperparameters of one experiment.

    Raises:
        BenchmarkFileError: the benchmark has no held-out shifts, or does not name the experiment under `tuning`.
        EvaluationError: the grid is empty, or has values that are invalid for a hyperparameter.
    """

    benchmark: Benchmark
    experiment_name: str
    locations: Locations
    grid: Grid
    """Values to try; empty: the grid in the benchmark file."""
    budget: int | None = None
    """Largest number of trials; None: the budget in the benchmark file."""
    compare: bool = False
    """Whether all criteria are recorded, and judged by evaluating each trial on the reported cells too."""

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

    def run(self, *, machine: Machine, run_id: str, tell: Callable[[str], None]) -> Record:
        """Evaluate the unfinished trials, and return the record of the choice.

        Args:
            machine: Settings of the machine.
            run_id: Run ID of the records.
            tell: Called with messages about progress.

        Raises:
            ManifestError, StreamError, EvaluationError: see `ExperimentRunner.evaluate`.
            RecordError: a record cannot be written.
            StoppedError: this process was asked to end; all evaluations before that are recorded.
        """
        started_at = utc_now()
        self.require_images()
        trials = partial(self._evaluate_trials, known=SharedCache(), machine=machine, run_id=run_id, tell=tell)
        found = self._make_tuning_run(tuple(trials(self.benchmark.held_out)))
        for caution in found.cautions(self.num_images):
            tell(caution)
        if self.compare:  # the choice is made
            found = replace(found, reported_trials=tuple(trials(self.benchmark.corruptions)))
        return self._publish(found, run_id=run_id, started_at=started_at)

    @property
    def num_images(self) -> int:
        """Number of images of the smallest evaluation of a trial; the trials must be evaluated."""
        results = self._results(self.combinations[0], self.benchmark.held_out)
        return min(row.num_samples for key in _keys(results) for row in results.rows(key))

    def require_images(self) -> None:
        """Refuse a search whose cells have no shards, or whose held-out cells have the shards of reported ones.

        Raises:
            EvaluationError, ManifestError: see `require_unreported_images` and `require_shards`.
        """
        require_unreported_images(self.benchmark, self._cells(self.benchmark.held_out), self.locations)
        if self.compare:
            require_shards(self.benchmark, self._cells(self.benchmark.corruptions), self.locations)

    @property
    def _budget(self) -> int:
        return self.budget or self.settings.budget

    def _cells(self, shifts: Sequence[str]) -> tuple[Cell, ...]:
        """Return the cells of every trial on *shifts*; trials differ in hyperparameters only."""
        results = self._results(self.combinations[0], shifts)
        return tuple(dict.fromkeys(place.cell for key in _keys(results) for place in results.places(key)))

    def _results(self, combination: Combination, shifts: Sequence[str]) -> ExperimentResults:
        benchmark, name = benchmark_of_trial(self.benchmark, self.experiment_name, combination, shifts)
        return ExperimentResults(benchmark=benchmark, experiment_name=name, locations=self.locations, kind="trials")

    def _evaluate_trials(
        self, shifts: Sequence[str], *, known: SharedCache, machine: Machine, run_id: str, tell: Callable[[str], None]
    ) -> Iterator[Trial]:
        """Yield each trial on *shifts*, after running its unfinished evaluations."""
        probes = probes_of(CRITERIA if self.compare else [self.settings.criterion])
        for number, combination in enumerate(self.combinations, start=1):
            results = self._results(combination, shifts)
            with ExperimentRunner(
                results, machine=machine, run_id=run_id, tell=tell, keeps_predictions=False, known=known, probes=probes
            ) as runner:
                for key in [key for key in _keys(results) if runner.plan(key)]:
                    runner.evaluate(key)
                trial = _make_trial(combination, [row for key in _keys(results) for row in runner.rows(key)])
            tell(
                f"trial {number} of {len(self.combinations)}, {combination_text(combination)}: error {trial.error:.1%} "
                f"on {', '.join(shifts)}"
            )
            yield trial

    def _make_tuning_run(self, trials: tuple[Trial, ...]) -> TuningRun:
        benchmark, results = self.benchmark, self._results(self.combinations[0], self.benchmark.held_out)
        return TuningRun.from_trials(
            trials,
            criterion=self.settings.criterion,
            benchmark=benchmark.file,
            shift_set=benchmark.shift_set.name,
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

    def _publish(self, run: TuningRun, *, run_id: str, started_at: str) -> Record:
        """Return the newest record if it agrees with *run*, else write a new one."""
        folder = self.locations.results(self.benchmark.name)
        with suppress(RecordError):  # a damaged record is reported when records are published
            newest = latest_record(folder, kind="tunings", name=self.experiment_name)
            if newest is not None and newest.tuning == run:
                return newest
        return publish_record(
            folder, kind="tunings", name=self.experiment_name, run_id=run_id, started_at=started_at, facts=run
        )


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
        cells=tuple(f"{row.corruption}|{row.severity}" for row in rows),
        num_diverged=sum(row.diverged for row in rows),
        wall_s=sum(row.wall_s for row in rows),
    )


def _label_free_means(rows: Sequence[Evaluation]) -> dict[str, float | None]:
    """Return the scores of a trial without labels; none counts where a logit is not finite.

    A network of NaN predicts one class for every image, and so agrees with itself on every view.
    """
    probed = [row.probed or ProbedScores() for row in rows]
    columns = {
        "mean_entropy": [row.mean_entropy for row in rows],
        "view_agreement": [each.view_agreement for each in probed],
        "neighbourhood_density": [each.neighbourhood_density for each in probed],
        "source_agreement": [row.source_agreement for row in rows],
    }
    is_finite = None not in columns["mean_entropy"]
    return {name: _mean(values) if is_finite else None for name, values in columns.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
