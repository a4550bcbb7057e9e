"""What a step does outside the network can be compiled: the predictions stay, and nothing is compiled again.

Most tests have a backend that generates no code, so that no compiler is needed: what is compiled how often is the same.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import METHODS
from tta_pipeline.methods.compiled_update import compile_update
from tta_pipeline.methods.entry import GradientHyperparameters
from tta_pipeline.methods.method import Method
from tta_pipeline.models.normalized import Normalized
from tta_pipeline_tests.methods.models import ADDED, batch_norm_model, contrasts, surer, vit_model
from tta_pipeline_tests.methods.test_contract import built, predictions

ADAPTING = [name for name, entry in METHODS.items() if isinstance(entry.presets["cifar"], GradientHyperparameters)]
PART = 5e-5
"""Distance of compiled logits from others, of the largest logit: the same sums in another order, over four batches."""

# Dynamo looks whether an input has a gradient; it hides torch's warning of that, but not where warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def _no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


def num_graphs() -> int:
    """Return how many graphs were compiled."""
    return counters["stats"]["unique_graphs"]


def compiled(name: str, model: nn.Module | None = None, **settings) -> Method:
    """Return the method with a compiled step."""
    method = built(name, model, **settings)
    method.compile_step()
    return method


def normalized_model() -> nn.Module:
    """Return a model as an evaluation has it."""
    return Normalized(surer(batch_norm_model()), mean=(0.0,) * 3, std=(1.0,) * 3)


def stream(*, seed: int = 1) -> list[torch.Tensor]:
    """Return batches of one size."""
    return contrasts(seed=seed, num_batches=4, batch_size=16)


def assert_close(expected: list[torch.Tensor], found: list[torch.Tensor]):
    """No logit is farther from the expected than `PART` of the largest."""
    torch.testing.assert_close(found, expected, rtol=0, atol=PART * torch.cat(expected).abs().max().item())


USUAL = {"tent", "sar", "deyo", "rmt"}
"""One of each family of updates, with and without a teacher, and one that chooses; the others are behind `slow`."""


@pytest.mark.usefixtures("_no_code")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in ADAPTING]
)
def test_the_predictions_stay(name: str):
    """With each method that takes gradient steps, also after a reset, and after a kill."""
    method = built(name)
    expected = predictions(method, stream())
    by_step = compiled(name)

    assert_close(expected, predictions(by_step, stream()))
    assert method.num_updates == by_step.num_updates > 0
    assert num_graphs() >= 1
    by_step.reset()
    assert_close(expected[:2], predictions(by_step, stream()[:2]))
    resumed = compiled(name)
    resumed.load_state_dict(by_step.state_dict())
    assert_close(expected[2:], predictions(resumed, stream()[2:]))


@pytest.mark.usefixtures("_no_code")
@pytest.mark.parametrize(
    "name", ["roid", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tent", "eata", "sar"))]
)
def test_nothing_is_compiled_again_for_another_stream_or_seed(name: str):
    """Torch gives up at the eighth time, and runs what it compiled so often without compiling it."""
    method = compiled(name)
    predictions(method, [*stream(), *stream(seed=2)])
    before = num_graphs()

    for _ in range(2):
        method.reset()
        predictions(method, stream())
    for seed in (1, 2, 3):
        predictions(compiled(name, seed=seed), stream()[:2])

    assert 2 <= before == num_graphs()


@pytest.mark.parametrize("params", ADDED)
def test_compiled_networks_have_what_was_added(params: str):
    """The network is compiled before anything is added, and runs so, with logits as without."""
    network, same = vit_model(), vit_model()
    for each in (network, same):
        each.encoder.layers = each.encoder.layers[:1]
    network.compile(backend="aot_eager", dynamic=False)
    by_code, method = built("tent", network, params=params, lr=0.05), built("tent", same, params=params, lr=0.05)

    for images in stream()[:3]:
        torch.testing.assert_close(method.predict(images), by_code.predict(images), rtol=0, atol=1e-4)
    assert num_graphs() >= 1


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "without momentum": partial(torch.optim.SGD, lr=0.1),
    "adam": partial(torch.optim.Adam, lr=0.1, weight_decay=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_of_zero_is_the_state_before_the_first_step(kind: str):
    """Each step has the bits of the optimiser's own, where nothing is compiled, as for a smaller last batch."""
    ways = []
    for is_own in (True, False):
        parameter = nn.Parameter(torch.linspace(-1, 1, 7))
        optimizer = OPTIMIZERS[kind]([parameter])
        ways.append((parameter, optimizer.step if is_own else compile_update(optimizer)))

    with torch.compiler.set_stance("force_eager"):
        for number in range(3):
            for parameter, step in ways:
                parameter.grad = (parameter.detach() * number).cos()
                step()
            assert torch.equal(ways[0][0], ways[1][0])


def test_a_method_without_gradient_steps_has_nothing_to_compile():
    """The error says so."""
    with pytest.raises(AdaptationError, match="norm takes no gradient step"):
        compiled("norm")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tent", "eata", "sar", "roid"])
def test_generated_code_predicts_the_same(name: str):
    """Network, loss and update in code that torch generates for this processor, over three streams."""
    expected = predictions(built(name, normalized_model()), stream())
    network = normalized_model()
    network.compile(mode="reduce-overhead", dynamic=False)
    by_step = compiled(name, network)

    for _ in range(3):
        assert_close(expected, predictions(by_step, stream()))
        by_step.reset()
