"""A watched folder: its images are sharded and evaluated by day of arrival, beside the cells."""

import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from tta_pipeline.benchmarks.load_files import load_all_benchmarks, load_benchmark
from tta_pipeline.cli import main
from tta_pipeline.definitions import assets_only, build_definitions
from tta_pipeline.defs.arrivals import arrivals_sensor, day_scope
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.extras.watching.look import take_in
from tta_pipeline.results.database.database import open_metrics, publish_metrics
from tta_pipeline_tests.conftest import Project, jpeg, write_tree

TEXT = """
title: A camera
source: {{kind: folder, root: {root}/tested}}
own: {{names: [tested], severities: [1]}}
classes: {root}/classes.json
image_size: 32
shards: {{num_shards: 2}}
models:
  net: {{kind: python, factory: "tta_pipeline_tests.own_network:make_network", weights: none}}
experiments:
  source: {{model: net, method: source, batch_size: 4}}
  norm: {{model: net, method: norm, batch_size: 4}}
  mixed: {{model: net, method: source, protocol: mixed}}
watch: {{root: {root}/arriving, since: {since}, experiments: {experiments}, settle_s: 0}}
"""
ASSETS = ("source_split", "tar_shards", "shard_manifest", "evaluation/source")
TODAY = datetime.now(UTC).date()


def watched(project: Project, folder: Path, *, since: date = TODAY, experiments: str = "[source]") -> Path:
    """Add a benchmark that watches a folder, and return the folder."""
    (folder / "classes.json").write_text('["apple", "bread", "cloud"]')
    project.add_benchmark("camera", TEXT.format(root=folder, since=since, experiments=experiments))
    arriving = folder / "arriving"
    arriving.mkdir(exist_ok=True)
    return arriving


def rows(project: Project, columns: str) -> list[tuple]:
    """Return the counting evaluations, day by day."""
    with open_metrics(project.locations.metrics) as connection:
        return connection.execute(f"SELECT {columns} FROM latest_evaluations ORDER BY corruption").fetchall()


class Watching:
    """The daemon and its runs, with a history of their own; each loads the definitions anew, as its process does."""

    def __init__(self, project: Project, instance: dg.DagsterInstance) -> None:
        self._locations = project.locations
        self._instance = instance

    def _definitions(self) -> dg.Definitions:
        benchmark = load_all_benchmarks(self._locations).benchmark("camera")
        return dg.Definitions.merge(
            assets_only(self._locations.root, benchmarks=["camera"]),
            dg.Definitions(sensors=[arrivals_sensor(day_scope(benchmark, self._locations, "tta_"))]),
        )

    def ask(self) -> list[dg.RunRequest]:
        """Let the sensor look, and return the runs that it asks for."""
        repository = self._definitions().get_repository_def()
        context = dg.build_sensor_context(instance=self._instance, repository_def=repository)
        return list(repository.get_sensor_def("camera__arrivals").evaluate_tick(context).run_requests or ())

    def materialize(self, paths: Iterable[Sequence[str]], day: str | None = None) -> list[dg.AssetCheckEvaluation]:
        """Materialize assets in one run, and return the findings of their checks."""
        keys = [dg.AssetKey(path) for path in paths]
        job = self._definitions().resolve_implicit_job_def_def_for_assets(keys)
        assert job is not None
        return job.execute_in_process(
            asset_selection=keys, partition_key=day, instance=self._instance
        ).get_asset_check_evaluations()

    def run(self, day: date) -> dict[str, int]:
        """Materialize the assets of *day*, and return the numbers that the first of them reports.

        The records are left for a later publication.
        """
        keys = [dg.AssetKey(["camera", "stream", *name.split("/")]) for name in ASSETS]
        job = self._definitions().resolve_implicit_job_def_def_for_assets(keys)
        assert job is not None
        config = {"resources": {"tta_metrics": {"config": {"publishes": False}}}}
        done = job.execute_in_process(
            config, asset_selection=keys, partition_key=day.isoformat(), instance=self._instance
        )
        assert all(each.passed for each in done.get_asset_check_evaluations())
        made = done.asset_materializations_for_node("camera__stream__source_split")
        return {name: value.value for each in made for name, value in each.metadata.items() if name[:4] == "num_"}


def test_images_are_evaluated_on_the_day_on_which_they_came(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A copy counts once, a late file joins its day of arrival, a further look makes the day anew, labels follow."""
    yesterday = TODAY - timedelta(days=1)
    arriving = watched(project, tmp_path, since=yesterday)
    for number in range(5):
        (arriving / f"{number}.jpg").write_bytes(jpeg(number))
    take_in(arriving, project.locations.arrivals("camera"), day=yesterday.isoformat(), settle_s=0, now_s=1e10)
    with dg.DagsterInstance.ephemeral() as instance:
        watching = Watching(project, instance)
        assert {"num_images": 5} == watching.run(yesterday)
        assert [] == watching.ask()

        shutil.rmtree(arriving)
        (arriving / "late").mkdir(parents=True)
        (arriving / "copy.jpg").write_bytes(jpeg(3))
        assert 1 == len(watching.ask())
        assert {} == watching.run(TODAY)  # nothing came, and nothing fails
        for number in range(4, 8):  # 4 came yesterday
            (arriving / "late" / f"{number}.jpg").write_bytes(jpeg(number))
        (request,) = watching.ask()
        assert [(TODAY.isoformat(), 4)] == [(request.partition_key, len(request.asset_selection))]
        first = watching.run(TODAY)
        (arriving / "again.jpg").write_bytes(jpeg(8))
        (arriving / "damaged.jpg").write_bytes(jpeg(9)[:-20])
        second = watching.run(TODAY)
        assert [] == watching.ask()

    assert [(3, 3, 1), (5, 2, 0)] == [
        tuple(each[f"num_{name}"] for name in ("images", "new", "duplicates")) for each in (first, second)
    ]
    publish_metrics(project.locations)
    assert [
        ("camera", "stream", yesterday.isoformat(), 0, 5, None),
        ("camera", "stream", TODAY.isoformat(), 0, 4, None),
    ] == rows(project, "benchmark, shift_set, corruption, severity, num_samples, error")
    assert 3 == len(list((project.locations.results("camera/stream") / "evaluations").rglob("*.json")))
    monkeypatch.setenv("TTA_DATA_ROOT", str(project.locations.root))
    label(project, tmp_path / "labels.csv", yesterday)
    assert [True, False] == [error is not None for (error,) in rows(project, "error")]
    text = (project.locations.benchmark_files / "camera.yaml").read_text()
    project.add_benchmark("camera", text[: text.index("watch:")])
    publish_metrics(project.locations)
    assert [] == rows(project, "error")


def label(project: Project, path: Path, day: date) -> None:
    """Give each image of *day* a class, as a user does: by its file among the copies."""
    kept = project.locations.arrivals("camera") / day.isoformat()
    path.write_text("".join(["key,class\n", *(f"{image.name},bread\n" for image in kept.iterdir())]))
    done = CliRunner().invoke(main, ["results", "label", "camera/stream", str(path), "--cell", f"{day}|0"])
    assert 0 == done.exit_code, done.output


def test_the_alarm_reads_all_days_as_one_stream(project: Project, tmp_path: Path):
    """Beside the clean images; the run that the sensor asks for renews it, and its check is about what arrived."""
    yesterday = TODAY - timedelta(days=1)
    arriving = watched(project, tmp_path, since=yesterday)
    write_tree(tmp_path / "clean", classes={"apple": 20, "bread": 15, "cloud": 10})
    path = project.locations.benchmark_files / "camera.yaml"
    text = path.read_text().replace("/tested}", f"/tested, clean: {tmp_path}/clean}}")
    path.write_text(f"{text}alarm: {{num_calibration: 20}}\n")
    for number in range(5):
        (arriving / f"{number}.jpg").write_bytes(jpeg(100 + number))
    kept = project.locations.arrivals("camera")
    take_in(arriving, kept, day=yesterday.isoformat(), settle_s=0, now_s=1e10)
    (arriving / "5.jpg").write_bytes(jpeg(105))
    alarm = dg.AssetKey(["camera", "shift_alarm"])
    with dg.DagsterInstance.ephemeral() as instance:
        watching = Watching(project, instance)
        watching.run(yesterday)
        watching.materialize([["camera", "clean", *each.split("/")] for each in ASSETS[1:]])
        (request,) = watching.ask()
        assert request.asset_selection is not None
        checks = watching.materialize([each.path for each in request.asset_selection], request.partition_key)

    assert alarm in request.asset_selection
    with open_metrics(project.locations.metrics) as connection:
        found = connection.execute("SELECT corruption, num_samples FROM latest_alarms ORDER BY ALL").fetchall()
    assert [("clean", 25), ("stream", 6)] == found
    assert {"no_alarm", "no_false_alarm"} == {each.check_name for each in checks if each.asset_key == alarm}


def test_the_code_location_has_the_days_and_their_sensor(project: Project, tmp_path: Path):
    """The assets of the days are beside the cells, with daily partitions, and the sensor is off at first."""
    watched(project, tmp_path)
    repository = build_definitions(project.locations).get_repository_def()

    for name in ASSETS:
        partitions = repository.asset_graph.get(dg.AssetKey(["camera", "stream", *name.split("/")])).partitions_def
        assert isinstance(partitions, dg.DailyPartitionsDefinition)
        assert [TODAY.isoformat()] == partitions.get_partition_keys()
    assert dg.DefaultSensorStatus.STOPPED == repository.get_sensor_def("camera__arrivals").default_status


@pytest.mark.parametrize(
    ("experiments", "since", "message"),
    [
        ("[mixed]", TODAY, r"watch.experiments has mixed; expected an experiment with a stream for each cell"),
        ("[tent]", TODAY, r"watch.experiments has tent; expected .*: source, norm"),
        ("[]", TODAY, r"watch.experiments"),
        ("[source]", "soon", r"watch.since"),
    ],
)
def test_a_wrong_section_is_refused(project: Project, tmp_path: Path, experiments: str, since: date, message: str):
    """The message names the field, what was found and what was expected."""
    watched(project, tmp_path, since=since, experiments=experiments)

    with pytest.raises(BenchmarkFileError, match=message):
        load_benchmark(project.locations.benchmark_files / "camera.yaml")


def test_the_url_of_a_bucket_is_refused(project: Project, tmp_path: Path):
    """A folder is watched; a bucket can be mounted."""
    watched(project, tmp_path)
    path = project.locations.benchmark_files / "camera.yaml"
    path.write_text(path.read_text().replace(os.fspath(tmp_path / "arriving"), "s3://bucket/arriving"))

    with pytest.raises(BenchmarkFileError, match=r"found 's3:/bucket/arriving'; expected a path here"):
        load_benchmark(path)
