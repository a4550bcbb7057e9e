"""Makes the network to train, with its normalisation: without weights, or from weights for any number of classes."""

from typing import Any

import torch
from torch import nn

from tta_pipeline.benchmarks.model_specs import NetworkSection, TrainedModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.extras.training.input import TrainingInput
from tta_pipeline.models.architecture import NetworkWeights
from tta_pipeline.models.fitting import head_names
from tta_pipeline.models.model_kind import kind_of
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.models.try_network import require_outputs

_NUM_MEASURED = 10_000
"""Number of training images from which mean and standard deviation are measured, rounded up to full batches."""

_LEAST_STD = 1 / 255
"""Lower limit of a channel's standard deviation, so that a constant channel does not divide by zero."""


def make_initial_network(settings: TrainedModel, images: TrainingInput, *, num_classes: int) -> Normalized:
    """Return the network to train, a classifier of images (B, 3, H, W) in [0, 1].

    If it is fine-tuned, it uses the normalisation of the pretrained weights. Otherwise, it uses the benchmark file's,
    or the channel statistics of *images*, which come in random order, preprocessed as in evaluation.

    Raises:
        EvaluationError: the network does not take the images, or does not return a logit for each class.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        if settings.fine_tune:
            network, start = load_network(settings.network, num_classes=num_classes)
            mean, std = start.mean, start.std
        else:
            network = kind_of(settings.network).architecture().make(num_classes)
            declared: list[Any] = [getattr(settings.network, name, None) for name in ("mean", "std")]
            mean, std = _channel_statistics(images) if None in declared else declared
    normalized = Normalized(network, mean=mean, std=std)
    called = kind_of(settings.network).architecture().display_name
    # The loss would not reveal that there are more outputs than classes.
    require_outputs(normalized, num_classes=num_classes, image_size=images.image_size, called=called)
    return normalized


def load_network(spec: NetworkSection, *, num_classes: int) -> tuple[nn.Module, NetworkWeights]:
    """Return the network of *spec* and its weights; a head with another number of outputs is replaced by a fresh head.

    The weights of a fresh head are drawn from torch's global seed.
    """
    kind = kind_of(spec)
    architecture, start = kind.architecture(), kind.weights(None)
    network = architecture.make(num_classes)
    head, own = head_names(architecture), network.state_dict()
    is_fitting = all(own[name].shape == start.state[name].shape for name in head)
    kept = {name: weights for name, weights in start.state.items() if is_fitting or name not in head}
    network.load_state_dict(kept, strict=is_fitting)
    if not head:  # the architecture ignores the number of outputs
        _replace_last_linear(network, num_classes=num_classes, called=architecture.display_name)
    return network, start


def _replace_last_linear(network: nn.Module, *, num_classes: int, called: str) -> None:
    """Replace the last linear layer of *network* by a fresh layer, unless it has *num_classes* outputs."""
    layers = [(name, layer) for name, layer in network.named_modules() if name and isinstance(layer, nn.Linear)]
    if not layers:
        raise EvaluationError(
            f"{called} has no linear layer that could be replaced by one with {num_classes} outputs; expected a "
            "factory with a parameter num_classes: add it"
        )
    name, last = layers[-1]
    if last.out_features != num_classes:
        parent, _, leaf = name.rpartition(".")
        fresh = nn.Linear(last.in_features, num_classes, bias=last.bias is not None)
        setattr(network.get_submodule(parent), leaf, fresh)


def _channel_statistics(images: TrainingInput) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel in [0, 1], over the first of *images*."""
    sums, squares = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    num_pixels = num_images = 0
    for batch in images.epoch(0):
        pixels = batch.images.reshape(-1, 3).double() / 255
        sums, squares, num_pixels = sums + pixels.sum(0), squares + pixels.square().sum(0), num_pixels + len(pixels)
        num_images += len(batch.images)
        if num_images >= _NUM_MEASURED:
            break
    mean = sums / num_pixels
    std = (squares / num_pixels - mean.square()).clamp(min=_LEAST_STD**2).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())
