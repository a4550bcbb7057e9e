"""Streams that last: visited again and again, and killed inside a segment."""

import shutil
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from tta_pipeline.benchmarks.protocol import Protocol
from tta_pipeline.benchmarks.protocols.sample_orders import Dirichlet
from tta_pipeline.domain.cells import PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.open_stream import open_stream
from tta_pipeline.evaluation.stream_states import StreamStates
from tta_pipeline_tests.conftest import run_python
from tta_pipeline_tests.evaluation.small import CONTRAST_5, SEVERITY_5, evaluated, results_of, run_at, unfinished
from tta_pipeline_tests.flat_facts import flat_row

CONTINUAL_TWICE = {"shift": "continual", "recurring": 2, "order": "dirichlet", "delta": 0.1}
DRAWN: dict[str, dict[str, float]] = {"stored": {}, "shuffled": {}, "by_class": {}, "dirichlet": {"delta": 0.1}}
KILLED = """
from functools import partial
import json, os, sys
from pathlib import Path
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import run_experiment
from tta_pipeline.evaluation.stream_states import StreamStates
from tta_pipeline.domain.locations import Locations
from tta_pipeline.domain.cells import parse_key

save, left = StreamStates.save_within, [int(sys.argv[4])]
def save_and_die(*args, **kwargs):
    save(*args, **kwargs)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 9)
StreamStates.save_within = save_and_die
own = ExperimentResults(
    benchmark=Benchmark.model_validate(json.loads(sys.argv[2])), experiment_name="own",
    locations=Locations(root=Path(sys.argv[1])),
)
key = parse_key(sys.argv[3], own.keys)
machine = Machine(device="cpu", checkpoint_every=9)
run_experiment(own, [key], machine=machine, run_id="killed", tell=partial(print, flush=True))
"""


def killed(own: ExperimentResults, key: PartitionKey, *, after: int) -> str:
    """Evaluate the stream at *key* in a process that is killed behind *after* states, and return what it said."""
    arguments = [str(own.locations.root), own.benchmark.model_dump_json(), key.key, str(after)]
    run = run_python(KILLED, *arguments)
    assert -signal.SIGKILL == run.returncode, run.stderr[-2000:]
    return run.stdout


def resumed(own: ExperimentResults, key: PartitionKey, *, every: int = 9) -> tuple[list[dict[str, Any]], list[str]]:
    """Evaluate what is left at *key* in this process; return the facts of all rows, and what was said."""
    lines = list[str]()
    rows = run_at(own, key, tell=lines.append, checkpoint_every=every)
    return [flat_row(row) for row in rows], lines


def results(rows: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    """Return what does not depend on time."""
    names = (
        "predictions_sha256", "samples_sha256", "nll", "brier", "ece", "num_correct", "num_batches", "num_forwards",
        "num_updates", "num_adapted_samples", "fingerprint", "order_hash", "diverged",
    )  # fmt: skip
    return [
        {name: row[name] for name in names}
        | {"correct": row["batches"]["num_correct"], "class_wise_ece": round(row["class_wise_ece"], 9)}
        for row in rows
    ]


STREAMS = pytest.mark.parametrize(
    ("key", "settings"),
    [
        pytest.param(CONTRAST_5, {"method": "tent"}, marks=pytest.mark.slow),
        pytest.param(CONTRAST_5, {"method": "rotta"}, marks=pytest.mark.slow),
        (CONTRAST_5, {"protocol": {"sliding_window": 8}, "batch_size": 1, "subset": {"first": 30}}),
        (
            SEVERITY_5,
            {
                "protocol": "mixed",
                "method": "cotta",
                "hyperparameters": {"num_augmentations": 2},
                "subset": {"first": 32},
            },
        ),
        pytest.param(SEVERITY_5, {"protocol": "continual", "method": "eata"}, marks=pytest.mark.slow),
    ],
    ids=["tent", "rotta", "window", "mixed", "continual"],
)


@STREAMS
def test_a_stream_that_was_killed_inside_a_segment_goes_on_to_the_same_end(
    data: Locations, key: PartitionKey, settings: dict[str, object]
):
    """Killed twice, the second time by a process that itself went on, it has the results of one that never stopped."""
    own = results_of(data, **{"batch_size": 8, "subset": {"first": 64}, **settings})
    whole = evaluated(own, key)  # without a stop: its segments have fewer images than the default
    shutil.rmtree(data.results("small"))

    killed(own, key, after=2)
    said = killed(own, key, after=1)
    again, lines = resumed(own, key)

    assert "after " in said
    assert any(" images" in line and "continues" in line for line in lines)
    assert results(whole) == results(again)
    assert not list(data.states("small").rglob("*.*"))


def test_a_damaged_part_is_said_and_the_state_before_it_is_taken(data: Locations):
    """What cannot be proven is evaluated again, and nothing more."""
    own = results_of(data, batch_size=8, subset={"first": 64})
    whole = evaluated(own, CONTRAST_5)
    shutil.rmtree(data.results("small"))
    killed(own, CONTRAST_5, after=3)
    newest = max(data.states("small").rglob("*.part"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")

    again, lines = resumed(own, CONTRAST_5)

    assert any("is damaged" in line and newest.name in line for line in lines)
    assert any("after 32 images" in line for line in lines)  # 9 images are rounded up to two batches of 8
    assert results(whole) == results(again)


def test_what_is_evaluated_anew_takes_no_part_of_before(data: Locations):
    """Else a result would be of two runs, though one was asked for."""
    own = results_of(data, batch_size=8, subset={"first": 64})
    killed(own, CONTRAST_5, after=3)
    lines = list[str]()

    run_at(own, CONTRAST_5, force=True, tell=lines.append)

    assert not any("continues" in line for line in lines)
    assert not list(data.states("small").rglob("*.*"))


def test_only_the_newest_states_of_a_segment_are_kept(data: Locations, monkeypatch: pytest.MonkeyPatch):
    """A stream of millions of images fills no disk with models; its parts are small."""
    own = results_of(data, batch_size=8, subset={"first": 64})
    found, save = list[int](), StreamStates.save_within

    def counted(self: StreamStates, *args: Any) -> None:
        save(self, *args)
        found.append(len(list(self.folder.glob("*.state"))))

    monkeypatch.setattr(StreamStates, "save_within", counted)
    resumed(own, CONTRAST_5, every=8)

    assert [1, 2, 2, 2, 2, 2, 2] == found


def test_each_visit_is_recorded_and_has_an_order_of_its_own(data: Locations):
    """The first visit is the stream without others; the method is not reset before the second."""
    few = {"subset": {"first": 64}}
    once = evaluated(results_of(data, protocol={**CONTINUAL_TWICE, "recurring": 1}, **few), SEVERITY_5)
    twice = evaluated(results_of(data, protocol=CONTINUAL_TWICE, **few), SEVERITY_5)

    assert [None, None] == [row["visit"] for row in once]
    assert [1, 1, 2, 2] == [row["visit"] for row in twice]
    assert [row["predictions_sha256"] for row in once] == [row["predictions_sha256"] for row in twice[:2]]
    assert [row["order_hash"] for row in once] == [row["order_hash"] for row in twice[:2]]
    for first, second in zip(twice[:2], twice[2:], strict=True):
        assert (first["corruption"], first["severity"]) == (second["corruption"], second["severity"])
        assert first["order_hash"] != second["order_hash"]
        assert first["predictions_sha256"] != second["predictions_sha256"]


def test_each_cell_of_each_visit_draws_its_own_dirichlet_order(data: Locations):
    """Two corruptions of the same images come in two orders, as in the sampler of RoTTA, and in two more when again."""
    own = results_of(data, protocol=CONTINUAL_TWICE, method="source")
    rows = evaluated(own, SEVERITY_5)
    alone = evaluated(results_of(data, protocol={"order": "dirichlet", "delta": 0.1}, method="source"), CONTRAST_5)

    assert 4 == len({row["order_hash"] for row in rows})
    assert alone[0]["order_hash"] == rows[1]["order_hash"]


def test_a_dynamic_stream_draws_the_dirichlet_order_of_each_cell(data: Locations):
    """Across the parts of a cell its classes come and go as in the cell alone, and otherwise in each cell."""
    drawn = {"order": "dirichlet", "delta": 0.1}
    own = results_of(data, protocol={"shift": "dynamic", **drawn}, method="source")
    folders = [own.folder(cell) for cell in own.benchmark.cells if cell.severity == 5]
    alone = [open_stream([folder], experiment=results_of(data, protocol=drawn).spec) for folder in folders]
    together = open_stream(folders, experiment=own.spec)
    indices = together.order.indices
    for number, one in enumerate(alone):
        of_cell = indices[together.joined.set_numbers(indices) == number]
        expected = one.joined.index.labels[one.order.indices]
        assert expected.tolist() == together.joined.index.labels[of_cell].tolist()
    assert alone[0].order.sha256 != alone[1].order.sha256


def test_results_of_an_earlier_dirichlet_order_are_not_finished(data: Locations, monkeypatch: pytest.MonkeyPatch):
    """They are of other streams; results of other orders stay."""
    few = {"subset": {"first": 64}, "method": "source"}
    own = {order: results_of(data, protocol={"order": order, **more}, **few) for order, more in DRAWN.items()}
    monkeypatch.setattr(Dirichlet, "version", None)
    for each in own.values():
        evaluated(each, CONTRAST_5)
    monkeypatch.undo()

    assert ["dirichlet"] == [order for order, each in own.items() if unfinished(each, CONTRAST_5)]


def test_a_stored_order_is_the_same_in_each_visit(data: Locations):
    """Only an order that is drawn is drawn anew."""
    fast = {"protocol": {"shift": "continual", "recurring": 2}, "hyperparameters": {"lr": 0.1}}
    rows = evaluated(results_of(data, subset={"first": 64}, **fast), SEVERITY_5)

    assert [row["order_hash"] for row in rows[:2]] == [row["order_hash"] for row in rows[2:]]
    assert rows[0]["predictions_sha256"] != rows[2]["predictions_sha256"]


@pytest.mark.parametrize("shift", ["reset_each_shift", "episodic", "mixed", "slow"])
def test_only_streams_of_several_segments_recur(shift: str):
    """Elsewhere the field would be read, and change nothing."""
    with pytest.raises(ValueError, match=rf"recurring is 2\b.*\b{shift}\b.*\bcontinual\b.*\bgradual\b"):
        Protocol(shift=shift, recurring=2)  # type: ignore[arg-type]
    assert "recurring_correlated" == Protocol(shift="continual", order="by_class", recurring=20).name
