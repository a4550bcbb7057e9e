"""What the page of a failed run says."""

import re
import shutil
from dataclasses import replace

import dagster as dg

from tta_pipeline.results.database.database import open_metrics
from tta_pipeline_tests.conftest import SMALL, Project


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
    select = "small/source_split,small/tar_shards,small/shard_manifest"
    assert f"dg launch --assets '{select}' --partition 'contrast|5'" in said.metadata["then_type"].value
    assert 1 == len(failures[0].error_display_string.strip().splitlines())


def test_damaged_shards_are_written_again_by_the_command_that_is_named(project: Project):
    """No manifest is made of a flipped bit; the asset of the shards notices it and makes them what they were.

    The manifest of the cell before the damaged one is in the database, and not only after that command.
    """
    project.add_benchmark("small", SMALL)
    which = ("--partition", "contrast|5")
    everything = "small/source_split,small/tar_shards,small/shard_manifest"
    assert 0 == project.materialize(everything, *which).returncode
    shard = next((project.locations.root / "small/shards/contrast/5").glob("*.tar"))
    good = shard.read_bytes()
    shard.write_bytes(good[:700] + bytes([good[700] ^ 1]) + good[701:])

    assert 0 == project.materialize("small/source_split,small/tar_shards", "--partition", "gaussian_noise|5").returncode

    refused = project.materialize("small/shard_manifest", "--partition-range", "gaussian_noise|5...contrast|5")
    with open_metrics(project.locations.metrics) as connection:
        published = connection.execute("SELECT corruption FROM shard_sets ORDER BY ALL").fetchall()
    mended = project.materialize(everything, *which)

    assert 0 != refused.returncode
    assert "make the shards of this cell again" in refused.stderr
    assert [("contrast",), ("gaussian_noise",)] == published
    assert 0 == mended.returncode, mended.stderr[-3000:]
    assert good == shard.read_bytes()


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
    assert "found no materialized partition of small/shard_manifest" in none_made.stderr
    assert f"True {4 * 3}\n" == all_made.stdout, all_made.stderr


def test_a_partition_key_that_is_a_path_is_refused(project: Project):
    """A run whose key leads out of its folder fails, names the key, and makes no file."""
    project.add_benchmark("small", SMALL)

    refused = project.run("python", "-c", AS_THE_WEB_UI, "source_split", '{"dagster/partition": "../../x|1"}')

    assert "False 0\n" == refused.stdout
    assert "found partition key '../../x|1'; expected" in refused.stderr
    assert {project.home, project.locations.root} == set(project.home.parent.iterdir())
    assert [project.locations.benchmark_files] == list(project.locations.root.iterdir())
