"""What the page of a failed run says."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import dagster as dg

from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark
from tta_pipeline_tests.defs.in_process import execute, what_failed
from tta_pipeline_tests.result_paths import results_of


def test_a_failed_run_says_what_where_and_the_way_out(project: Project):
    """The cell, the fault in its own words and what to type; in the log it is one line without a traceback."""
    project.add_benchmark("small", SMALL)

    finished = project.materialize("small/shard_manifest", "--partition", "contrast|5")

    assert 0 != finished.returncode
    assert not re.search("Traceback|Stack Trace", finished.stderr)
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        (run,) = instance.get_runs()
        logged = instance.all_logs(run.run_id, dg.DagsterEventType.STEP_FAILURE)
        failures = [entry.dagster_event.step_failure_data for entry in logged]
    said = failures[0].user_failure_data
    assert said.description.startswith("contrast|5: ")
    assert "writer.json cannot be read" in said.description
    assert "materialize this cell's tar_shards" in said.description
    assert "ManifestError" == said.metadata["fault"].value
    select = "small/images,small/tar_shards,small/shard_manifest"
    assert f"dg launch --assets '{select}' --partition 'contrast|5'" in said.metadata["then_type"].value
    assert 1 == len(failures[0].error_display_string.strip().splitlines())


def test_damaged_shards_are_written_again_by_the_assets_that_are_named(project: Project, sweep: Project):
    """No manifest is made of a flipped bit; the asset of the shards notices it and makes them what they were.

    The manifest of the cell before the damaged one is in the database, and not only after that run.
    """
    project.add_benchmark("small", SMALL)
    for cell in ("contrast/5", "gaussian_noise/5"):
        folder = Path("small/shards", cell)
        shutil.copytree(sweep.locations.root / folder, project.locations.root / folder)
    (project.locations.root / folder / "manifest.json").unlink()
    shutil.copy(sweep.locations.root / "small/class_map.json", project.locations.root / "small")
    shard = next((project.locations.root / "small/shards/contrast/5").glob("*.tar"))
    good = shard.read_bytes()
    shard.write_bytes(good[:700] + bytes([good[700] ^ 1]) + good[701:])

    refused = execute(project, ["small/shard_manifest"], ["gaussian_noise|5", "contrast|5"], publishes=True)
    with open_metrics(project.locations.metrics) as connection:
        published = connection.execute("SELECT corruption FROM shard_sets ORDER BY ALL").fetchall()
    mended = execute(project, ["small/images", "small/tar_shards", "small/shard_manifest"], ["contrast|5"])

    assert not refused.success
    assert "rebuild or refetch this cell's shards" in what_failed(refused)
    assert [("contrast",), ("gaussian_noise",)] == published
    assert mended.success, what_failed(mended)
    assert good == shard.read_bytes()


def test_a_damaged_shard_is_made_again_by_run(project: Project, sweep: Project):
    """A bit that flips under an old time is found at its sample; the next run says so, and gives the old result."""
    project.add_benchmark("small", SMALL)
    copy_benchmark(sweep, project, without=("report", "results", "source"))
    images, folder = (project.locations.root / "small" / name / "contrast/5" for name in ("source", "shards"))
    shutil.copytree(sweep.locations.root / "small/source/contrast/5", images)
    ShardSet.open(folder).note_verified()
    shard = next(folder.glob("*.tar"))
    good, status = shard.read_bytes(), shard.stat()
    with shard.open("r+b") as file:
        file.seek(700)
        file.write(bytes([good[700] ^ 1]))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))

    def run(part: str) -> subprocess.CompletedProcess[str]:
        selected = ("--cell", "contrast|5", "--experiment", "source", "--part", part)
        return project.run("tta-pipeline", "run", "small", *selected)

    found, mended, evaluated = run("1/1"), run("prepare"), run("1/1")

    assert 1 == found.returncode
    assert shard.name in found.stderr
    assert 0 == mended.returncode, mended.stderr[-3000:]
    assert 0 == evaluated.returncode, evaluated.stderr[-3000:]
    assert f"{shard} does not hash to" in mended.stderr
    assert "the shards of this cell are made again" in mended.stderr
    assert good == shard.read_bytes()
    before, after = (
        [
            (each.result.fingerprint, each.result.evaluations[0].predicted.predictions_sha256)
            for each in results_of(data.locations.root, "small", "source")
            if each.result.key == "contrast-5"
        ]
        for data in (sweep, project)
    )
    assert before == after


def test_a_finished_cell_is_timed_again_by_force(project: Project, sweep: Project):
    """The verb adds a result of the same predictions, and nothing that counts changes but the number of timings.

    The list of runs in the web UI shows the cell, and no tag that means nothing to people.
    """
    project.add_benchmark("small", SMALL)
    copy_benchmark(sweep, project, without=("report", "source"))
    selected = ("--cell", "contrast|5", "--experiment", "source", "--part", "1/1")

    finished = project.run("tta-pipeline", "run", "small", *selected, "--force")

    assert 0 == finished.returncode, finished.stderr[-3000:]
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        tags = instance.get_runs()[0].tags
    assert {"partitions": "contrast|5"} == {name: tags[name] for name in tags if "dagster/" not in name}
    rows = [
        each.result.evaluations[0]
        for each in results_of(project.locations.root, "small", "source")
        if each.result.key == "contrast-5"
    ]
    publish_metrics(project.locations)
    assert 2 == len(rows)
    assert 1 == len({(row.setup.fingerprint, row.predicted.predictions_sha256) for row in rows})
    with open_metrics(project.locations.metrics) as connection:
        asked = "SELECT num_timings, count(*) FROM evaluations WHERE counts GROUP BY 1 ORDER BY 1"
        assert [(1, 14), (2, 1)] == connection.execute(asked).fetchall()


AS_THE_WEB_UI = """
import json, sys
import dagster as dg
from tta_pipeline.definitions import defs
job, key = defs.resolve_implicit_global_asset_job_def(), dg.AssetKey(["small", sys.argv[1]])
if tags := json.loads(sys.argv[2]):
    subset = job.get_subset(asset_selection={key})
else:
    checks = {each for each in job.asset_layer.asset_graph.asset_check_keys if each.asset_key == key}
    subset = job.get_subset(asset_check_selection=checks)
with dg.DagsterInstance.get() as instance:
    run = subset.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
    print(run.success, len(run.get_asset_check_evaluations()))
"""
"""Runs an asset with the tags of a run, or without any all of its checks, as "Execute all" does."""


def test_checks_on_their_own_are_of_all_that_was_made(sweep: Project, project: Project):
    """Without a partition, each cell that was materialized is checked again; without any such cell the run fails."""
    project.add_benchmark("small", SMALL)

    none_made = project.run("python", "-c", AS_THE_WEB_UI, "shard_manifest", "{}")
    shutil.copytree(sweep.home, project.home, dirs_exist_ok=True)
    all_made = replace(sweep, home=project.home).run("python", "-c", AS_THE_WEB_UI, "shard_manifest", "{}")

    assert "False 0\n" == none_made.stdout
    assert "small/shard_manifest has no materialized partition" in none_made.stderr
    assert f"True {4 * 3}\n" == all_made.stdout, all_made.stderr


def test_a_partition_key_that_is_a_path_is_refused(project: Project):
    """A run whose key leads out of its folder fails, names the key, and makes no file."""
    project.add_benchmark("small", SMALL)

    refused = project.run("python", "-c", AS_THE_WEB_UI, "images", '{"dagster/partition": "../../x|1"}')

    assert "False 0\n" == refused.stdout
    assert "partition key '../../x|1' does not exist; expected" in refused.stderr
    assert {project.home, project.locations.root} == set(project.home.parent.iterdir())
    assert [project.locations.benchmark_files] == list(project.locations.root.iterdir())
