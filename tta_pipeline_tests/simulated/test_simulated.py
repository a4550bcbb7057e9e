"""Evaluations on a simulated accelerator: predictions, waits of the host, and memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tta_pipeline.methods import METHODS
from tta_pipeline_tests.methods.models import ADDED
from tta_pipeline_tests.simulated.cases import PROTOCOLS, make_shards
from tta_pipeline_tests.simulated.committed import most, reasons, run, waits_of_methods
from tta_pipeline_tests.simulated.device import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

OF_METHODS = tuple(f"{method}/reset_each_shift" for method in METHODS)
OF_DRAWS = tuple(f"{method}+batch/reset_each_shift" for method in ("cotta", "rotta", "roid", "cmf", "rmt"))
OF_ADDED = tuple(f"tent+{params}/reset_each_shift" for params in ADDED)
OF_PROTOCOLS = tuple(f"tent/{protocol}" for protocol in PROTOCOLS)
OF_BOTH = tuple(f"{method}/{protocol}" for method in METHODS for protocol in PROTOCOLS)
CASES = tuple(dict.fromkeys(OF_METHODS + OF_DRAWS + OF_ADDED + OF_PROTOCOLS))
QUICK = frozenset(
    (
        *(f"{method}/reset_each_shift" for method in ("source", "norm", "tent", "t3a", "roid")),
        "roid+batch/reset_each_shift",
        "tent+adapters/reset_each_shift",
        "tent/episodic",
        "tent/mixed",
        "tent/continual",
    )
)
"""Cases of each kind that take little time: without and with gradients, with a memory and with views; the others are
slow tests."""
Lines = dict[str, dict[str, Any]]


def quick_first(cases: Sequence[str]) -> list[Any]:
    """Return *cases* as parameters, the mark of slow tests on all but the quick ones."""
    return [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in cases]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of a few small images."""
    root = tmp_path_factory.mktemp("simulated")
    make_shards(root)
    return root


@pytest.fixture(scope="module")
def cases(root: Path, request: pytest.FixtureRequest) -> Lines:
    """What happened in each case that the selected tests look at."""
    own = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.params.get("case") for item in own if hasattr(item, "callspec")}
    return {line["case"]: line for line in run("cases", root, *(case for case in CASES if case in asked))}


@pytest.mark.parametrize("case", quick_first(CASES))
def test_predictions_are_those_of_the_cpu(cases: Lines, case: str):
    """To the last bit, and no memory is freed while a stream uses it."""
    assert cases[case]["cpu"] == cases[case]["simulated"]
    assert cases[case]["cpu"]
    assert [] == cases[case]["faults"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_method_under_every_protocol_predicts_as_on_the_cpu(root: Path):
    """To the last bit."""
    lines = run("cases", root, *OF_BOTH)

    assert list(OF_BOTH) == [line["case"] for line in lines]
    assert [] == [line["case"] for line in lines if line["cpu"] != line["simulated"] or line["faults"]]


_STEPS_OF_LAME = "methods/gradient_free/lame.py:_energy item"


@pytest.mark.parametrize("case", quick_first(OF_METHODS))
def test_waits_of_a_batch_are_those_of_the_committed_list(cases: Lines, case: str):
    """Another one is a loss of speed that a GPU shows: do without it, or add it to the list with its reason."""
    committed, found = waits_of_methods()[case.partition("/")[0]], most(cases[case]["waits"])

    # LAME stops at a tolerance below the rounding of float32, which differs between processors.
    steps = [waits.pop(_STEPS_OF_LAME, 0) for waits in (committed, found)]
    assert committed == found
    assert abs(steps[0] - steps[1]) <= 3


@pytest.mark.parametrize("case", quick_first(OF_DRAWS + OF_ADDED))
def test_a_choice_causes_no_other_wait(cases: Lines, case: str):
    """One draw for a batch, or parameters that are added: in no batch does the host wait more often than without."""
    committed, found = waits_of_methods()[case.partition("+")[0]], most(cases[case]["waits"])

    assert found
    assert {} == {place: count for place, count in found.items() if count > committed.get(place, 0)}


@pytest.mark.parametrize("method", ["source", "norm", "tent"])
def test_the_device_never_runs_out_of_work(method: str):
    """Inside a batch, the host waits for nothing that was just submitted: only for copies, and batches long before."""
    assert {"event"} == {place.rpartition(" ")[2] for place in waits_of_methods()[method]}


def test_each_method_has_its_waits():
    """One that is added without them fails before its waits are counted, which most tests of this do slowly."""
    assert set(METHODS) == set(waits_of_methods())


def test_each_wait_has_a_reason():
    """And no reason is left of a wait that is gone."""
    assert {place for waits in waits_of_methods().values() for place in waits} == set(reasons())
    assert [] == [place for place, reason in reasons().items() if not reason]


def test_memory_does_not_grow_over_a_pass(root: Path):
    """A batch adds what is kept of its three samples, which is less than the pixels of one of them."""
    (line,) = run("growth", root)
    before, after = line["live_bytes"][:2]

    assert [before + number * (after - before) for number in range(4)] == line["live_bytes"][:4]
    assert 0 <= after - before < 3 * 16 * 16


def test_a_stream_that_goes_on_waits_no_more_than_one_that_was_not_broken_off(root: Path):
    """With Adam, whose counters stay on the host; if they were on the device, each parameter would wait."""
    (line,) = run("resume", root)

    assert line["uninterrupted"] == line["resumed"]
    assert waits_of_methods()["tent"] == most(line["waits"])


def test_out_of_memory_names_the_batch_size_that_fits(root: Path):
    """In a forward or a backward pass; and with that size there is enough: what failed keeps no memory."""
    *refused, advised = run("memory", root)

    assert [False, True] == [line["is_in_backward"] for line in refused]
    for line in refused:
        assert "simulated accelerator is out of memory at batches of 12" in line["error"]
        assert line["error"].endswith("set batch_size to 6")
    assert advised["cpu"] == advised["simulated"]


def test_the_device_has_a_name_and_a_lease(root: Path):
    """As each kind of device that torch knows.

    A process that sees only its own device takes it: under Slurm, the fourth process of a machine may be shown one
    device, the first that it knows.
    """
    (line,) = run("facts", root)

    assert line == {
        "leased": "simulated:0", "name": "simulated accelerator", "memory_bytes": 2**30, "of_rank_3": "simulated:0",
        "exchange": "gloo",
    }  # fmt: skip
