"""The plan of an experiment: what it asks for, as far as shards and model are there."""

import shutil
from dataclasses import replace

from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.run_experiment import update_plan
from tta_pipeline.results.plans import Plan, read_plan
from tta_pipeline_tests.evaluation.small import (
    CONTRAST_5,
    NOISE,
    SEVERITY_5,
    inputs_of,
    results_of,
    run_at,
    unfinished,
)

NOISE_5 = Cell(corruption=NOISE, severity=5)


def plan_of(data: Locations) -> Plan:
    """Return the plan of the experiment."""
    plan = read_plan(data, "small", "own")
    assert plan is not None
    return plan


def test_a_plan_lacks_what_has_no_shards_yet_and_is_filled_later(data: Locations):
    """A run at another cell writes what is known; once the shards are there, the next run knows the rest."""
    own, folder = results_of(data, subset={"first": 64}), data.shards("small", NOISE_5)
    folder.rename(data.root / "aside")
    run_at(own, CONTRAST_5)
    before = {stream.key: stream.fingerprints for stream in plan_of(data).streams}
    (data.root / "aside").rename(folder)
    run_at(own, CONTRAST_5)
    after = {stream.key: stream.fingerprints for stream in plan_of(data).streams}

    assert [NOISE_5.key] == [key for key, known in before.items() if not known]
    assert all(len(known) == 1 for known in after.values())
    assert before == {**after, NOISE_5.key: ()}
    assert {CONTRAST_5} == replace(own).finished_keys()


def test_a_stream_without_the_shards_of_a_later_segment_is_known_up_to_it(data: Locations):
    """Its fingerprints follow from the shards before, and it is not finished."""
    own = results_of(data, protocol="continual", subset={"first": 64})
    run_at(own, SEVERITY_5)
    whole = next(stream for stream in plan_of(data).streams if stream.key == "5")
    shutil.rmtree(data.shards("small", CONTRAST_5))
    update_plan(inputs_of(own))
    found = next(stream for stream in plan_of(data).streams if stream.key == "5")

    assert whole.fingerprints[:1] == found.fingerprints
    assert [None] == [segment.fingerprint for segment in found.segments[1:]]
    assert SEVERITY_5 not in replace(own).finished_keys()


def test_a_plan_that_is_asked_for_again_is_the_same_file(data: Locations):
    """It is written only when it changes, so that nothing is published again."""
    own = results_of(data, subset={"first": 64})
    update_plan(inputs_of(own))
    path = data.results("small") / "plans" / "own.json"
    before = path.stat()
    update_plan(inputs_of(own))

    assert (before.st_ino, before.st_mtime_ns) == (path.stat().st_ino, path.stat().st_mtime_ns)
    assert unfinished(own, CONTRAST_5)
