"""Networks made by the user's own Python code, with weights from a file."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tta_pipeline.benchmarks.model_specs import PythonModel
from tta_pipeline.benchmarks.user_functions import load_function
from tta_pipeline.errors import EvaluationError, ShardError
from tta_pipeline.models.architecture import Architecture
from tta_pipeline.models.fitting import require_fitting
from tta_pipeline.models.loaded_model import IMAGENET_MEAN, IMAGENET_STD, LoadedModel
from tta_pipeline.models.weights import read_state
from tta_pipeline.results.reader_notes import UNTRAINED
from tta_pipeline.util.own_code import describe_raised, place_of
from tta_pipeline.util.source_code import source_sha256


def load_python_model(name: str, spec: PythonModel, *, num_classes: int) -> LoadedModel:
    """Return the network of *spec* with the weights in its file.

    Raises:
        EvaluationError: see `read_python_state` and `python_architecture`.
    """
    if spec.is_untrained:
        return _untrained_model(name, spec, num_classes=num_classes)
    state = read_python_state(spec, num_classes=num_classes)
    assert spec.weights_file is not None
    assert spec.mean is not None
    assert spec.std is not None
    return python_architecture(spec).make_model(
        name, state, num_classes=num_classes, mean=spec.mean, std=spec.std, weights=spec.weights_file.name,
        weights_sha256=spec.sha256, key=spec.state,
    )  # fmt: skip


def _untrained_model(name: str, spec: PythonModel, *, num_classes: int) -> LoadedModel:
    """Return the network with the random weights of a fixed seed: another run has the same weights, and results."""
    architecture = python_architecture(spec)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        state = architecture.make(num_classes).state_dict()
    return architecture.make_model(
        name, state, num_classes=num_classes, mean=spec.mean or IMAGENET_MEAN, std=spec.std or IMAGENET_STD,
        weights=UNTRAINED,
    )  # fmt: skip


def read_python_state(spec: PythonModel, *, num_classes: int | None) -> dict[str, torch.Tensor]:
    """Return the weights in the file of *spec*, checked to fit its network.

    Args:
        spec: The model in the benchmark file.
        num_classes: Number of classes, passed to a factory that has a parameter for it; None: any number.

    Raises:
        EvaluationError: *spec* names no weights, or they are missing, changed, unreadable or of another network. The
            message has the names of the first weights that do not fit.
    """
    if spec.weights_file is None or spec.sha256 is None:
        raise EvaluationError(
            f"the model {spec.factory} has no weights; expected a file in `weights` with its sha256, mean and std: "
            "without weights it can only be trained"
        )
    path = spec.weights_file.expanduser()
    return require_fitting(
        python_architecture(spec), read_state(path, spec.sha256, key=spec.state), num_classes=num_classes,
        what=f"{path} does not", advice=": correct `factory`, `arguments` or `weights`",
    )  # fmt: skip


def python_architecture(spec: PythonModel) -> Architecture:
    """Return the network that the factory of *spec* makes.

    Raises:
        EvaluationError: a file of the factory's source was edited since its import, or cannot be parsed.
    """
    try:
        sha256 = source_sha256(spec.factory)
    except ValueError as error:
        raise EvaluationError(f"factory {spec.factory}: {error}") from error
    arguments = ", ".join(f"{name}={value!r}" for name, value in spec.arguments.items())
    return Architecture(
        name=f"{spec.factory}({arguments})" if arguments else spec.factory,
        display_name=f"the network of {spec.factory}",
        library=f"torch {torch.__version__}",
        make=lambda num_classes: _call_factory(spec, num_classes),
        needs_storage=True,
        code={"factory": spec.factory, "arguments": spec.arguments, "source_sha256": sha256},
    )


def _call_factory(spec: PythonModel, num_classes: int) -> nn.Module:
    """Return the network that the factory returns.

    Raises:
        EvaluationError: the factory cannot be imported, raises, or returns something else.
    """
    try:
        factory = load_function(spec.factory)
    except ShardError as error:
        raise EvaluationError(str(error)) from error
    arguments = {**({"num_classes": num_classes} if _takes_num_classes(factory) else {}), **spec.arguments}
    try:
        network = factory(**arguments)
    except Exception as error:  # whatever a user's function raises
        raise EvaluationError(
            f"{spec.factory} raised {describe_raised(error)} for the arguments {arguments}; expected a "
            "torch.nn.Module: correct the function or `arguments`"
        ) from error
    if not isinstance(network, nn.Module):
        raise EvaluationError(
            f"{spec.factory} returned {type(network).__name__}{place_of(factory)}; expected a torch.nn.Module that "
            "takes normalised images: correct the function"
        )
    return network


def _takes_num_classes(factory: Callable[..., Any]) -> bool:
    try:
        return "num_classes" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # for a function without Python source
        return False
