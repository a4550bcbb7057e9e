"""The checks that compare an evaluation with those before it, on real record files."""

from pathlib import Path

import dagster as dg
import pytest

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.defs.history import keep_history_open
from tta_pipeline.defs.history_checks import DRIFT, THROUGHPUT, history_reports
from tta_pipeline.defs.reporting import CheckReport
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.results.database.history import HistoryComparison
from tta_pipeline.util.partitions import Cell
from tta_pipeline_tests.conftest import SMALL, Project
from tta_pipeline_tests.results.database.made import record

HISTORY = HistoryComparison()
"""One for all tests, as for all cells of a run: a question leaves nothing for the next."""
ROW = {
    "benchmark": "small", "corruption": "contrast", "num_samples": 1000, "images_per_s": 100.0, "error": 0.2,
}  # fmt: skip


@pytest.fixture
def own(project: Project) -> ExperimentResults:
    """An experiment of which nothing is evaluated."""
    project.add_benchmark("small", SMALL)
    benchmark = load_benchmark(project.locations.benchmark_files / "small.yaml")
    return ExperimentResults(benchmark=benchmark, experiment_name="tent", locations=project.locations)


def checked(own: ExperimentResults, *rows: dict[str, object]) -> dict[str, CheckReport]:
    """Record evaluations that differ from a usual one in *rows*, and return what the checks find."""
    for row in rows:
        record(own.locations, **(ROW | row))
    key = Cell(corruption="contrast", severity=5)
    return {report.check: report for report in history_reports(own, key, HISTORY)}


@pytest.mark.parametrize(
    ("speeds", "passed", "found"),
    [
        ([100, 100, 50], True, "nothing to compare"),
        ([100, 90, 110, 86], True, "0.86 times as fast as usual"),
        ([100, 90, 110, 84], False, "0.84 times as fast as usual; expected at least 0.85"),
        ([1, 100, 100, 100, 84], False, "0.84 times"),
    ],
)
def test_an_evaluation_that_is_slower_than_usual_is_noticed(
    own: ExperimentResults, speeds: list[float], *, passed: bool, found: str
):
    """The newest is compared with the median of at least three before it."""
    report = checked(own, *({"images_per_s": speed} for speed in speeds))[THROUGHPUT]

    assert passed == report.passed
    assert found in report.metadata["found"]


@pytest.mark.parametrize(
    "other",
    [
        {"device": "H200", "gpu_name": "H200"}, {"cpu_model": "other"}, {"num_cores": 64}, {"decode_threads": 16},
        {"compute_threads": 16}, {"batch_size": 64}, {"precision": "bf16"},
        {"compile": "default"},
    ],
    ids=str,
)  # fmt: skip
def test_other_conditions_are_no_history(own: ExperimentResults, other: dict[str, object]):
    """A processor is not slower than usual because a graphics card was faster."""
    report = checked(own, *([{**other, "images_per_s": 9000.0}] * 3), {})[THROUGHPUT]

    assert report.passed
    assert "nothing to compare" in report.metadata["found"]


def test_what_was_compared_is_said(own: ExperimentResults):
    """The metadata name the conditions, and the sentence how many evaluations were made under them."""
    report = checked(own, {"images_per_s": 9000.0, "compute_threads": 16}, {}, {}, {}, {})[THROUGHPUT]

    assert "Compared with at least 3 earlier evaluations under the same conditions" in report.metadata["found"]
    assert "cpu_model made, num_cores 2, decode_threads 2" in report.metadata["compared"]


def test_a_damaged_record_of_before_is_left_out(own: ExperimentResults):
    """The checks go on; publishing names it."""
    checked(own, {}, {}, {})
    damaged = record(own.locations, **ROW).path
    damaged.write_bytes(damaged.read_bytes()[:-1])

    assert "as before" in checked(own, {})[DRIFT].metadata["found"]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([{}], "no earlier evaluation"),
        ([{}, {}], "as before"),
        ([{}, {"error": 0.204, "fingerprint": "b"}], "as before"),
        ([{}, {"error": 0.206, "fingerprint": "b"}], "+0.0060 from the median of 1 earlier ones"),
        ([{}, {"error": 0.201}], "error 0.2010, and 0.2000 before, with the same data, weights and settings"),
    ],
)
def test_an_error_that_drifts_is_noticed(own: ExperimentResults, rows: list[dict[str, object]], found: str):
    """Any difference with the same data, weights and settings, and half a point with others."""
    report = checked(own, *rows)[DRIFT]

    assert found in report.metadata["found"]
    assert report.passed == (found in ("no earlier evaluation", "as before"))


def test_both_warn_and_stop_nothing(own: ExperimentResults):
    """Integrity is an error; speed and drift are for a person to look at."""
    assert {dg.AssetCheckSeverity.WARN} == {report.severity for report in checked(own, {}).values()}
    assert dg.AssetCheckSeverity.ERROR == CheckReport(check="any", passed=False).severity


def test_a_run_that_reports_keeps_the_history_open_and_waits_for_no_disk(project: Project):
    """SQLite merges no journal after each event, and writes as always when the run has reported."""
    (project.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        storage = instance.event_log_storage
        journal = Path(storage.path_for_shard("index") + "-wal")

        def synchronous() -> int:
            with storage.index_connection() as connection:
                return connection.exec_driver_sql("PRAGMA synchronous").scalar()

        full = synchronous()
        with keep_history_open(instance, "a run"):
            normal = synchronous()
            was_kept = journal.exists()

        assert (full, normal, synchronous()) == (2, 1, 2)
        assert was_kept
        assert not journal.exists()
