"""Networks made by the user's own Python code, with weights from a file."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tta_pipeline.benchmarks.model_specs import PythonModel
from tta_pipeline.errors import EvaluationError, ShardError
from tta_pipeline.models.architecture import Architecture, NetworkWeights
from tta_pipeline.models.fitting import PLACEHOLDER_CLASSES, make_without_storage, read_fitting_weights
from tta_pipeline.models.loaded_model import IMAGENET_MEAN, IMAGENET_STD, LoadedModel
from tta_pipeline.models.model_kind import NetworkKind
from tta_pipeline.models.try_network import require_outputs
from tta_pipeline.results.reader_notes import UNTRAINED
from tta_pipeline.util.own_code import describe_raised, place_of
from tta_pipeline.util.source_code import source_sha256
from tta_pipeline.util.user_functions import load_function


class Python(NetworkKind[PythonModel]):
    """A network from the user's own factory, with the weights in a file or with random weights."""

    def architecture(self) -> Architecture:
        """Return the factory's network.

        Raises:
            EvaluationError: a file of the factory's source was edited since its import, or cannot be parsed.
        """
        spec = self.section
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

    def weights(self, num_classes: int | None) -> NetworkWeights:
        """Return the weights in the file, checked to fit the network, or random ones for *num_classes*."""
        spec = self.section
        if spec.is_untrained and num_classes is not None:
            return self._random_weights(num_classes)
        if spec.weights_file is None or spec.sha256 is None:
            raise EvaluationError(
                f"The model {spec.factory} has no weights, so it can only be trained; expected a file in `weights` "
                "with its sha256, mean and std: add them"
            )
        assert spec.mean is not None
        assert spec.std is not None
        return read_fitting_weights(
            self.architecture(), spec.weights_file, sha256=spec.sha256, key=spec.state, mean=spec.mean, std=spec.std,
            num_classes=num_classes, fields="`factory`, `arguments` or `weights`",
        )  # fmt: skip

    def load_all(self, name: str, *, num_classes: int, image_size: int | None = None) -> LoadedModel:
        """Return the model, whose network is tried on images of *image_size*."""
        model = super().load_all(name, num_classes=num_classes)
        if image_size is not None:
            called = f"model {name}, {self.section.factory},"
            require_outputs(model.make(), num_classes=num_classes, image_size=image_size, called=called)
        return model

    def load_published(self, weights: str) -> LoadedModel:
        """Raise an error, since a user's network has no published *weights*."""
        raise EvaluationError(
            f"weights is {weights!r}; expected a file, a state dict or None for {self.section.factory}, since only "
            "you have its weights"
        )

    def check(self, *, name: str, num_classes: int | None, image_size: int) -> None:
        """Load the weights into the network and try it, as far as the number of classes is known."""
        if num_classes is not None:
            self.load_all(name, num_classes=num_classes, image_size=image_size)
        elif self.section.is_untrained:  # random weights fit any number of classes
            make_without_storage(self.architecture(), num_classes=PLACEHOLDER_CLASSES)
        else:
            self.weights(None)

    def check_architecture(self) -> None:
        """Raise an error if the factory cannot be imported."""
        load_function(self.section.factory)

    def choose_published(self, weights: str | None) -> PythonModel:
        """Raise an error, since a user's network has no published weights."""
        del weights
        raise EvaluationError(
            "--weights is missing; expected a file with the weights of your network, or `none`: add it"
        )

    def _random_weights(self, num_classes: int) -> NetworkWeights:
        """Return random weights from a fixed seed, so that another run has the same weights and results."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            state = self.architecture().make(num_classes).state_dict()
        mean, std = self.section.mean or IMAGENET_MEAN, self.section.std or IMAGENET_STD
        return NetworkWeights(state=state, num_classes=num_classes, mean=mean, std=std, origin=UNTRAINED)


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
