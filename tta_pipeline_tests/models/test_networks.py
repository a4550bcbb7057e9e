"""Networks to train come untrained, or with weights and a head for the classes."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import shufflenet_v2_x0_5, squeezenet1_1

from tta_pipeline.benchmarks.model_specs import CheckpointModel, SmallNetwork, TorchvisionModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.extras.training.initial_network import load_network
from tta_pipeline.models.model_kind import kind_of

SMALL = SmallNetwork(kind="small", width=4)
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def saved(path: Path, network: torch.nn.Module, architecture: str) -> CheckpointModel:
    """Save the weights of *network* at *path* and return the model that a benchmark file would describe."""
    save_file(network.state_dict(), path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return CheckpointModel(
        kind="checkpoint", path=path, architecture=architecture, sha256=sha256, mean=MEAN, std=STD
    )  # fmt: skip


@pytest.mark.parametrize("spec", [SMALL, TorchvisionModel(kind="torchvision", architecture="shufflenet_v2_x0_5")])
def test_the_same_seed_gives_the_same_untrained_network(spec: SmallNetwork | TorchvisionModel):
    """Nothing is downloaded for it, and it has as many outputs as are asked for."""
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        network = kind_of(spec).architecture().make(7)
        states.append(torch.cat([weights.flatten().float() for weights in network.state_dict().values()]))

    assert (2, 7) == network(torch.rand(2, 3, 32, 32)).shape
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_a_network_with_weights_starts_from_them(tmp_path: Path):
    """With as many classes as they have, it gives their logits."""
    torch.manual_seed(1)
    network = shufflenet_v2_x0_5(num_classes=5)
    spec = saved(tmp_path / "mine.safetensors", network, "shufflenet_v2_x0_5")
    fine_tuned, found = load_network(spec, num_classes=5)
    images = torch.rand(2, 3, 32, 32)

    assert (MEAN, STD, spec.sha256) == (found.mean, found.std, found.sha256)
    with torch.inference_mode():
        torch.testing.assert_close(network.eval()(images), fine_tuned.eval()(images))


@pytest.mark.parametrize(("make", "head"), [(shufflenet_v2_x0_5, "fc."), (squeezenet1_1, "classifier.1.")])
def test_a_head_of_other_classes_is_replaced(tmp_path: Path, make, head: str):
    """By a fresh one, drawn from the seed alone; all other weights are those of the file."""
    network = make(num_classes=5)
    spec = saved(tmp_path / "mine.safetensors", network, make.__name__)
    heads = []
    for _ in range(2):
        torch.manual_seed(3)
        state = load_network(spec, num_classes=9)[0].state_dict()
        heads.append(state[f"{head}weight"])

    assert 9 == len(state[f"{head}bias"])
    assert torch.equal(*heads)
    for name, weights in network.state_dict().items():
        assert name.startswith(head) or torch.equal(weights, state[name]), name


def test_only_what_has_weights_is_a_start():
    """The small network has none, and nothing else than its width determines it."""
    with pytest.raises(EvaluationError, match=r"\bsmall\b"):
        load_network(SMALL, num_classes=3)
    assert kind_of(SMALL).architecture().name != kind_of(SmallNetwork(kind="small", width=8)).architecture().name


def test_weights_to_start_from_are_known_by_more_than_their_name():
    """A name such as DEFAULT stands for other weights in another version of the library."""
    newest, first = (
        kind_of(TorchvisionModel(kind="torchvision", architecture="resnet50", weights=weights)).start_identity()
        for weights in ("DEFAULT", "IMAGENET1K_V1")
    )
    second = TorchvisionModel(kind="torchvision", architecture="resnet50", weights="IMAGENET1K_V2")
    assert newest == kind_of(second).start_identity() != first
    assert kind_of(SMALL).start_identity() == ""
