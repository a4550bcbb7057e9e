"""Check that weights, in memory or in a file, fit a network, and explain why they do not."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from tta_pipeline.errors import ClassCountError, EvaluationError
from tta_pipeline.models.architecture import Architecture, NetworkWeights
from tta_pipeline.models.weights import read_state
from tta_pipeline.util.plurals import count_of

PLACEHOLDER_CLASSES = 7919
"""A number of classes that no network has: weights whose shape contains it belong to the outputs."""
_PREFIXES = ("module.", "_orig_mod.", "model.", "network.", "net.")
"""Prefixes that DataParallel, `torch.compile` and usual training code put before the name of each weight."""
_WRAPPER_ENTRIES = frozenset({"n_averaged"})
"""Names that torch's `AveragedModel` stores next to the weights."""


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
        num_classes: Number of outputs that the weights must have; None: any number.
        what: Beginning of the error message, the weights with `does not`, such as `mine.pth does not`.
        advice: Part of the error message: what the user can correct.

    Raises:
        EvaluationError: weights are missing, unexpected or of another shape. The message shows their number and
            the first name of each kind. It is a `ClassCountError` if only the number of outputs differs.
    """
    network = make_without_storage(architecture, num_classes=num_classes or PLACEHOLDER_CLASSES)
    renamed = _strip_wrappers(state, network.state_dict())
    misfits = _describe_misfits(network, renamed)
    if misfits:
        classes = f" with {count_of(num_classes, 'class')}" if num_classes else ""
        is_only_head = len(misfits) == 1 and {*_misshapen(network, renamed)} == head_names(architecture)
        raise (ClassCountError if is_only_head else EvaluationError)(
            f"{what} fit {architecture.display_name}{classes}: {'; '.join(misfits)}; expected its state dict{advice}"
        )
    return renamed


def read_fitting_weights(
    architecture: Architecture,
    path: Path,
    *,
    sha256: str,
    key: str | None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    num_classes: int | None,
    fields: str,
) -> NetworkWeights:
    """Return the weights in a user's file, checked to fit *architecture*.

    Args:
        architecture: The network.
        path: The file; `~` is the home of the user.
        sha256: Hash that it must have.
        key: Key of the state dict in it; None: the only one under a usual key.
        mean: Mean of each channel of the images that the network saw in training, in [0, 1].
        std: Their standard deviation.
        num_classes: Number of outputs that the weights must have; None: any number.
        fields: Fields of the benchmark file that a user corrects if the weights do not fit, such as `path`.

    Raises:
        EvaluationError: see `read_state` and `require_fitting`.
    """
    own = path.expanduser()
    state = require_fitting(
        architecture, read_state(own, sha256, key=key), num_classes=num_classes, what=f"{own} does not",
        advice=f": correct {fields}",
    )  # fmt: skip
    return NetworkWeights(
        state=state, num_classes=num_classes or 0, mean=mean, std=std, origin=own.name, sha256=sha256, key=key
    )


def _strip_wrappers(state: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return *state* without the prefixes and entries that training code added when it wrapped the network."""
    renamed = {name: weights for name, weights in state.items() if name in expected or name not in _WRAPPER_ENTRIES}
    while not renamed.keys() & expected.keys():
        prefix = next((each for each in _PREFIXES if renamed and all(name.startswith(each) for name in renamed)), None)
        if prefix is None:
            return renamed
        renamed = {name.removeprefix(prefix): weights for name, weights in renamed.items()}
    return renamed


def _describe_misfits(network: nn.Module, found: Mapping[str, torch.Tensor]) -> list[str]:
    """Return what is missing, unexpected and misshapen, each with the number of weights and the first name."""
    expected, others = network.state_dict(), _misshapen(network, found)
    # torch reports which names older files may lack.
    absent = {name: expected[name] for name in (set(found) & set(expected))}
    keys = network.load_state_dict({**found, **absent}, strict=False, assign=True)
    misfits = []
    if keys.missing_keys:
        misfits.append(f"{len(keys.missing_keys)} of {len(expected)} weights are missing, first {keys.missing_keys[0]}")
    if keys.unexpected_keys:
        misfits.append(f"{len(keys.unexpected_keys)} are unexpected, first {keys.unexpected_keys[0]}")
    if others:
        shapes = f"{tuple(found[others[0]].shape)} instead of {tuple(expected[others[0]].shape)}"
        misfits.append(f"{len(others)} have another shape, first {others[0]}: {shapes}")
    return misfits


def _misshapen(network: nn.Module, found: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the weights that have another shape than in *network*."""
    return [
        name
        for name, weights in network.state_dict().items()
        if name in found and PLACEHOLDER_CLASSES not in weights.shape and not _has_same_shape(found[name], weights)
    ]


def make_without_storage(architecture: Architecture, *, num_classes: int) -> nn.Module:
    """Return the network without storage for its weights, or with storage if the network needs it to be made.

    Raises:
        EvaluationError: the architecture does not exist.
    """
    if architecture.needs_storage:
        return _make_with_storage(architecture, num_classes)
    try:
        with torch.device("meta"):
            return architecture.make(num_classes)
    except (RuntimeError, EvaluationError):  # networks that compute with tensors, such as RegNets, and in older timm
        return _make_with_storage(architecture, num_classes)


def _make_with_storage(architecture: Architecture, num_classes: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # reading shapes must not change the user's random numbers
        return architecture.make(num_classes)


def head_names(architecture: Architecture) -> set[str]:
    """Return the name of each weight whose shape depends on the number of outputs."""
    network = make_without_storage(architecture, num_classes=PLACEHOLDER_CLASSES)
    return {name for name, weights in network.state_dict().items() if PLACEHOLDER_CLASSES in weights.shape}


def _has_same_shape(found: torch.Tensor, expected: torch.Tensor) -> bool:
    # torch accepts a vector of one element, from its first versions, as a number.
    return found.shape == expected.shape or (expected.ndim == 0 and found.shape == (1,))
