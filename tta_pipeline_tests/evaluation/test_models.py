"""Models come with their own normalisation and the hash of their weights."""

from pathlib import Path

import pytest
import torch
from torchvision.models import ResNet18_Weights, resnet18

from tta_pipeline.benchmarks.spec import TorchvisionModel, TrainedModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.models import load_model


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """A torch hub folder with random weights in the place of the published ones, which cannot be downloaded here."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.manual_seed(0)
    state = resnet18().state_dict()
    path = tmp_path / "hub" / "checkpoints" / Path(ResNet18_Weights.IMAGENET1K_V1.url).name
    path.parent.mkdir(parents=True)
    torch.save(state, path)
    return state


def test_a_torchvision_model_normalises_by_itself(hub: dict[str, torch.Tensor]):
    """Images in [0, 1] give the logits of the bare network on images normalised with the weights' own mean and std."""
    spec = TorchvisionModel(kind="torchvision", architecture="resnet18", weights="IMAGENET1K_V1")
    loaded = load_model("r18", spec, source_model=Path("unused"), num_classes=1000)
    bare = resnet18()
    bare.load_state_dict(hub)
    images = torch.rand(2, 3, 64, 64)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    with torch.inference_mode():
        torch.testing.assert_close(bare.eval()((images - mean) / std), loaded.make().eval()(images))
    assert (0.485, 0.456, 0.406) == loaded.mean
    assert 64 == len(loaded.weights_sha256)


@pytest.mark.parametrize(
    ("architecture", "weights", "num_classes", "named"),
    [
        ("resnet19", "DEFAULT", 1000, "resnet18"),
        ("resnet18", "IMAGENET22K", 1000, "IMAGENET1K_V1"),
        ("resnet18", "IMAGENET1K_V1", 10, "1000 classes; expected the class map's 10"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_model_that_is_not_there_or_does_not_fit_is_refused(
    architecture: str, weights: str, num_classes: int, named: str
):
    """The error names the choices, or both numbers of classes."""
    spec = TorchvisionModel(kind="torchvision", architecture=architecture, weights=weights)

    with pytest.raises(EvaluationError, match=named):
        load_model("r18", spec, source_model=Path("unused"), num_classes=num_classes)


def test_a_source_model_that_was_not_trained_is_missed(tmp_path: Path):
    """The error says which asset to materialize."""
    with pytest.raises(EvaluationError, match="materialize the source_model"):
        load_model(
            "cnn", TrainedModel(kind="trained"), source_model=tmp_path / "source_model.safetensors", num_classes=10
        )
