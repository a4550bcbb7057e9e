"""Judges the experiments of a benchmark by its gate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.gate_settings import Gate
from tta_pipeline.errors import ManifestError, PipelineError, RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.extras.cluster.unfinished import FingerprintComparison
from tta_pipeline.extras.reproduction.result import RESULT_FILE, ExperimentResult
from tta_pipeline.report.gate.baseline import Results, judge_against
from tta_pipeline.report.gate.finding import Finding
from tta_pipeline.report.gate.judged_results import OpenSamples, judge_published, judge_results
from tta_pipeline.report.gate.limits import judge_limits
from tta_pipeline.report.significance.paired_tests import Estimate
from tta_pipeline.report.significance.pairwise import estimate_error
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.partitions import PartitionKey
from tta_pipeline.util.short_lists import first_few

_FINGERPRINT = "fingerprints: the record is of the present data, weights, code and settings"


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Judges experiments; shards, weights and records are read once for all of them."""

    benchmark: Benchmark
    locations: Locations
    gate: Gate
    connection: duckdb.DuckDBPyConnection
    """The database, brought up to date."""
    comparison: FingerprintComparison
    _samples: OpenSamples = field(default_factory=OpenSamples)

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each demand on each experiment; of an unfinished one, only that it is not finished.

        Raises:
            EvaluationError: a model cannot be loaded; its weights are part of the fingerprint.
        """
        names = self.gate.experiments or [
            name for name in self.benchmark.experiments if name != self.gate.no_worse_than
        ]
        for name in names:
            yield from self._judge(name)

    def _judge(self, name: str) -> Iterator[Finding]:
        results = self._results(name)
        finished = self._judge_finished(results)
        yield from finished
        if not all(each.is_kept for each in finished):
            return
        try:
            own = judge_results(results, self._samples)
        except (RecordError, ManifestError) as error:
            yield Finding(
                experiment=name, demand="results that can be read", is_kept=False, test="none", reason=str(error)
            )
            return
        yield from judge_limits(self.connection, self.benchmark, name, self.gate, _mean_error(own))
        if self.gate.no_worse_than is not None:
            yield self._judge_against_baseline(results, own)

    def _results(self, name: str) -> ExperimentResults:
        return ExperimentResults(benchmark=self.benchmark, experiment_name=name, locations=self.locations)

    def _judge_finished(self, results: ExperimentResults) -> Sequence[Finding]:
        """Return a finding for each stream that is not finished; if all are, one for all of them."""
        recorded, unfinished = results.recorded_keys(), list(self.comparison.unfinished_keys(results))
        demand = "a finished evaluation"
        if not unfinished:
            reason = f"{len(results.keys)} of {len(results.keys)} streams finished"
            return [
                Finding(
                    experiment=results.experiment_name, demand=demand, is_kept=True, test=_FINGERPRINT, reason=reason
                )
            ]
        return [
            Finding(
                experiment=results.experiment_name,
                cell=key.key,
                demand=demand,
                is_kept=False,
                test=_FINGERPRINT,
                reason=self._say_unfinished(results, key, is_recorded=key in recorded),
            )
            for key in unfinished
        ]

    def _say_unfinished(self, results: ExperimentResults, key: PartitionKey, *, is_recorded: bool) -> str:
        if not is_recorded:
            return "no result: evaluate it"
        why = f"tta-pipeline why {self.benchmark.name} {results.experiment_name} '{key.key}'"
        return f"a stale or damaged result, which `{why}` explains: evaluate it again"

    def _judge_against_baseline(self, results: ExperimentResults, own: Results) -> Finding:
        named = str(self.gate.no_worse_than)
        try:
            baseline = self._read_baseline(named, results)
        except PipelineError as error:
            return Finding(
                experiment=results.experiment_name,
                demand=f"mean error no worse than {named}",
                is_kept=False,
                test="none",
                reason=f"no baseline: {error}",
            )
        return judge_against(
            results.experiment_name, own, baseline, named=named, margin=self.gate.margin
        )  # fmt: skip

    def _read_baseline(self, named: str, results: ExperimentResults) -> Results:
        """Return the results of the baseline *named* for the experiment of *results*.

        Raises:
            RecordError, ManifestError: there is no such baseline, or its results are missing, stale or damaged.
        """
        if named in self.benchmark.experiments:
            return self._read_experiment(named)
        top = Path(named).expanduser()
        if not top.is_dir():
            choices = name_choices(named, self.benchmark.experiments, listed_in="`tta-pipeline results list`")
            raise RecordError(
                f"found no folder {named} and no experiment of this name; expected a folder that `tta-pipeline results "
                f"publish` wrote, or an experiment: {choices}"
            )
        folder = top if (top / RESULT_FILE).exists() else top / results.experiment_name
        published = ExperimentResult.read(folder)
        if (published.benchmark, published.shift_set) != (self.benchmark.name, self.benchmark.shift_set.name):
            raise RecordError(
                f"{folder} has results of {published.benchmark} with {published.shift_set}; expected "
                f"{self.benchmark.name} with {self.benchmark.shift_set.name}"
            )
        return judge_published(published, folder, results, self._samples)

    def _read_experiment(self, name: str) -> Results:
        baseline = self._results(name)
        if unfinished := [key.key for key in self.comparison.unfinished_keys(baseline)]:
            raise RecordError(
                f"{name} has no present result of {first_few(unfinished, 3)}; expected finished ones: run the benchmark"
            )
        return judge_results(baseline, self._samples)


def _mean_error(own: Results) -> Estimate | None:
    """Return the mean error with its interval over images; None if predictions of a cell are not kept."""
    counted = [each.wrong for each in own.values() if each.in_mean]
    kept = [each for each in counted if each is not None]
    return estimate_error(kept) if len(kept) == len(counted) else None
