"""Networks to train: untrained ones of any kind, and ones with the weights of a model to start from."""

from dataclasses import dataclass

import torch
from torch import nn

from tta_pipeline.benchmarks.models import AnyNetwork, CheckpointModel, SmallNetwork, TimmModel, TorchvisionModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.json_values import JsonObject
from tta_pipeline.models.architecture import Architecture
from tta_pipeline.models.checkpoints import checkpoint_model
from tta_pipeline.models.fitting import head_shapes
from tta_pipeline.models.libraries import library_architecture
from tta_pipeline.models.loaded import LoadedModel
from tta_pipeline.models.small import small_architecture
from tta_pipeline.models.timm_models import timm_model
from tta_pipeline.models.torchvision_models import torchvision_model


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
    return library_architecture(spec.library, spec.architecture)


def untrained_network(spec: AnyNetwork, *, num_classes: int) -> nn.Module:
    """Return the network of *spec*: logits (B, *num_classes*) of normalised images.

    Its weights are drawn from torch's global seed.

    Raises:
        EvaluationError: the architecture does not exist.
    """
    return architecture_of(spec).make(num_classes)


def network_with_weights(spec: AnyNetwork, *, num_classes: int) -> Pretrained:
    """Return the network of *spec* with its weights; a head with another number of outputs is replaced by a fresh one.

    The weights of a fresh head are drawn from torch's global seed.

    Raises:
        EvaluationError: *spec* has no weights, or they are missing or not the expected ones.
    """
    architecture = architecture_of(spec)
    loaded = _loaded(spec)
    network = architecture.make(num_classes)
    with torch.random.fork_rng(devices=[]):
        state = loaded.make_network().state_dict()
    if loaded.num_classes != num_classes:
        state = {name: weights for name, weights in state.items() if name not in head_shapes(architecture)}
    network.load_state_dict(state, strict=loaded.num_classes == num_classes)
    return Pretrained(network=network, mean=loaded.mean, std=loaded.std, weights_sha256=loaded.weights_sha256)


def network_identity(spec: AnyNetwork) -> JsonObject:
    """Return all that determines the untrained network of *spec*, as plain JSON.

    Raises:
        EvaluationError: its library is not installed.
    """
    architecture = architecture_of(spec)
    return {"architecture": architecture.name, "library": architecture.library, **architecture.code}


def _loaded(spec: AnyNetwork) -> LoadedModel:
    """Return the model of *spec* with as many outputs as its weights have."""
    if isinstance(spec, TorchvisionModel):
        return torchvision_model(spec.architecture, spec)
    if isinstance(spec, TimmModel):
        return timm_model(spec.architecture, spec)
    if isinstance(spec, CheckpointModel):
        return checkpoint_model(spec.architecture, spec, num_classes=None)
    raise EvaluationError("a network of kind small has no weights to start from; expected another kind to fine-tune")
