"""What a fingerprint of a segment says about the stream before it."""

import json
import shutil
from collections.abc import Iterator
from itertools import islice

import pytest

from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ManifestError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.evaluation.inputs import Inputs, SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.open_stream import open_stream
from tta_pipeline.evaluation.run_experiment import Board
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline_tests.evaluation.small import CONTRAST_5, NOISE, SEVERITY_5, evaluated, inputs_of, results_of

NOISE_5 = Cell(corruption=NOISE, severity=5)


def of_stream(data: Locations, *, visits: int = 3) -> tuple[ExperimentResults, Iterator[Fingerprint]]:
    """Return an experiment that visits noise and contrast in turn, and the fingerprints of its segments."""
    results = results_of(data, protocol={"shift": "continual", "recurring": visits})
    inputs = Inputs(experiment=results, machine=Machine(device="cpu"), known=SharedCache())
    (plan,) = results.plans(SEVERITY_5)
    return results, inputs.fingerprints(plan)


@pytest.mark.parametrize("position", range(5))
def test_every_shard_set_before_decides(data: Locations, monkeypatch: pytest.MonkeyPatch, position: int):
    """Other shards change the fingerprint of their segment and of every later one, and of no earlier one."""
    before = [each.sha256 for each in of_stream(data)[1]]
    opened, unchanged = list[Cell](), Inputs.manifest

    def manifest(inputs: Inputs, cell: Cell) -> Manifest:
        opened.append(cell)
        of_other = Cell(corruption=cell.corruption, severity=3)
        # The first shards are looked at before the model is loaded, too.
        return unchanged(inputs, of_other if len(opened) - 2 == position else cell)

    monkeypatch.setattr(Inputs, "manifest", manifest)
    after = [each.sha256 for each in of_stream(data)[1]]

    assert [at >= position for at in range(6)] == [one != other for one, other in zip(before, after, strict=True)]
    assert len(set(before)) == 6


def test_a_long_stream_has_fingerprints_of_one_size(data: Locations):
    """The text of a fingerprint, which its result holds, does not grow with the segments before it."""
    sizes = [len(each.text) for each in of_stream(data, visits=100)[1]]

    assert max(sizes[1:]) - min(sizes[1:]) <= len("100") + len(NOISE) - len(CONTRAST_5.corruption)


def test_manifests_are_read_when_their_segment_is_reached(data: Locations):
    """A stream of fingerprints that is not read to its end reads no further manifest."""
    _, found = of_stream(data)
    shutil.rmtree(data.shards("small", CONTRAST_5))

    assert 1 == len(list(islice(found, 1)))
    with pytest.raises(ManifestError, match="contrast"):
        next(found)


def test_the_shards_that_were_opened_decide(data: Locations):
    """Though others were in their folder when finished cells were looked for."""
    own = results_of(data)
    inputs, (plan,) = inputs_of(own), own.plans(CONTRAST_5)
    (before,) = inputs.stream_fingerprints(plan)
    others = open_stream([data.shards("small", Cell(corruption=CONTRAST_5.corruption, severity=3))])

    inputs.note_opened((CONTRAST_5,), others)

    (after,) = inputs.stream_fingerprints(plan)
    shown = [others.manifests[0].sha256 in each.text for each in (before, after)]
    assert [False, True] == shown


def test_a_person_is_told_which_shards_are_others(data: Locations):
    """Where they are first met in the stream, with both hashes; what comes after names that cell."""
    own = results_of(data, protocol="continual")
    evaluated(own, SEVERITY_5)
    path = data.shards("small", NOISE_5) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"labels_sha256": "0" * 64}))

    (plan,) = own.plans(SEVERITY_5)
    noise, contrast = Board(inputs=inputs_of(own)).standings(plan)

    assert ["data"] == list(noise.differences)
    assert noise.reason.startswith("changed since: data was [[")
    assert "it follows gaussian_noise|5, which is evaluated first" == contrast.reason
