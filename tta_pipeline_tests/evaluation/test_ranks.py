"""However many processes share a stream, together they are one."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.one_pass import BatchTiming, Pass
from tta_pipeline.evaluation.ranks import Ranks, merge_passes
from tta_pipeline.evaluation.scores import SampleScores
from tta_pipeline.loading.stream_order import StreamOrder


def whole(num_samples: int) -> StreamOrder:
    """Return an order that is no plain count."""
    return StreamOrder(name="test", indices=np.arange(num_samples)[::-1].copy(), sha256="0" * 64)


def passed(order: StreamOrder, batch_size: int) -> Pass:
    """Return a pass over *order* whose predictions tell the sample."""
    edges = range(0, len(order), batch_size)
    batches = tuple(
        BatchTiming(
            num_samples=len(order.indices[e : e + batch_size]),
            data_wait_s=0,
            starved_s=0,
            host_to_device_s=0,
            compute_s=0,
            num_unadapted=0,
            num_resets=0,
        )
        for e in edges
    )
    samples = SampleScores(
        indices=order.indices, labels=order.indices, predictions=order.indices + 1, confidences=order.indices / 2,
        label_ranks=order.indices + 2, log_likelihoods=-order.indices / 3, brier_scores=order.indices / 4,
        entropies=order.indices / 5, source_predictions=order.indices + 3, known_scores=order.indices / 6,
        view_predictions=order.indices + 4, probabilities=order.indices[:, None] / 7,
    )  # fmt: skip
    gaps = np.full((1, 2, 15), len(order.indices), np.float64)
    return Pass(samples=samples, class_gaps=gaps, batches=batches, wall_s=1.0)


@given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 3))
def test_the_parts_of_all_ranks_make_the_whole_pass(num_samples: int, batch_size: int, num_ranks: int):
    """In the order of the stream, batch for batch."""
    order = whole(num_samples)
    if -(-num_samples // batch_size) < num_ranks:
        with pytest.raises(EvaluationError, match="expected a batch for each"):
            Ranks(num_ranks=num_ranks).take_share(order, batch_size)
        return
    shares = [Ranks(rank=rank, num_ranks=num_ranks).take_share(order, batch_size) for rank in range(num_ranks)]
    parts = [replace(passed(part, batch_size), wall_s=float(rank)) for rank, part in enumerate(shares)]

    together, alone = merge_passes(parts), passed(order, batch_size)

    for expected, found in zip(alone.samples, together.samples, strict=True):
        np.testing.assert_array_equal(expected, found)
    assert alone.batches == together.batches
    np.testing.assert_array_equal(alone.class_gaps, together.class_gaps)
    assert num_ranks - 1 == together.wall_s


def test_only_what_keeps_nothing_is_shared():
    """A method that adapts sees the whole stream or none of it."""
    Ranks(num_ranks=2).require_stateless(SimpleNamespace(is_stateless=True))
    Ranks().require_stateless(SimpleNamespace(is_stateless=False))
    with pytest.raises(EvaluationError, match="found SimpleNamespace in 2 processes"):
        Ranks(num_ranks=2).require_stateless(SimpleNamespace(is_stateless=False, method=SimpleNamespace()))
