"""Try a network on two images: it must take images of the size, and return one logit for each class."""

import torch
from torch import nn

from tta_pipeline.errors import ClassCountError, EvaluationError
from tta_pipeline.util.own_code import describe_raised, place_of


def try_network(network: nn.Module, *, image_size: int) -> object:
    """Return the outputs of *network* for two black images; its state and the user's random numbers do not change.

    Args:
        network: Takes images, float (B, 3, H, W).
        image_size: Height and width of the images in pixels.

    Raises:
        Exception: whatever the network raises.
    """
    was_training = network.training
    try:
        with torch.inference_mode(), torch.random.fork_rng(devices=[]):
            outputs: object = network.eval()(torch.zeros(2, 3, image_size, image_size))
    finally:
        network.train(was_training)
    return outputs


def require_outputs(network: nn.Module, *, num_classes: int, image_size: int, called: str) -> None:
    """Check that *network* returns logits (2, *num_classes*) for two black images; its state does not change.

    Args:
        network: Takes images, float (B, 3, H, W).
        num_classes: Number of outputs that the network must have.
        image_size: Height and width of the images in pixels.
        called: Name of the network in the error.

    Raises:
        EvaluationError: the network raises, or returns something else.
    """
    try:
        logits = try_network(network, image_size=image_size)
    except Exception as error:  # whatever a user's network raises
        raise EvaluationError(
            f"{called} raised {describe_raised(error)} for images of {image_size}x{image_size}; expected logits: "
            "correct `image_size`, or the network"
        ) from error
    if isinstance(logits, torch.Tensor) and logits.shape == (2, num_classes) and logits.is_floating_point():
        return
    found = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
    place = place_of(*(type(module).forward for module in network.modules()))
    is_count = isinstance(logits, torch.Tensor) and logits.ndim == 2 and logits.is_floating_point()
    raise (ClassCountError if is_count else EvaluationError)(
        f"{called}{place} returned {found} for two images of {image_size}x{image_size}; expected logits of shape (2, "
        f"{num_classes}), one for each of {num_classes} classes: correct its arguments, or name the model's classes "
        "in `classes`"
    )
