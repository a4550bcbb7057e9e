"""Adaptation in a lower precision has the effect that it has in float32."""

import pytest
import torch
from torch import nn

from tta_pipeline.evaluation.device.arithmetic import Precision
from tta_pipeline.evaluation.one_pass import run_pass
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.methods import build
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.methods.models import surer
from tta_pipeline_tests.methods.remembering import Remembering

SETTINGS = {
    "memo": {"num_augmentations": 4},
    "adacontrast": {"queue_size": 16, "min_seen": 100},
}
STEP, NO_STEP = 0.05, 1e-30


def model() -> nn.Module:
    """Return a model of three classes."""
    torch.manual_seed(3)
    return surer(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3),
        )
    )  # fmt: skip


def logits(method: str, shard_set: ShardSet, precision: Precision, *, lr: float) -> torch.Tensor:
    """Return what *method* predicts over the stream, (N, K)."""
    driver = Remembering(build(method, model(), num_classes=3, lr=lr, **SETTINGS[method]))
    stream = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=10, image_size=32)
    run_pass(driver, stream, device=torch.device("cpu"), precision=precision, advance=lambda _: None)
    return torch.cat(driver.logits).float()


@pytest.mark.parametrize("method", SETTINGS)
def test_adaptation_in_half_precision_has_its_effect(shard_set: ShardSet, method: str):
    """What steps change in the logits, of methods that predict after them, differs from float32's by at most 5 %."""
    expected, found = (
        logits(method, shard_set, precision, lr=STEP) - logits(method, shard_set, precision, lr=NO_STEP)
        for precision in ("fp32", "bf16")
    )

    assert expected.norm() > 1
    assert (found - expected).norm() <= 0.05 * expected.norm()
