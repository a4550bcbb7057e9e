"""Loss and error of a network in training on held-out images."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tta_pipeline.extras.training.input import TrainingInput
from tta_pipeline.loading.device import as_floats, move_to_device


class Validation(NamedTuple):
    """Result of one validation, over all processes."""

    loss: float
    error: float
    """Top-1 error in [0, 1]."""
    wall_s: float


@torch.inference_mode()
def validate(network: nn.Module, images: TrainingInput, device: torch.device) -> tuple[float, float, int]:
    """Return the sum of the losses, the number of wrong predictions and the number of samples of this process.

    Args:
        network: Classifier of images (B, 3, H, W) in [0, 1]; its mode is restored afterwards.
        images: Images of this process.
        device: Device of the network.
    """
    was_training = network.training
    network.eval()
    counted, num_samples = torch.zeros(2, dtype=torch.float64, device=device), 0
    for batch in move_to_device(images.epoch(0), device):
        labels = batch.labels.to(device, non_blocking=True)
        logits = network(as_floats(batch.images)).float()
        counted[0] += cross_entropy(logits, labels, reduction="sum")
        counted[1] += (logits.argmax(1) != labels).sum()
        num_samples += len(labels)
    network.train(was_training)
    loss, num_wrong = counted.tolist()
    return loss, num_wrong, num_samples
