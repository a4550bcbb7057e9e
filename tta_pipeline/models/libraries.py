"""The architectures of torchvision and timm."""

import importlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture
from tta_pipeline.models.weights import first_line


def library_architecture(library: str, architecture: str) -> Architecture:
    """Return the *architecture* of *library*, torchvision or timm; an unknown one fails when its network is made.

    Raises:
        EvaluationError: timm is not installed.
    """
    # Import before the network is made: both libraries import torch's compiler, which fails on torch 2.6's meta device.
    if library == "timm":
        import_timm()
    else:
        importlib.import_module("torchvision.models")
    return Architecture(
        name=f"{library} {architecture}",
        display_name=f"{library}'s {architecture}",
        library=f"{library} {version(library)}",
        make=lambda num_classes: make_untrained_network(library, architecture, num_classes=num_classes),
    )


def make_untrained_network(library: str, architecture: str, *, num_classes: int) -> nn.Module:
    """Return the untrained network.

    Raises:
        EvaluationError: the architecture does not exist, or cannot be made on the current device.
    """
    network: nn.Module
    try:
        if library == "timm":
            network = import_timm().create_model(architecture, num_classes=num_classes)
        else:
            from torchvision.models import get_model

            network = get_model(architecture, weights=None, num_classes=num_classes)
    except (RuntimeError, ValueError) as error:
        raise EvaluationError(
            f"{library}'s {architecture} cannot be built ({first_line(error)}); expected an architecture that "
            f"{library} lists"
        ) from error
    return network


def import_timm() -> Any:
    """Return the module timm.

    Raises:
        EvaluationError: timm is not installed.
    """
    return import_library("timm", extra="timm")


def import_library(name: str, *, extra: str) -> Any:
    """Return the module *name*, which the extra *extra* of this project installs.

    Raises:
        EvaluationError: the module is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # another library can raise anything, most of all if it is only half installed
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
        problem = "is not installed" if is_missing else f"cannot be imported ({error!r})"
        raise EvaluationError(
            f"{name} {problem}; expected the extra: run pip install 'tta_pipeline[{extra}]'"
        ) from error


def cached_json(extra: str, repository: str, revision: str, name: str) -> Any:
    """Return the JSON file *name* of a repository on the Hub, if this machine's cache has it; otherwise `{}`."""
    hub = import_library("huggingface_hub", extra=extra)
    found = hub.try_to_load_from_cache(repository, name, revision=revision)
    return read_json(Path(found)) if isinstance(found, str) else {}


def read_json(path: Path) -> Any:
    """Return the JSON object in the file at *path*; `{}` if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
