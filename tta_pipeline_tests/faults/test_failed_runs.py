"""What the page of a failed run says."""

import re

import dagster as dg

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
    select = "small/tar_shards,small/shard_manifest"
    assert f"dg launch --assets '{select}' --partition 'contrast|5'" in said.metadata["then_type"].value
    assert 1 == len(failures[0].error_display_string.strip().splitlines())


def test_damaged_shards_are_written_again_by_the_command_that_is_named(project: Project):
    """A flipped bit is refused once with the command to type, and that command makes the shards what they were."""
    project.add_benchmark("small", SMALL)
    which = ("--partition", "contrast|5")
    everything = "small/source_split,small/tar_shards,small/shard_manifest"
    assert 0 == project.materialize(everything, *which).returncode
    shard = next((project.locations.root / "small/shards/contrast/5").glob("*.tar"))
    good = shard.read_bytes()
    shard.write_bytes(good[:700] + bytes([good[700] ^ 1]) + good[701:])

    refused = project.materialize(everything, *which)
    mended = project.materialize("small/tar_shards,small/shard_manifest", *which)

    assert 0 != refused.returncode
    assert "make the shards of this cell again" in refused.stderr
    assert 0 == mended.returncode, mended.stderr[-3000:]
    assert good == shard.read_bytes()


def test_a_run_that_fails_publishes_what_it_finished_before(project: Project):
    """The manifest of the cell before the damaged one is in the database, and not only after a later run."""
    project.add_benchmark("small", SMALL)
    both = ("--partition-range", "gaussian_noise|5...contrast|5")
    assert 0 == project.materialize("small/source_split,small/tar_shards", *both).returncode
    next((project.locations.root / "small/shards/contrast/5").glob("*.tar")).write_bytes(b"damaged")

    failed = project.materialize("small/shard_manifest", *both)

    assert 0 != failed.returncode
    found = project.run("tta-pipeline", "metrics", "--sql", "SELECT corruption FROM shard_sets", "--format", "csv")
    assert ["corruption", "gaussian_noise"] == found.stdout.split(), found.stderr
