"""A network as its training begins, with the normalisation that it keeps."""

import torch

from tta_pipeline.benchmarks.models import TrainedModel
from tta_pipeline.models.networks import declared_normalisation, network_with_weights, untrained_network
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.training.input import TrainingInput

_NUM_MEASURED = 10_000
"""Training images whose pixels give mean and standard deviation, or a few more to fill a batch."""


def starting_network(settings: TrainedModel, images: TrainingInput, *, num_classes: int) -> Normalized:
    """Return the network to train, a classifier of images (B, 3, H, W) in [0, 1].

    Its normalisation is that of the weights to start from, or that which the benchmark file names for the network, or
    that of *images*, which come in random order and as they are evaluated.

    Raises:
        EvaluationError: the network or its weights cannot be had.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        if settings.fine_tune:
            start = network_with_weights(settings.network, num_classes=num_classes)
            return Normalized(start.network, mean=start.mean, std=start.std)
        network = untrained_network(settings.network, num_classes=num_classes)
    mean, std = declared_normalisation(settings.network) or _channel_statistics(images)
    return Normalized(network, mean=mean, std=std)


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
    std = (squares / num_pixels - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())
