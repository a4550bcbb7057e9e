"""Compiled code is for batches of one size: it is made once for each network, and for nothing else.

The backend here generates no code, so that no compiler is needed: what is compiled how often is the same.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tta_pipeline.evaluation.open_stream import open_stream
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.evaluation.test_evaluator import evaluated, evaluator


@pytest.fixture(autouse=True)
def _backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile with the backend that runs the captured graph as it is."""
    compile_module = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda module, **_: compile_module(module, backend="eager", dynamic=False)
    )
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def num_graphs() -> int:
    """Return how many graphs were compiled."""
    return counters["stats"]["unique_graphs"]


def test_a_network_is_compiled_once(shard_set: ShardSet):
    """Not anew for the samples that ROID chooses in each batch, nor for the last batch; predictions are the same."""
    expected = evaluated(evaluator("roid"), shard_set)

    row = evaluated(evaluator("roid", compile="default"), shard_set)

    assert 1 == num_graphs()
    assert expected.predicted.predictions_sha256 == row.predicted.predictions_sha256


@pytest.mark.parametrize(("method", "copies"), [("cotta", 2), ("rotta", 1), ("adacontrast", 1), ("tent", 0)])
def test_teachers_and_anchors_are_compiled_too(shard_set: ShardSet, method: str, copies: int):
    """A deep copy of a compiled network is not, by itself."""
    by = evaluator(method, compile="default")

    by.start(shard_set.manifest, seed=0)

    own = [value for value in vars(by._method).values() if isinstance(value, type(by._method.model))]
    assert 1 + copies == len(own)
    assert all(network._compiled_call_impl is not None for network in own)


def test_a_window_that_grows_is_not_compiled_until_it_is_full(shard_set: ShardSet):
    """Otherwise each size would be, and torch would give up before the last."""
    by = evaluator("tent", compile="default", protocol={"sliding_window": 12}, batch_size=1)
    by.start(shard_set.manifest, seed=0)
    opened = open_stream([shard_set.folder], experiment=by._experiment)
    by.evaluate(opened, lambda _: None, segment=("fog|5", 0))

    assert 1 == num_graphs()
