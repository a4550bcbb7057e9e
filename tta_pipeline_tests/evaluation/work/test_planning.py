"""What is left of a small real benchmark, as runs."""

import os
import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml

from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.domain.cells import CLEAN, TRAIN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ManifestError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.work.costs import Costs
from tta_pipeline.evaluation.work.planned_runs import REPORT, STAGES, PlannedRun, describe_runs
from tta_pipeline.evaluation.work.planner import Planner
from tta_pipeline.evaluation.work.unfinished import FingerprintComparison
from tta_pipeline.methods import METHODS
from tta_pipeline.models.trained_models import find_trained
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_writing import read_finished_record
from tta_pipeline_tests.conftest import SMALL, SMALL_CELLS, Project
from tta_pipeline_tests.result_paths import remove_results, results_of
from tta_pipeline_tests.shards.cell import flip_sample

MADE = ("images", "tar_shards", "shard_manifest")


@pytest.fixture(scope="module")
def kept(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What planning reads of the small benchmark: not thousands of images."""
    images = sweep.locations.generated_source("small")
    others = shutil.ignore_patterns("report", ".unpublished-*")

    def left_out(folder: str, names: list[str]) -> set[str]:
        return others(folder, names) | ({images.name} if Path(folder) == images.parent else set())

    there = Locations(
        root=shutil.copytree(sweep.locations.root, tmp_path_factory.mktemp("planning") / "data", ignore=left_out)
    )
    there.report("small").mkdir()
    shutil.copy(sweep.locations.report("small") / "index.html", there.report("small"))
    return there.root


@pytest.fixture
def finished(kept: Path, tmp_path: Path) -> Locations:
    """The small benchmark, finished, to be changed."""
    return Locations(root=shutil.copytree(kept, tmp_path / "data"))


def change(locations: Locations, **changes: object) -> None:
    """Write the benchmark file with other fields."""
    locations.benchmark_files.mkdir(parents=True, exist_ok=True)
    content = yaml.safe_load(SMALL) | changes
    (locations.benchmark_files / "small.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def planner_of(locations, *, experiments=None, name="small", keys=None, tell=print):
    """Return the planner of the benchmark *name* on one CPU."""
    benchmark = load_all_benchmarks(locations).benchmark(name)
    return Planner(
        benchmark=benchmark,
        locations=locations,
        experiments=experiments or tuple(benchmark.experiments),
        unfinished_keys=keys or FingerprintComparison(device="cpu").unfinished_keys,
        find_trained=find_trained,
        tell=tell,
    )


def planned(locations, **options):
    """Return the plan for one CPU."""
    planner = planner_of(locations, **options)
    return planner.plan_runs(planner.find_unfinished())


def unrecorded_keys(results, keys):
    """Return those of *keys* at which a cell has no result, without a model."""
    return [key for key in keys if key not in results.finished_keys()]


def places(runs, stage="evaluations"):
    """Return the places of the runs of *stage*."""
    return {place for run in runs if run.stage == stage for place in product(run.assets, run.keys or ("",))}


def test_of_a_finished_benchmark_nothing_is_left(finished):
    """Not even the report."""
    assert () == planned(finished)


def test_a_report_that_lacks_a_result_is_left(finished):
    """It is older, or there is none, after a run without one."""
    index = finished.report("small") / "index.html"
    os.utime(index, ns=(1, 1))
    assert (REPORT,) == planned(finished)

    index.unlink()

    assert (REPORT,) == planned(finished)


def test_what_is_to_do_is_said_in_a_sentence(finished):
    """With the time that it takes, once it is known."""
    assert "to do: write the report" == describe_runs((REPORT,), num_devices=1)
    remove_results(finished.root, "small", "tent", "contrast-5")

    said = describe_runs(planned(finished), num_devices=1)
    said_of_nothing_known = describe_runs(
        planned(Locations(root=finished.root / "new"), name="digits_c"), num_devices=1
    )

    assert re.fullmatch(r"to do: run 1 evaluation in 1 Dagster run \(about \d+ s\), write the report", said)
    assert "make 77 shard sets, train 1 model, run " in said_of_nothing_known
    assert "how long is not known" in said_of_nothing_known


@pytest.mark.parametrize(("expected_s", "said"), [(0.2, "1 s"), (89, "89 s"), (600, "10 min"), (9000, "2.5 h")])
def test_times_are_said_as_people_count_them(expected_s: float, said: str):
    """Two devices take half of it."""
    run = PlannedRun(stage="evaluations", assets=("evaluation/tent",), expected_s=2 * expected_s)

    assert f"(about {said})" in describe_runs((run,), num_devices=2)


def test_a_cell_without_its_result_is_left(finished):
    """It alone, and the report."""
    remove_results(finished.root, "small", "tent", "contrast-5")

    *evaluations, report = planned(finished)

    assert {("evaluation/tent", "contrast|5")} == places(evaluations)
    assert REPORT == report
    assert all(run.expected_s > 0 for run in evaluations)


def test_a_file_that_was_never_finished_is_no_result(finished):
    """A worker that died has left a torn file there."""
    (path,) = (each.path for each in results_of(finished.root, "small", "norm") if each.result.key == "clean-0")
    path.rename(path.with_name(f".unpublished-0-{path.name}"))

    assert {("clean/evaluation/norm", "")} == places(planned(finished))


def test_a_changed_experiment_is_left(finished):
    """All of it, and nothing of the others."""
    experiments = yaml.safe_load(SMALL)["experiments"]
    change(finished, experiments=experiments | {"tent": {**experiments["tent"], "hyperparameters": {"lr": 0.002}}})

    found = places(planned(finished))

    assert {("evaluation/tent", cell.key) for cell in SMALL_CELLS} | {("clean/evaluation/tent", "")} == found


def test_a_cell_without_a_manifest_is_made_and_evaluated(finished):
    """Its shards come first, and no other cell is touched."""
    (finished.shards("small", SMALL_CELLS[1]) / "manifest.json").unlink()

    runs = planned(finished)

    assert {(asset, "gaussian_noise|5") for asset in MADE} == places(runs, "shards")
    assert {(f"evaluation/{name}", "gaussian_noise|5") for name in ("source", "norm", "tent")} == places(runs)


def test_shards_that_an_evaluation_found_damaged_are_made_again(finished):
    """Which shard it is, is said; the note that they were hashed is gone since then."""
    shard_set = ShardSet.open(finished.shards("small", SMALL_CELLS[1]))
    remove_results(finished.root, "small", "tent", "gaussian_noise-5")
    path = flip_sample(shard_set, 7)
    with pytest.raises(ManifestError):
        shard_set.require_intact()
    told = []

    runs = planned(finished, tell=told.append)

    assert {(asset, "gaussian_noise|5") for asset in MADE} == places(runs, "shards")
    assert {("evaluation/tent", "gaussian_noise|5")} == places(runs)
    assert [str(path)] == [line.split()[0] for line in told if path.name in line]
    assert read_finished_record(shard_set.folder) is None


def test_shards_of_a_range_are_all_missing(finished):
    """A run never includes a cell that is already made: its images may be gone."""
    change(finished, severities=[3, 4, 5])
    for severity in (3, 5):
        shutil.rmtree(finished.shards("small", Cell(corruption="contrast", severity=severity)))
    shutil.copytree(
        finished.shards("small", SMALL_CELLS[0]), finished.shards("small", Cell(corruption="contrast", severity=4))
    )
    found = {run.keys for run in planned(finished) if run.stage == "shards"}

    assert {("gaussian_noise|4",), ("contrast|3", "contrast|4", "contrast|5")} == found


def test_everything_of_a_new_benchmark_is_planned_in_order(tmp_path):
    """Training and clean images, cells, the model, evaluations, the report."""
    locations = Locations(root=tmp_path)
    change(locations)

    runs = planned(locations)

    stages = [run.stage for run in runs]
    assert sorted(stages, key=STAGES.index) == stages
    assert list(STAGES) == list(dict.fromkeys(stages))
    assert {(f"{cell.corruption}/{asset}", "") for cell in (CLEAN, TRAIN) for asset in MADE} == places(runs, "sets")
    assert {(asset, cell.key) for asset in MADE for cell in SMALL_CELLS} == places(runs, "shards")
    assert {("source_model", "")} == places(runs, "training")
    assert all(run.expected_s is None for run in runs)


def test_a_model_that_is_not_trained_is(finished):
    """And all its experiments are left, since its weights will be others."""
    change(finished, models={"cnn": {"kind": "trained", "epochs": 5, "width": 8}})

    runs = planned(finished)

    assert {("source_model", "")} == places(runs, "training")
    assert 15 == len(places(runs))
    assert not places(runs, "shards") | places(runs, "sets")


def test_a_model_whose_training_images_are_gone_is_evaluated_as_it_is(finished):
    """It is not trained again for want of something to compare it with."""
    shutil.rmtree(finished.shards("small", TRAIN))

    assert () == planned(finished)


def test_clean_images_are_made_for_a_method_that_reads_them(finished):
    """Though only corrupted cells are left to evaluate."""
    shutil.rmtree(finished.shards("small", CLEAN))
    change(finished, experiments={"eata": {"model": "cnn", "method": "eata", "preset": "cifar", "batch_size": 32}})

    runs = planned(finished, keys=lambda _, keys: [key for key in keys if key in SMALL_CELLS])

    assert {("evaluation/eata", cell.key) for cell in SMALL_CELLS} == places(runs)
    assert {(f"clean/{asset}", "") for asset in MADE} == places(runs, "sets")


def test_streams_get_separate_runs(finished):
    """One for each severity, and one for a stream over all."""
    experiments = yaml.safe_load(SMALL)["experiments"]
    streams = {
        "tent_continual": {**experiments["tent"], "protocol": "continual"},
        "tent_gradual": {**experiments["tent"], "protocol": "gradual"},
    }
    change(finished, experiments=experiments | streams)

    runs = [run for run in planned(finished) if run.stage == "evaluations"]

    continual = {run.keys for run in runs if run.assets == ("evaluation/tent_continual",)}
    gradual = [run.keys for run in runs if run.assets == ("evaluation/tent_gradual",)]
    assert {("3",), ("5",)} == continual
    assert [()] == gradual


def test_only_the_experiments_that_were_asked_for_are_planned(tmp_path):
    """Cells, and the clean images."""
    locations = Locations(root=tmp_path)
    change(locations)

    runs = planned(locations, experiments=("norm",))

    assert {("evaluation/norm", cell.key) for cell in SMALL_CELLS} | {("clean/evaluation/norm", "")} == places(runs)


ARCHIVED = """
title: Packed
image_size: 224
sets:
  imagenet_c:
    images: {kind: archive, published: imagenet_c, archives: [noise.tar, blur.tar]}
    corruptions: [gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur]
    severities: [3, 5]
    shards: {max_shard_bytes: 1000000000}
  imagenet_r:
    images: {kind: archive, published: imagenet_r, archives: [imagenet-r.tar]}
    shards: {samples_per_shard: 10000}
models:
  resnet50: {kind: torchvision, architecture: resnet50, weights: IMAGENET1K_V1, classes: imagenet}
experiments:
  source: {model: resnet50, method: source}
  few: {model: resnet50, method: source, subset: {first: 1000}, severities: [5]}
"""


@pytest.fixture
def archived(tmp_path: Path) -> Locations:
    """Two sets in a file, both in archives."""
    locations = Locations(root=tmp_path)
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "packed.yaml").write_text(ARCHIVED)
    return locations


def test_an_archive_is_read_once_for_all_its_cells(archived):
    """Two archives of seven corruptions are two runs; the one that pins the classes comes first."""
    runs = planned(archived, name="packed/imagenet_c", keys=unrecorded_keys)

    assert [
        ("sets", ("gaussian_noise|3", "impulse_noise|5"), 6),
        ("shards", ("defocus_blur|3", "zoom_blur|5"), 8),
    ] == [(run.stage, (run.keys[0], run.keys[-1]), len(run.keys)) for run in runs if run.keys
          and run.stage != "evaluations"]  # fmt: skip


def test_each_set_of_a_file_has_a_plan_of_its_own(archived):
    """A set without severities is one cell, whose shards are made before it is evaluated."""
    runs = planned(archived, name="packed/imagenet_r", keys=unrecorded_keys, experiments=("source",))

    assert ["sets", "evaluations", "report"] == [run.stage for run in runs]
    assert 1 == len(runs[0].keys)
    assert runs[0].keys == runs[1].keys


def test_a_subset_needs_the_shards_of_its_severities_only(archived):
    """Which are not next to each other in the archive's range, and still one run."""
    runs = planned(archived, name="packed/imagenet_c", keys=unrecorded_keys, experiments=("few",))

    assert {"5"} == {key.rpartition("|")[2] for run in runs for key in run.keys}
    assert 7 == len({key for run in runs if run.stage in ("sets", "shards") for key in run.keys})


def test_a_method_of_ones_own_is_planned_with_the_passes_of_its_entry(finished):
    """At the pace of its model, not of others; ten times the passes are expected to take ten times as long."""
    path = "tta_pipeline_tests.methods.own_method"
    light, heavy = ({"model": "cnn", "method": f"{path}:{name}"} for name in ("LAST_CLASS", "HEAVY_LAST_CLASS"))
    few = {**light, "subset": {"first": 64}}
    change(finished, experiments={**yaml.safe_load(SMALL)["experiments"], "light": light, "heavy": heavy, "few": few})
    benchmark = load_all_benchmarks(finished).benchmark("small")
    results = ExperimentResults(benchmark=benchmark, experiment_name="light", locations=finished)
    measured = Costs.from_database(benchmark, finished)
    pace, counts = {"slow": 8.0, "slower": 9.0}, {SMALL_CELLS[1]: 300, SMALL_CELLS[2]: 402}
    unknown = replace(measured, of_models=pace, counts=counts)
    own_count = {SMALL_CELLS[0]: measured.counts[SMALL_CELLS[0]]}
    costs = replace(measured, of_models={"cnn": 0.5, **pace}, counts={**own_count, **counts})

    (plan,) = results.plans(SMALL_CELLS[0])

    assert [75.0, 750.0, 32.0] == [costs.expected_s(name, plan) for name in ("light", "heavy", "few")]
    assert 351 * 8.5 == unknown.expected_s("light", plan)
    assert 150 == replace(costs, of_models={}).expected_s("light", plan)


def test_a_measured_time_is_divided_by_the_passes_of_its_method(finished, monkeypatch):
    """Where every method makes four passes, a pass takes a quarter of what it takes where every method makes one."""
    change(finished, experiments={"other": {"model": "cnn", "method": "source"}})
    benchmark = load_all_benchmarks(finished).benchmark("small")
    pass_s = {}
    for passes in (1, 4):
        of_passes = {name: replace(entry, passes=passes) for name, entry in METHODS.items()}
        monkeypatch.setattr("tta_pipeline.evaluation.work.costs.METHODS", of_passes)
        pass_s[passes] = Costs.from_database(benchmark, finished).of_models["cnn"]

    assert pass_s[1] == pytest.approx(4 * pass_s[4])
