"""Whether weights fit a network, and if not, why."""

from collections.abc import Mapping

import torch
from torch import nn

from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture

ANY_NUMBER = 7919
"""A number of classes that no network has; a shape that contains it is that of outputs."""


def require_fitting(
    architecture: Architecture,
    state: Mapping[str, torch.Tensor],
    *,
    num_classes: int | None,
    what: str,
    advice: str = "",
) -> dict[str, torch.Tensor]:
    """Return *state*, checked to fit *architecture*.

    Args:
        architecture: The network.
        state: Weights by name.
        num_classes: Number of outputs that they must have; None: any number.
        what: The weights and what they do not do, such as `mine.pth does not`, for the error.
        advice: What the user can correct.

    Raises:
        EvaluationError: weights are missing, unexpected or of another shape; with how many and the first of each.
    """
    misfits = _misfits(architecture, state, num_classes=num_classes)
    if misfits:
        classes = f" with {num_classes} classes" if num_classes else ""
        raise EvaluationError(
            "\n  ".join([f"{what} fit {architecture.called}{classes}; expected its state dict{advice}", *misfits])
        )
    return dict(state)


def _misfits(architecture: Architecture, found: Mapping[str, torch.Tensor], *, num_classes: int | None) -> list[str]:
    """Return up to three lines: missing, unexpected and misshapen weights, each with their number and the first."""
    network = shaped(architecture, num_classes=num_classes or ANY_NUMBER)
    expected = network.state_dict()
    others = [
        name
        for name, weights in expected.items()
        if name in found and ANY_NUMBER not in weights.shape and not _is_alike(found[name], weights)
    ]
    # torch knows which names older files may lack.
    absent = {name: expected[name] for name in (set(found) & set(expected))}
    keys = network.load_state_dict({**found, **absent}, strict=False, assign=True)
    lines = []
    if keys.missing_keys:
        lines.append(f"{len(keys.missing_keys)} of {len(expected)} weights are missing, first {keys.missing_keys[0]}")
    if keys.unexpected_keys:
        lines.append(f"{len(keys.unexpected_keys)} are unexpected, first {keys.unexpected_keys[0]}")
    if others:
        shapes = f"{tuple(found[others[0]].shape)} in place of {tuple(expected[others[0]].shape)}"
        lines.append(f"{len(others)} have another shape, first {others[0]}: {shapes}")
    return lines


def shaped(architecture: Architecture, *, num_classes: int) -> nn.Module:
    """Return the network without storage for its weights, or with it if the network computes its shapes.

    Raises:
        EvaluationError: the architecture does not exist.
    """
    try:
        with torch.device("meta"):
            return architecture.make(num_classes)
    except NotImplementedError:  # such as RegNets
        return architecture.make(num_classes)


def head_shapes(architecture: Architecture) -> dict[str, tuple[int | None, ...]]:
    """Return the shape of each weight whose shape has the number of outputs, with None in the place of that number."""
    return {
        name: tuple(None if size == ANY_NUMBER else size for size in weights.shape)
        for name, weights in shaped(architecture, num_classes=ANY_NUMBER).state_dict().items()
        if ANY_NUMBER in weights.shape
    }


def num_outputs(architecture: Architecture, state: Mapping[str, torch.Tensor]) -> int:
    """Return how many outputs the weights *state*, which fit *architecture*, have."""
    name, shape = next(iter(head_shapes(architecture).items()))
    return state[name].shape[shape.index(None)]


def _is_alike(found: torch.Tensor, expected: torch.Tensor) -> bool:
    # torch treats a one-element vector of its first versions as a number.
    return found.shape == expected.shape or (expected.ndim == 0 and found.shape == (1,))
