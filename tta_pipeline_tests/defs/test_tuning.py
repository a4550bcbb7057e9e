"""Tuning through the real command lines, and every door by which it could be made to look at reported cells."""

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner

from tta_pipeline.benchmarks.resolved_experiment import find_choices
from tta_pipeline.cli import main
from tta_pipeline.definitions import build_definitions
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError, ManifestError
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.extras.tuning.search import Search
from tta_pipeline.report.tuning_table import criteria_table
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.plans import read_plan
from tta_pipeline.results.result_files import read_result
from tta_pipeline.results.tuning_criteria import CRITERIA
from tta_pipeline.results.tuning_record import TuningRun
from tta_pipeline_tests.conftest import SMALL, SMALL_RANGE, Project, copy_benchmark, new_project
from tta_pipeline_tests.defs.in_process import execute, what_failed
from tta_pipeline_tests.defs.test_command_lines import run_dg
from tta_pipeline_tests.extras.tuning.tuned import BY_ENTROPY, HELD_OUT, TUNED, benchmark_of
from tta_pipeline_tests.result_paths import result_paths
from tta_pipeline_tests.test_guides import HOW_TO, commands

HERE = Machine(device="cpu", decode_threads=1)
TUNING = "small/tuning/tent"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, sweep: Project) -> Project:
    """The small benchmark, tuned by the command line, which made the shards of its held-out shifts at severity 5."""
    project = new_project(tmp_path_factory.mktemp("tuned"))
    copy_benchmark(sweep, project, without=("source", "report", "predictions"))
    project.add_benchmark("small", TUNED)
    finished = project.run("tta-pipeline", "tune", "small", "tent", "--device", "cpu")
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "on speckle_noise, gaussian_blur, spatter, saturate" in finished.stderr
    return project


@dataclass(frozen=True)
class Again:
    """A search by entropy with a budget of two of three trials, in a copy without the shards of a cell."""

    project: Project
    before: dict[Path, bytes]
    finished: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def again(tuned: Project, tmp_path_factory: pytest.TempPathFactory) -> Again:
    """What one command did, asked several questions."""
    project = copy_of(tuned, tmp_path_factory.mktemp("again"))
    project.add_benchmark("small", BY_ENTROPY)
    shutil.rmtree(project.locations.root / "small" / "shards" / "spatter")
    before = trials(project.locations)
    grid = ("--grid", "lr=0.001,0.1,0.5", "--budget", "2")
    finished = project.run("tta-pipeline", "tune", "small", "tent", *grid, "--compare", "--device", "cpu", "--json")
    assert finished.returncode == 0, finished.stderr[-3000:]
    return Again(project=project, before=before, finished=finished)


def test_a_budget_of_the_command_line_holds(again: Again):
    """As many trials as it says are drawn of the grid, and with --json the answer is the choice."""
    assert 2 == len(json.loads(again.finished.stdout)["trials"])


def copy_of(tuned: Project, folder: Path) -> Project:
    """Return a copy of the tuned benchmark in *folder*."""
    project = new_project(folder)
    copy_benchmark(tuned, project, without=("source",))
    project.add_benchmark("small", TUNED)
    return project


@pytest.fixture
def copy(tmp_path: Path, tuned: Project) -> Project:
    """A copy of the tuned benchmark, to be changed."""
    return copy_of(tuned, tmp_path)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory, tuned: Project) -> Project:
    """A copy with a cell evaluated by hyperparameters that were chosen, set by hand and published."""
    project = copy_of(tuned, tmp_path_factory.mktemp("evaluated"))
    names = ("tent_tuned", "tent_by_hand", "tent")
    finished = execute(project, [f"small/evaluation/{name}" for name in names], ["contrast|5"], publishes=True)
    assert finished.success, what_failed(finished)
    return project


def choice(locations: Locations) -> TuningRun:
    """Return the choice of the latest search."""
    return find_choices(locations, "small", "tent")[-1][1]


def trials(locations: Locations) -> dict[Path, bytes]:
    """Return the results of all evaluations of trials."""
    return {path: path.read_bytes() for path in result_paths(locations.root, "small/held_out/*")}


def seen(locations: Locations) -> set[str]:
    """Return the corruptions that trials have seen."""
    return {read_result(path).result.evaluations[0].cell.corruption for path in trials(locations)}


def search(locations: Locations, **changes: object) -> Search:
    """Return the search of the small benchmark, with *changes*."""
    return Search(
        **{"benchmark": benchmark_of(), "experiment_name": "tent", "locations": locations, "grid": {}} | changes
    )


def test_a_command_tries_the_grid_on_held_out_cells(tuned: Project):
    """Each trial is a file for each cell, the choice one more with its grid and cells, and there is a picture."""
    run = choice(tuned.locations)

    assert set(HELD_OUT) == seen(tuned.locations)
    assert 2 * 4 == len(trials(tuned.locations))
    assert {"lr": 0.001} == run.values
    assert tuple(f"{name}|5" for name in HELD_OUT) == run.cells
    assert {"lr": [0.001, 0.5]} == run.grid_values
    assert run.trials[0].error == run.error < run.trials[1].error
    assert ("first 64", 2, 20) == (run.subset, run.num_trials, run.budget)
    assert (tuned.locations.tuning("small") / "tent.png").read_bytes().startswith(b"\x89PNG")


def test_the_run_is_in_the_history(tuned: Project):
    """With the choice, the picture and the file of the choice."""
    with dg.DagsterInstance.from_config(str(tuned.home)) as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey(["small", "tuning", "tent"]))

    metadata = event.asset_materialization.metadata
    assert {"lr": 0.001} == metadata["chosen"].value
    assert "data:image/png" in metadata["error_over_grid"].value
    assert Path(metadata["record"].value).exists()


def test_a_finished_trial_is_not_evaluated_again(copy: Project):
    """Another grid adds trials, through the web UI's configuration too; the same again adds nothing."""
    before = trials(copy.locations)
    config = {"small__tuning__tent": {"config": {"grid": ["lr=0.001,0.002,0.5"]}}}
    finished = execute(copy, [TUNING], config=config)
    assert finished.success, what_failed(finished)
    after, run = trials(copy.locations), choice(copy.locations)
    again = search(copy.locations, grid={"lr": (0.001, 0.002, 0.5)}).run(machine=HERE, run_id="again", tell=print)

    assert before.items() <= after.items()
    assert 4 == len(after) - len(before)
    assert 3 == run.num_trials
    assert run == again.result.tuning
    assert 2 == len(result_paths(copy.locations.root, "small/tunings"))
    assert after == trials(copy.locations)


def test_the_choice_of_the_search_that_was_asked_for_last_counts(copy: Project):
    """Also if the same search was made before another one: nothing is evaluated, and it chooses what it chose."""
    asked = search(copy.locations)
    first, evaluated_before = choice(copy.locations), trials(copy.locations)

    other = search(copy.locations, grid={"lr": [0.5]}).run(machine=HERE, run_id="other", tell=lambda _: None)
    again = asked.run(machine=HERE, run_id="again", tell=lambda _: None)
    same = asked.run(machine=HERE, run_id="same", tell=lambda _: None)

    assert {"lr": 0.5} == other.result.tuning.values
    assert first == again.result.tuning == choice(copy.locations)
    assert (same, "again") == (again, same.result.run_id)
    assert trials(copy.locations) == evaluated_before


def test_results_carry_what_was_chosen_and_where(evaluated: Project):
    """In their record, in the database and on the leaderboard, beside those of a preset and set by hand."""
    shown = CliRunner().invoke(main, ["leaderboard", "--json"], env={"TTA_DATA_ROOT": str(evaluated.locations.root)})
    with open_metrics(evaluated.locations.metrics) as connection:
        ((tuning, config),) = connection.execute(
            "SELECT tuning, config FROM evaluations "
            "WHERE counts AND experiment = 'tent_tuned' AND stream = 'contrast|5'"
        ).fetchall()
        tried = connection.execute("SELECT hyperparameters, is_chosen FROM tuning_trials ORDER BY error").fetchall()
        num_chosen = connection.execute("SELECT count(*) FROM tunings WHERE counts").fetchall()

    origins = {row["experiment"]: row["hyperparameters"] for row in json.loads(shown.stdout)}
    assert {
        "tent": "preset",
        "tent_tuned": "tuned (held-out)",
        "tent_by_hand": "set by hand",
    }.items() <= origins.items()
    facts = json.loads(tuning)
    assert {"lr": 0.001} == facts["values"]
    assert ([f"{name}|5" for name in HELD_OUT], {"lr": [0.001, 0.5]}) == (facts["cells"], facts["grid"])
    assert 0.001 == json.loads(config)["hyperparameters"]["lr"]
    assert [('{"lr": 0.001}', True), ('{"lr": 0.5}', False)] == tried
    assert [(1,)] == num_chosen


def test_a_changed_choice_makes_cells_unfinished(evaluated: Project, tmp_path: Path):
    """The value is in the fingerprint; a choice of the same value from another grid only changes the plan."""
    copy = copy_of(evaluated, tmp_path)
    asked = ["why", "small", "tent_tuned", "contrast|5", "--device", "cpu"]
    runner = CliRunner(env={"TTA_DATA_ROOT": str(copy.locations.root)})
    before, results = grid_of_plan(copy.locations), result_paths(copy.locations.root, "small/contrast-5")
    search(copy.locations, grid={"lr": (0.001, 0.4)}).run(machine=HERE, run_id="same value", tell=print)
    same = runner.invoke(main, asked)
    assert execute(copy, ["small/evaluation/tent_tuned"], ["contrast|5"]).success
    after = grid_of_plan(copy.locations)
    search(copy.locations, grid={"lr": (0.5,)}).run(machine=HERE, run_id="another value", tell=print)
    other = runner.invoke(main, asked)

    assert (0, 1) == (same.exit_code, other.exit_code)
    assert "method.hyperparameters.lr was 0.001, is 0.5" in other.stdout
    assert ({"lr": [0.001, 0.5]}, {"lr": [0.001, 0.4]}) == (before, after)
    assert results == result_paths(copy.locations.root, "small/contrast-5")


def grid_of_plan(locations: Locations) -> dict:
    """Return the grid of the choice that the plan of the tuned experiment names."""
    return json.loads(read_plan(locations, "small", "tent_tuned").labels.tuning)["grid"]


def test_a_score_without_labels_decides_and_all_are_compared_with_the_oracle(again: Again):
    """The file says which decides; the trials on reported cells change no choice, and are in no table of results."""
    locations = again.project.locations
    run = choice(locations)
    with open_metrics(locations.metrics) as connection:
        rows = connection.execute(
            "SELECT criterion, images, decides, gap FROM tuning_criteria WHERE gap IS NOT NULL"
        ).fetchall()
        (results,) = connection.execute(
            "SELECT count(*) FROM evaluations WHERE counts AND subset = 'first 64'"
        ).fetchone()

    assert {*HELD_OUT, "gaussian_noise", "contrast"} == seen(locations)
    assert "entropy" == run.criterion
    assert run.values == min(run.trials, key=lambda each: each.mean_entropy).values
    both = {(name, images) for name in CRITERIA for images in ("held-out", "reported")} - {("labels", "reported")}
    assert both | {("oracle", "reported")} == {row[:2] for row in rows}
    assert [("entropy", "held-out")] == [row[:2] for row in rows if row[2]]
    assert all(row[3] >= 0 for row in rows)
    assert 0 == results
    assert "oracle" in {each["criterion"] for each in json.loads(again.finished.stdout)["choices"]}
    assert "oracle" in {row[0] for row in criteria_table(run).rows}, "what people are shown without --json"


def refused(project: Project, *command: str) -> str:
    """Run *command*, which must fail and leave the trials as they are, and return what it says."""
    before = trials(project.locations)
    finished = project.run(*command)

    assert 0 != finished.returncode
    assert before == trials(project.locations)
    return finished.stderr


def test_no_grid_is_over_cells(tuned: Project):
    """Neither on the command line nor in the configuration of a run."""
    axes = {"corruption": "contrast", "severity": "3", "severities": "3", "shards": "other", "subset": "all"}
    grid = [word for name, value in axes.items() for word in ("--grid", f"{name}={value}")]
    said = refused(tuned, "tta-pipeline", "tune", "small", "tent", *grid)
    assert "only hyperparameters" in said
    assert all(f"unknown field {name}" in said for name in axes)
    before = trials(tuned.locations)
    assert not execute(
        tuned, [TUNING], config={"small__tuning__tent": {"config": {"grid": ["corruptions=contrast"]}}}
    ).success
    assert before == trials(tuned.locations)


def test_no_configuration_names_cells(tuned: Project):
    """A run's configuration has no such fields."""
    tuned_asset = ("dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", "--select", "small/tuning/tent")
    fields = ["benchmark", "cells", "corruptions", "severities"]
    config = {"ops": {"small__tuning__tent": {"config": {field: ["contrast"] for field in fields}}}}
    said = refused(tuned, *tuned_asset, "--config-json", json.dumps(config))
    assert f'Received unexpected config entries "{fields}"' in said


def test_no_partition_names_cells(tuned: Project):
    """The asset has none; one that is asked for reaches no trial, and the shards of held-out cells are no others."""
    tuned.materialize("small/tuning/tent", "--partition", "contrast|5")

    assert set(HELD_OUT) == seen(tuned.locations)
    graph = build_definitions(tuned.locations).resolve_asset_graph()
    keys = graph.get(dg.AssetKey(["small", "held_out", "shard_manifest"])).partitions_def.get_partition_keys()
    assert set(HELD_OUT) == {key.partition("|")[0] for key in keys}


def test_a_benchmark_that_reports_held_out_shifts_is_not_tuned_on_them(copy: Project):
    """What it reports is left out; if it reports all of them, it has no such asset."""
    own = "corruptions: [gaussian_noise, contrast, spatter, saturate]"
    benchmark = benchmark_of(TUNED.replace("corruptions: [gaussian_noise, contrast]", own))
    found = search(copy.locations, benchmark=benchmark, grid={"lr": (0.003,)}).run(machine=HERE, run_id="", tell=print)
    run = found.result.tuning

    assert ("speckle_noise|5", "gaussian_blur|5") == run.cells
    assert ("gaussian_noise", "contrast", "spatter", "saturate") == run.reported
    whole = TUNED.replace("[gaussian_noise, contrast]", f"[contrast, {', '.join(HELD_OUT)}]")
    copy.add_benchmark("small", whole)
    assert "small reports all shifts" in refused(copy, "tta-pipeline", "tune", "small", "tent")


def test_a_benchmark_without_held_out_shifts_is_refused_by_name(project: Project):
    """It names the set and what to do, whether or not the file has a section tuning."""
    own = "custom: {names: [gaussian_noise, contrast], severities: [3, 5]}"
    without = TUNED.partition("tuning:")[0].replace(", tuned: tent", "")
    for content in (without, TUNED):
        project.add_benchmark("bar", content.replace("corruptions: [gaussian_noise, contrast]", own))
        said = project.run("tta-pipeline", "tune", "bar", "tent").stderr
        assert "the dataset bar of bar holds out no shifts" in said
        assert "such as imagenet_c" in said


def test_a_replaced_folder_of_shards_is_refused(copy: Project):
    """Its manifest names the corruption."""
    held_out, reported = (copy.locations.root / "small" / "shards" / name / "5" for name in ("spatter", "contrast"))
    shutil.rmtree(held_out)
    shutil.copytree(reported, held_out)

    with pytest.raises(ManifestError, match=r"contrast\|5.*spatter\|5"):
        search(copy.locations).run(machine=HERE, run_id="", tell=print)
    assert "spatter|5" in refused(copy, "tta-pipeline", "tune", "small", "tent")


def test_shards_of_a_reported_cell_under_another_name_are_refused(copy: Project):
    """Also where the manifest was forged: the bytes are those of a reported cell."""
    held_out, reported = (copy.locations.root / "small" / "shards" / name / "5" for name in ("spatter", "contrast"))
    shutil.rmtree(held_out)
    shutil.copytree(reported, held_out)
    manifest = held_out / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"corruption": "contrast"', '"corruption": "spatter"'))

    with pytest.raises(EvaluationError, match=r"spatter/5 .*contrast\|5.*\bsmall\b.*spatter\|5"):
        search(copy.locations).run(machine=HERE, run_id="", tell=print)


def test_missing_shards_are_made_first(again: Again):
    """By the assets of the held-out shifts. They are the same shards again, so no trial is evaluated twice."""
    root, after = again.project.locations.root, trials(again.project.locations)
    fingerprints = [read_result(path).result.fingerprint for path in after]

    assert "shards of spatter|5 are made first" in again.finished.stderr
    assert (root / "small" / "shards" / "spatter" / "5" / "manifest.json").exists()
    assert again.before.items() <= after.items()
    assert len(set(fingerprints)) == len(fingerprints)


def test_missing_shards_of_a_run_are_refused_with_the_command_that_makes_them(copy: Project):
    """A run of the asset alone makes nothing else, and evaluates nothing."""
    shutil.rmtree(copy.locations.root / "small" / "shards" / "spatter")

    with pytest.raises(EvaluationError, match=r"no shards for spatter\|5, the first in .*small/held_out/tar_shards"):
        search(copy.locations).run(machine=HERE, run_id="", tell=print)


def test_clean_images_are_not_seen(copy: Project):
    """Their error is reported too: a stream that returns to them does not do so in a trial."""
    own = "  tent: {model: cnn, method: tent, preset: cifar, batch_size: 32"
    text = TUNED.replace(own, f"{own}, protocol: {{shift: continual, clean: after_each}}")
    search(copy.locations, benchmark=benchmark_of(text), grid={"lr": (0.003,)}).run(machine=HERE, run_id="", tell=print)

    assert set(HELD_OUT) == seen(copy.locations)


@pytest.mark.slow
def test_the_commands_of_the_recipe_work(copy: Project):
    """As they stand, but for names of benchmark and model, and cells that the small benchmark has."""
    section = HOW_TO.partition("## Choose a learning rate without cheating")[2].partition("\n## ")[0]
    (recipe,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    small, added = yaml.safe_load(SMALL), yaml.safe_load(recipe.replace("model: my_model", "model: cnn"))
    small["experiments"] |= added["experiments"]
    copy.add_benchmark("small", yaml.safe_dump({**small, "tuning": added["tuning"]}))
    lines = [line.partition("#")[0].replace("mine", "small") for line in commands(section)]
    ours = (("gaussian_noise|1...jpeg_compression|5", SMALL_RANGE),)

    for line in lines:
        for theirs, own in ours:
            line = line.replace(theirs, own)  # noqa: PLW2901
        program, *arguments = shlex.split(line)
        finished = run_dg(copy, *arguments) if program == "dg" else copy.run(program, *arguments)
        assert 0 == finished.returncode, (line, finished.stderr[-3000:])
    assert 5 == len(lines)
    assert {"lr": [1e-4, 2.5e-4, 1e-3], "momentum": [0, 0.9]} == choice(copy.locations).grid_values
    assert 4 == choice(copy.locations).num_trials
    assert "is chosen" in finished.stdout
