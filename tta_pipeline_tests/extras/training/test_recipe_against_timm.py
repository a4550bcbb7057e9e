"""A second opinion on the recipe: where timm has the same part, it takes the same steps.

Decision 043 says why the parts are torch's and torchvision's nevertheless.
"""

from typing import Any

import pytest
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

from tta_pipeline.benchmarks.training_recipe import Recipe
from tta_pipeline.extras.training.learner import make_average, make_optimizer
from tta_pipeline_tests.extras.training.test_learner import PLAIN, batch, network, rates


def descend(own: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Take a step on random images."""
    pixels, labels = batch(number)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(own(pixels.permute(0, 3, 1, 2) / 255), labels).backward()
    optimizer.step()


@pytest.mark.parametrize(("name", "momentum"), [("adamw", 0.9), ("sgd", 0.9), ("momentum", 0.0)])
def test_the_optimiser_takes_the_steps_of_timms(name: str, momentum: float):
    """Bit for bit, with the same weights that do not decay; SGD without Nesterov's step is timm's `momentum`."""
    ours, theirs = network(with_norm=True), network(with_norm=True)
    settings: dict[str, Any] = {"optimizer": "adamw" if name == "adamw" else "sgd", "momentum": momentum}
    own = make_optimizer(ours, Recipe(**PLAIN | settings | {"weight_decay": 0.1}))
    other = create_optimizer_v2(theirs, name, lr=PLAIN["lr"], weight_decay=0.1, momentum=momentum)
    for number in range(5):
        descend(ours, own, number)
        descend(theirs, other, number)

    assert all(torch.equal(mine, its) for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_the_moving_average_is_timms():
    """Bit for bit, if timm is told the number of the step, and to take buffers as they are."""
    own = network(with_norm=True)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    ours = make_average(own, Recipe(**PLAIN | {"ema": 0.9}))
    theirs = ModelEmaV3(own, decay=0.9, exclude_buffers=True)
    assert ours is not None
    for number in range(5):
        descend(own, optimizer, number)
        ours.update_parameters(own)
        theirs.update(own, step=number + 1)

    found, expected = ours.module.state_dict(), theirs.module.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("warm_up", [0, 10])
def test_the_cosine_is_timms(warm_up: int):
    """With and without a warm-up, up to the last bit of a float64."""
    optimizer = torch.optim.SGD(network().parameters(), lr=PLAIN["lr"])
    theirs = CosineLRScheduler(
        optimizer, t_initial=40 - warm_up, warmup_t=warm_up, warmup_lr_init=0.001, warmup_prefix=True, t_in_epochs=False
    )
    expected = [optimizer.param_groups[0]["lr"]]
    for number in range(1, 41):
        theirs.step_update(number)
        expected.append(optimizer.param_groups[0]["lr"])

    assert rates(schedule="cosine", warmup_epochs=warm_up / 10) == pytest.approx(expected, abs=1e-15)
