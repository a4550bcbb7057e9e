"""Networks to train: the small one of this project, untrained ones of any kind, and ones with weights to fine-tune."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from tta_pipeline.benchmarks.model_specs import (
    AnyNetwork,
    CheckpointModel,
    HubModel,
    PythonModel,
    SmallNetwork,
    TimmModel,
    TorchvisionModel,
)
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture
from tta_pipeline.models.checkpoint_models import read_checkpoint_state
from tta_pipeline.models.fitting import head_shapes
from tta_pipeline.models.hub_models import hub_architecture, load_hub_model
from tta_pipeline.models.libraries import library_architecture
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.python_models import python_architecture, read_python_state
from tta_pipeline.models.timm_models import load_timm_model, timm_weights_identity
from tta_pipeline.models.torchvision_models import find_weights, load_torchvision_model
from tta_pipeline.util.json_values import JsonObject


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A network of normalised images with weights to start from."""

    network: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights_sha256: str


def architecture_of(spec: AnyNetwork) -> Architecture:
    """Return the network that *spec* describes, without weights.

    Raises:
        EvaluationError: its library is not installed.
    """
    if isinstance(spec, SmallNetwork):
        return small_architecture(spec)
    if isinstance(spec, TorchvisionModel):
        return library_architecture("torchvision", spec.architecture)
    if isinstance(spec, TimmModel):
        return library_architecture("timm", spec.architecture)
    if isinstance(spec, CheckpointModel):
        return library_architecture(spec.library, spec.architecture)
    if isinstance(spec, HubModel):
        return hub_architecture(spec)
    return python_architecture(spec)


def make_untrained(spec: AnyNetwork, *, num_classes: int) -> nn.Module:
    """Return the network of *spec*: logits (B, *num_classes*) of normalised images.

    Its weights are drawn from torch's global seed.

    Raises:
        EvaluationError: the architecture does not exist.
    """
    return architecture_of(spec).make(num_classes)


def load_network(spec: AnyNetwork, *, num_classes: int) -> Pretrained:
    """Return the network of *spec* with its weights; replace a head with another number of outputs by a fresh head.

    The weights of a fresh head are drawn from torch's global seed.

    Raises:
        EvaluationError: *spec* has no weights, or the weights are missing or not the expected ones.
    """
    architecture, start = architecture_of(spec), _load_start(spec)
    network = architecture.make(num_classes)
    head, own = head_shapes(architecture), network.state_dict()
    is_fitting = all(own[name].shape == start.state[name].shape for name in head)
    kept = {name: weights for name, weights in start.state.items() if is_fitting or name not in head}
    network.load_state_dict(kept, strict=is_fitting)
    if not head:  # the architecture ignores the number of outputs
        _replace_last_linear(network, num_classes=num_classes, called=architecture.display_name)
    return Pretrained(network=network, mean=start.mean, std=start.std, weights_sha256=start.weights_sha256)


def declared_normalisation(spec: AnyNetwork) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and standard deviation of *spec* in the benchmark file; None if the file has none."""
    mean, std = getattr(spec, "mean", None), getattr(spec, "std", None)
    return None if mean is None or std is None else (tuple(mean), tuple(std))


def network_identity(spec: AnyNetwork) -> JsonObject:
    """Return everything that determines the untrained network of *spec*, as plain JSON.

    Raises:
        EvaluationError: its library is not installed.
    """
    architecture = architecture_of(spec)
    return {"architecture": architecture.name, "library": architecture.library, **architecture.code}


def start_identity(spec: AnyNetwork) -> str:
    """Return the identity of the weights named in *spec*; empty if *spec* has their sha256 or their commit.

    Raises:
        EvaluationError: its library is not installed, or has no such weights.
    """
    if isinstance(spec, TorchvisionModel):
        return str(find_weights(spec).url)
    return timm_weights_identity(spec) if isinstance(spec, TimmModel) else ""


class _Start(NamedTuple):
    """Weights to start from, and the normalisation of the images that they were trained on."""

    state: Mapping[str, torch.Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights_sha256: str


def _load_start(spec: AnyNetwork) -> _Start:
    if isinstance(spec, TorchvisionModel):
        return _start_of_model(load_torchvision_model(spec.architecture, spec))
    if isinstance(spec, TimmModel):
        return _start_of_model(load_timm_model(spec.architecture, spec))
    if isinstance(spec, HubModel):
        return _start_of_model(load_hub_model(spec.hf, spec))
    if isinstance(spec, CheckpointModel):
        return _Start(read_checkpoint_state(spec, num_classes=None), spec.mean, spec.std, spec.sha256)
    if isinstance(spec, PythonModel):
        state = read_python_state(spec, num_classes=None)
        assert spec.mean is not None
        assert spec.std is not None
        assert spec.sha256 is not None
        return _Start(state, spec.mean, spec.std, spec.sha256)
    raise EvaluationError("a network of kind small has no weights to start from; expected another kind to fine-tune")


def _start_of_model(loaded: LoadedModel) -> _Start:
    with torch.random.fork_rng(devices=[]):
        state = loaded.make_network().state_dict()
    return _Start(state, loaded.mean, loaded.std, loaded.weights_sha256)


def _replace_last_linear(network: nn.Module, *, num_classes: int, called: str) -> None:
    """Give *network* a fresh last linear layer, unless it has *num_classes* outputs.

    Raises:
        EvaluationError: there is no linear layer.
    """
    layers = [(name, layer) for name, layer in network.named_modules() if name and isinstance(layer, nn.Linear)]
    if not layers:
        raise EvaluationError(
            f"{called} has no linear layer to replace by one of {num_classes} outputs; expected a factory with a "
            "parameter num_classes"
        )
    name, last = layers[-1]
    if last.out_features != num_classes:
        parent, _, leaf = name.rpartition(".")
        fresh = nn.Linear(last.in_features, num_classes, bias=last.bias is not None)
        setattr(network.get_submodule(parent), leaf, fresh)


class SmallConvNet(nn.Sequential):
    """Three stages of two 3x3 convolutions with batch norm; each stage halves the resolution."""

    def __init__(self, *, num_classes: int, width: int) -> None:
        super().__init__(
            *_stage(3, width),
            *_stage(width, 2 * width),
            *_stage(2 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, num_classes),
        )


def _stage(channels_in: int, channels: int) -> list[nn.Module]:
    return [*_block(channels_in, channels), *_block(channels, channels), nn.MaxPool2d(2)]


def _block(channels_in: int, channels: int) -> list[nn.Module]:
    return [nn.Conv2d(channels_in, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]


def small_architecture(spec: SmallNetwork) -> Architecture:
    """Return the small network of the width in *spec*."""
    return Architecture(
        name=f"tta_pipeline SmallConvNet, width {spec.width}",
        display_name=f"the small network of width {spec.width}",
        library=f"torch {torch.__version__}",
        make=lambda num_classes: SmallConvNet(num_classes=num_classes, width=spec.width),
    )
