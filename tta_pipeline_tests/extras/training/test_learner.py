"""One step of training does what the recipe says."""

import io
from typing import Any

import pytest
import torch
from torch import nn

from tta_pipeline.benchmarks.training_recipe import Recipe
from tta_pipeline.extras.training.learner import Learner, make_mixing, make_optimizer, make_schedule

NUM_CLASSES = 3
CPU = torch.device("cpu")
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.1, "schedule": "cosine", "epochs": 4, "batch_size": 8}


def network(*, with_norm: bool = False) -> nn.Module:
    """Return a network of images of 8 pixels whose weights are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(4) if with_norm else nn.Identity()
        return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                             nn.Linear(4, NUM_CLASSES))  # fmt: skip


def learner(*, with_norm: bool = False, steps_per_epoch: int = 5, **settings: Any) -> Learner:
    """Return a learner with *settings* in place of those of plain gradient descent."""
    recipe = Recipe(**PLAIN | settings)
    return Learner(
        network(with_norm=with_norm), recipe, num_classes=NUM_CLASSES, steps_per_epoch=steps_per_epoch, device=CPU
    )


def batch(number: int, *, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random pixels, uint8 (B, 8, 8, 3), and labels."""
    rng = torch.Generator().manual_seed(number)
    pixels = torch.randint(0, 256, (size, 8, 8, 3), dtype=torch.uint8, generator=rng)
    return pixels, torch.randint(0, NUM_CLASSES, (size,), generator=rng)


def step(own: Learner, number: int) -> torch.Tensor:
    """Learn from one batch in one step, and return what was counted."""
    own.network.train()
    return own.learn(*batch(number), seed=number, num_samples=8)


def in_a_row(found: nn.Module) -> torch.Tensor:
    """Return a copy of all parameters in one row, however they lie in memory."""
    return torch.cat([weights.detach().flatten() for weights in found.parameters()])


def parameters(own: Learner) -> torch.Tensor:
    """Return a copy of all parameters of the network in training."""
    return in_a_row(own.network)


def test_neither_norms_nor_biases_decay():
    """With a learning rate of 0.1 and a decay of 0.5, a weight without gradient loses a twentieth in a step."""
    own = network(with_norm=True)
    before = {name: weights.detach().clone() for name, weights in own.named_parameters()}
    optimizer = make_optimizer(own, Recipe(**PLAIN | {"weight_decay": 0.5}))
    for weights in own.parameters():
        weights.grad = torch.zeros_like(weights)
    optimizer.step()

    decaying = {"0.weight", "5.weight"}
    for name, weights in own.named_parameters():
        torch.testing.assert_close(weights.detach(), before[name] * (0.95 if name in decaying else 1.0))


def rates(steps_per_epoch: int = 10, **settings: Any) -> list[float]:
    """Return the learning rate of each step of a training, and that after its last."""
    recipe = Recipe(**PLAIN | settings)
    optimizer = make_optimizer(network(), recipe)
    schedule = make_schedule(optimizer, recipe, steps_per_epoch=steps_per_epoch)
    found = [float(optimizer.param_groups[0]["lr"])]
    for _ in range(recipe.epochs * steps_per_epoch):
        optimizer.step()
        schedule.step()
        found.append(float(optimizer.param_groups[0]["lr"]))
    return found


def test_the_cosine_rises_in_its_warm_up_and_falls_to_nothing():
    """Linearly from a hundredth, over 10 of 40 steps; half of the fall is done after half of the other 30."""
    found = rates(schedule="cosine", warmup_epochs=1.0)
    assert found[0] == pytest.approx(0.001)
    assert found[5] == pytest.approx((0.001 + 0.1) / 2)
    assert found[10] == pytest.approx(0.1)
    assert found[25] == pytest.approx(0.05)
    assert found[40] == pytest.approx(0.0, abs=1e-9)


def test_one_cycle_rises_to_the_learning_rate_and_falls_to_nothing():
    """The highest is after three tenths of the steps, and both ends are far below it."""
    found = rates(schedule="one_cycle", momentum=0.9)
    assert max(found) == found[11] == pytest.approx(0.1)
    assert found[0] == pytest.approx(0.1 / 25)
    assert found[39] < 1e-5


def test_a_warm_up_may_take_all_steps_but_a_fraction():
    """In a training of few steps, rounding leaves no step after it."""
    found = rates(schedule="cosine", epochs=2, warmup_epochs=1.9, steps_per_epoch=2)
    assert len(found) == 5
    assert all(0 <= rate <= 0.1 + 1e-9 for rate in found)


@pytest.mark.parametrize("schedule", ["cosine", "one_cycle"])
def test_a_training_of_one_step_has_a_schedule(schedule: str):
    """Its learning rate is a number."""
    assert 0 < rates(schedule=schedule, momentum=0.9, epochs=1, steps_per_epoch=1)[0] <= 0.1


def test_the_moving_average_is_that_of_its_formula():
    """It begins with the weights after the first step, and takes buffers as they are."""
    own = learner(ema=0.75, with_norm=True)
    expected = None
    for number in range(4):
        step(own, number)
        now = parameters(own)
        expected = now if expected is None else 0.75 * expected + 0.25 * now
    found = in_a_row(own.saved_network)
    torch.testing.assert_close(found, expected)
    assert not torch.equal(found, parameters(own))
    torch.testing.assert_close(own.weights()["1.running_mean"], own.network.state_dict()["1.running_mean"])


@pytest.mark.parametrize("mixed", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}])
def test_labels_are_mixed_as_images_are(mixed: dict[str, float]):
    """Of images as bright as their class, the mean of a mixed one is that of its mixed label."""
    mixing = make_mixing(Recipe(**PLAIN | mixed), num_classes=NUM_CLASSES)
    assert mixing is not None
    labels = torch.arange(30) % NUM_CLASSES
    images = (labels / 2.0)[:, None, None, None].expand(-1, 3, 8, 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for _ in range(8):
            found, targets = mixing(images, labels)
            assert targets.shape == (30, NUM_CLASSES)
            torch.testing.assert_close(targets.sum(1), torch.ones(30))
            torch.testing.assert_close(found.mean((1, 2, 3)), targets @ torch.tensor([0.0, 0.5, 1.0]))


def test_a_batch_is_mixed_by_its_own_seed():
    """And by nothing drawn before it."""
    one, other, different = learner(mixup=1.0), learner(mixup=1.0), learner(mixup=1.0)
    step(one, 5)
    torch.rand(17)
    step(other, 5)
    different.learn(*batch(5), seed=6, num_samples=8)
    assert torch.equal(parameters(one), parameters(other))
    assert not torch.equal(parameters(one), parameters(different))


def test_clipped_gradients_have_at_most_the_norm():
    """A step of plain gradient descent is then no longer than learning rate times norm."""
    own, free = learner(clip_norm=1e-3), learner()
    before = parameters(own)
    step(own, 0)
    step(free, 0)
    assert torch.linalg.norm(parameters(own) - before).item() == pytest.approx(0.1 * 1e-3, rel=1e-2)
    assert torch.linalg.norm(parameters(free) - before).item() > 0.1 * 1e-3


def test_precision_changes_a_step_by_rounding_only():
    """Weights stay float32, and the loss is computed in it."""
    expected, own = learner(with_norm=True), learner(with_norm=True, precision="bf16")
    torch.testing.assert_close(step(own, 0)[0], step(expected, 0)[0], rtol=0.02, atol=0.02)
    torch.testing.assert_close(parameters(own), parameters(expected), rtol=0.02, atol=0.02)
    assert parameters(own).dtype == torch.float32


SCHEDULES = (
    {"schedule": "cosine"},
    {"schedule": "cosine", "warmup_epochs": 1.0},
    {"schedule": "one_cycle"},
)


@pytest.mark.parametrize("optimizer", [{"optimizer": "adamw"}, {"momentum": 0.9}])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("done", [2, 9])
def test_a_learner_goes_on_from_its_stored_state_as_if_it_had_not_stopped(
    schedule: dict[str, Any], optimizer: dict[str, Any], done: int
):
    """After a file that is loaded without running code, bit for bit."""
    settings = {"lr": 0.01, **schedule, **optimizer, "ema": 0.9, "weight_decay": 0.1}
    own, resumed = (learner(with_norm=True, **settings) for _ in range(2))
    for number in range(done):
        step(own, number)
    file = io.BytesIO()
    torch.save(own.state(), file)
    file.seek(0)
    resumed.load_state(torch.load(file, weights_only=True))

    for number in range(done, 14):
        assert resumed.lr == own.lr
        assert torch.equal(step(own, number), step(resumed, number))
    found, expected = resumed.weights(), own.weights()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
