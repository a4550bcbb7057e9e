"""Probes ask more of each batch than its prediction, and change none."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.benchmarks.protocols.of_one_cell import EpisodicDriver
from tta_pipeline.evaluation.probing_driver import ProbingDriver, shift
from tta_pipeline.evaluation.scores import neighbourhood_density
from tta_pipeline.methods import build
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.evaluation.test_evaluator import evaluate, small_model

ALL = frozenset({"neighbourhood", "second_view", "source"})


def test_the_density_of_three_samples_by_hand():
    """Two alike and one at a right angle: cosines 1 and 0, so logits 20 and 0, without the sample itself."""
    probabilities = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    near = 1 / (1 + math.exp(-20))
    of_a_pair = -near * math.log(near) - (1 - near) * math.log(1 - near)

    assert neighbourhood_density(probabilities) == pytest.approx((2 * of_a_pair + math.log(2)) / 3, abs=1e-12)


def test_the_density_is_that_of_the_authors_program():
    """There the diagonal is -1 before the temperature, not left out: the same to 1e-7."""
    torch.manual_seed(0)
    probabilities = torch.randn(700, 5, dtype=torch.float64).softmax(1)
    unit = functional.normalize(probabilities)
    logits = (unit @ unit.T / 0.05).masked_fill(torch.eye(700).bool(), -1 / 0.05)
    theirs = torch.distributions.Categorical(logits=logits).entropy().mean()

    assert neighbourhood_density(probabilities) == pytest.approx(float(theirs), abs=1e-7)


@pytest.mark.parametrize("probabilities", [torch.ones(1, 3), torch.full((4, 3), torch.nan), torch.ones(4, 0)])
def test_no_density_without_neighbours(probabilities: torch.Tensor):
    """Of a single sample, a broken model, or where probabilities were not kept."""
    assert neighbourhood_density(probabilities) is None


def test_a_view_is_shifted_and_mirrored():
    """By a sixteenth of the width."""
    images = torch.arange(32.0).expand(2, 3, 32, 32)

    assert images.shape == shift(images).shape
    assert [2, 1, 0, 1] == shift(images)[0, 0, 0, :4].tolist()


@pytest.mark.parametrize("driver", [ProtocolDriver, EpisodicDriver])
@pytest.mark.parametrize("method", ["tent", "norm", "rotta", "bn_ema"])
def test_probes_change_no_prediction_and_no_counter(method: str, driver: type[ProtocolDriver]):
    """Whatever state the method keeps: the second view is predicted from it, and undone."""
    batches = [torch.rand(6, 3, 32, 32) for _ in range(3)]

    def run(probes: Any) -> tuple[list[torch.Tensor], dict[str, Any], ProtocolDriver]:
        own = driver(build(method, small_model(), num_classes=3, preset="cifar", batch_size=6))
        source = small_model() if probes else None
        fed = ProbingDriver(own, probes=probes, source=source) if probes else own
        return [fed.predict(images) for images in batches], own.method.state_dict(), fed

    plain, state, _ = run(frozenset())
    probed, its_state, fed = run(ALL)

    torch.testing.assert_close(probed, plain, rtol=0, atol=0)
    torch.testing.assert_close(
        [its_state[name] for name in state if name.startswith("num_")],
        [state[name] for name in state if name.startswith("num_")],
    )
    torch.testing.assert_close(fed.source_logits(), small_model().eval()(batches[-1]))
    assert (6,) == fed.view_logits().argmax(1).shape


def test_scores_of_probes_are_in_the_record(shard_set: ShardSet):
    """None where nothing was asked; with probes, all of them, beside the same predictions."""
    plain, probed = evaluate(shard_set), evaluate(shard_set, probes=ALL)

    assert plain.label_free.view_agreement is plain.label_free.neighbourhood_density is None
    assert plain.label_free.source_agreement is None
    assert plain.predicted.predictions_sha256 == probed.predicted.predictions_sha256
    assert 0 <= probed.label_free.view_agreement <= 1
    assert 0 < probed.label_free.neighbourhood_density <= math.log(probed.scores.num_samples)
    assert 0 <= probed.label_free.source_agreement <= 1
