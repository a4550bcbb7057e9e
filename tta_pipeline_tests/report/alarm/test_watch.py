"""An alarm over the small benchmark: its record, the database, the asset and its checks."""

from pathlib import Path

import dagster as dg
import numpy as np
import pytest

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.definitions import build_definitions
from tta_pipeline.errors import BenchmarkFileError, RecordError
from tta_pipeline.extras.cluster.planner import Planner
from tta_pipeline.report.alarm.watch import watch_benchmark
from tta_pipeline.report.kept_predictions import predictions
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.records import publish_unless_equal, utc_now
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark, new_project

NUM_CALIBRATION = 60


def with_alarm(sweep: Project, folder: Path, settings: str = f"{{num_calibration: {NUM_CALIBRATION}}}") -> Project:
    """Return a copy of the small benchmark whose file has a section `alarm` with *settings*."""
    project = new_project(folder)
    copy_benchmark(sweep, project, without=("source", "report"))
    project.add_benchmark("small", f"{SMALL}alarm: {settings}\n")
    return project


def test_calibration_and_watched_images_are_disjoint(tmp_path: Path, sweep: Project):
    """Each cell is watched without its versions of the calibration images, and so are the clean images."""
    project = with_alarm(sweep, tmp_path)
    lines: list[str] = []

    watched = watch_benchmark(
        load_benchmark(project.locations.benchmark_files / "small.yaml"), project.locations, tell=lines.append
    )

    assert watched is not None
    assert ["source", 0.01, NUM_CALIBRATION] == [watched.experiment, watched.level, watched.num_calibration]
    assert {(150 - NUM_CALIBRATION, NUM_CALIBRATION)} == {(c.num_samples, c.num_left_out) for c in watched.cells}
    assert 5 == len(watched.cells) == len(lines)
    by_cell = {(cell.corruption, cell.severity): cell for cell in watched.cells}
    assert by_cell["clean", 0].alarm_at is None
    assert by_cell["gaussian_noise", 5].alarm_at is not None
    kept = predictions("small", "source", "gaussian_noise|5", data_root=project.locations.root)
    assert np.isfinite(np.asarray(kept["confidence"])).all()
    assert all(cell.wealth_images[-1] == cell.num_samples for cell in watched.cells)


def test_the_asset_records_the_alarms_once_and_its_checks_warn(tmp_path: Path, sweep: Project):
    """The database has a row for each cell; a second run that finds the same adds none; clean images are silent."""
    project = with_alarm(sweep, tmp_path)
    definitions = build_definitions(project.locations)
    key = dg.AssetKey(["small", "shift_alarm"])
    job = definitions.resolve_implicit_job_def_def_for_assets([key])
    assert job is not None

    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            done = job.execute_in_process(asset_selection=[key], instance=instance)

    checks = {each.check_name: each for each in done.get_asset_check_evaluations()}
    assert {"no_alarm": False, "no_false_alarm": True} == {name: each.passed for name, each in checks.items()}
    assert {dg.AssetCheckSeverity.WARN} == {each.severity for each in checks.values()}
    with open_metrics(project.locations.metrics) as connection:
        rows = connection.execute("SELECT corruption, severity FROM alarms ORDER BY ALL").fetchall()
        latest = connection.execute("SELECT count(*) FROM latest_alarms WHERE alarm_at IS NOT NULL").fetchone()
    assert [("clean", 0), *((c, s) for c in ("contrast", "gaussian_noise") for s in (3, 5))] == rows
    assert latest is not None
    assert latest[0] >= 2


def test_finished_evaluations_await_only_the_look_of_an_alarm_that_is_new_or_changed(tmp_path: Path, sweep: Project):
    """The plan is the report with the alarm before it; after a look at these predictions, it is empty."""
    project = with_alarm(sweep, tmp_path)
    path = project.locations.benchmark_files / "small.yaml"

    def plan() -> list[tuple[str, ...]]:
        planner = Planner(
            benchmark=load_benchmark(path), locations=project.locations, experiments=("source",),
            unfinished_keys=lambda _: (), is_trained=lambda _: True,
        )  # fmt: skip
        return [piece.assets for piece in planner.plan_pieces(by="corruption", num_devices=1)]

    assert [("shift_alarm", "robustness_report")] == plan()
    watched = watch_benchmark(load_benchmark(path), project.locations, tell=lambda _: None)
    assert watched
    publish_unless_equal(
        project.locations.results("small"),
        kind="alarms",
        name="source",
        run_id="1",
        started_at=utc_now(),
        facts=watched,
    )
    assert [] == plan()
    path.write_text(path.read_text().replace("alarm: {", "alarm: {level: 0.05, "))
    assert [("shift_alarm", "robustness_report")] == plan()


def test_cells_under_earlier_settings_are_not_watched(tmp_path: Path, sweep: Project):
    """As long as the clean images have no result under the present ones, nothing is; no plan and no look fails."""
    project = with_alarm(sweep, tmp_path)
    path = project.locations.benchmark_files / "small.yaml"
    path.write_text(path.read_text().replace("method: source}", "method: source, batch_size: 7}"))
    benchmark = load_benchmark(path)

    assert watch_benchmark(benchmark, project.locations, tell=lambda _: None) is None
    assert () == Planner(
        benchmark=benchmark, locations=project.locations, experiments=("source",), unfinished_keys=lambda _: (),
        is_trained=lambda _: True,
    ).plan_pieces(by="corruption", num_devices=1)  # fmt: skip


def test_too_few_clean_images_are_an_error(tmp_path: Path, sweep: Project):
    """Half of them are compared with, and half are watched."""
    project = with_alarm(sweep, tmp_path, "{num_calibration: 100}")
    benchmark = load_benchmark(project.locations.benchmark_files / "small.yaml")

    with pytest.raises(RecordError, match="150 clean images; expected at least twice"):
        watch_benchmark(benchmark, project.locations, tell=lambda _: None)


def test_an_alarm_before_the_clean_images_were_evaluated_says_nothing(tmp_path: Path):
    """There is nothing to compare with yet."""
    project = new_project(tmp_path)
    project.add_benchmark("small", f"{SMALL}alarm: {{experiment: tent}}\n")
    benchmark = load_benchmark(project.locations.benchmark_files / "small.yaml")

    assert "tent" == benchmark.watched_experiment
    assert watch_benchmark(benchmark, project.locations, tell=lambda _: None) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{experiment: tant}", "alarm.experiment is tant; expected an experiment with a stream for each cell"),
        ("{level: 0}", "level"),
        ("{num_calibration: 5}", "num_calibration"),
        ("{seed: -1}", "seed"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: str, message: str):
    """With the field in the message."""
    project = new_project(tmp_path)
    project.add_benchmark("small", f"{SMALL}alarm: {settings}\n")

    with pytest.raises(BenchmarkFileError, match=message):
        load_benchmark(project.locations.benchmark_files / "small.yaml")
