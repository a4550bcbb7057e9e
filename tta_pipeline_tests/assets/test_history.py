"""The checks that compare an evaluation with those before it, on real record files."""

import dagster as dg
import pytest

from tta_pipeline.assets.history import DRIFT, THROUGHPUT, history_reports
from tta_pipeline.assets.reporting import CheckReport
from tta_pipeline.benchmarks.spec import load_benchmark
from tta_pipeline.evaluation.sweep import Subject
from tta_pipeline.metrics.records import publish_record
from tta_pipeline_tests.conftest import SMALL, Project

ROW = {
    "corruption": "contrast", "severity": 5, "subset": "all", "device": "cpu", "batch_size": 32, "precision": "fp32",
    "compile": "off", "num_samples": 150, "images_per_s": 100.0, "error": 0.2, "fingerprint": "a",
}  # fmt: skip


@pytest.fixture
def subject(project: Project) -> Subject:
    """An experiment of which nothing is evaluated."""
    project.add_benchmark("small", SMALL)
    benchmark = load_benchmark(project.locations.benchmark_files / "small.yaml")
    return Subject(benchmark=benchmark, experiment="tent", locations=project.locations)


def checked(subject: Subject, *rows: dict[str, object]) -> dict[str, CheckReport]:
    """Record evaluations that differ from a usual one in *rows*, and return what the checks find."""
    for row in rows:
        publish_record(
            subject.locations.results("small"),
            kind="evaluations",
            name="tent/contrast-5",
            run_id="run",
            started_at="2026-01-01",
            facts=ROW | row,
        )
    return {report.check: report for report in history_reports(subject, "contrast|5")}


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
    subject: Subject, speeds: list[float], *, passed: bool, found: str
):
    """The newest is compared with the median of at least three before it."""
    report = checked(subject, *({"images_per_s": speed} for speed in speeds))[THROUGHPUT]

    assert passed == report.passed
    assert found in report.metadata["found"]


def test_other_devices_and_batch_sizes_are_no_history(subject: Subject):
    """A processor is not slower than usual because a graphics card was faster."""
    others = [{"device": "cuda", "images_per_s": 9000.0}] * 3 + [{"batch_size": 64, "images_per_s": 900.0}] * 3

    assert checked(subject, *others, {})[THROUGHPUT].passed


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
def test_an_error_that_drifts_is_noticed(subject: Subject, rows: list[dict[str, object]], found: str):
    """Any difference with the same data, weights and settings, and half a point with others."""
    report = checked(subject, *rows)[DRIFT]

    assert found in report.metadata["found"]
    assert report.passed == (found in ("no earlier evaluation", "as before"))


def test_both_warn_and_stop_nothing(subject: Subject):
    """Integrity is an error; speed and drift are for a person to look at."""
    assert {dg.AssetCheckSeverity.WARN} == {report.severity for report in checked(subject, {}).values()}
    assert dg.AssetCheckSeverity.ERROR == CheckReport(check="any", passed=False).severity
