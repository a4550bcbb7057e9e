"""Classifiers to evaluate, with everything that a reader of a result must know about them."""

import hashlib
import importlib
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from tta_pipeline.benchmarks.models import AnyModel, CheckpointModel, TimmModel, TorchvisionModel, TrainedModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.json_values import JsonObject
from tta_pipeline.labels.label_files import read_classes
from tta_pipeline.shards.manifest import file_sha256
from tta_pipeline.training.network import Normalized
from tta_pipeline.training.source_model import load_source_model

_IMAGENET = Path("imagenet")
"""The list of ImageNet's 1,000 classes."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A classifier of float images (B, 3, H, W) in [0, 1] that carries its own normalisation."""

    name: str
    make: Callable[[], nn.Module]
    """Function that returns a fresh copy, since methods change the model they are given."""
    num_classes: int
    weights: str
    """Description of the origin of the weights."""
    weights_sha256: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    architecture: str
    """Library and architecture, such as `timm resnet50`."""
    outputs: tuple[int, ...] | None = None
    """Positions of the network's outputs that are kept; None: all, in their order."""

    @property
    def identity(self) -> JsonObject:
        """Return everything that determines the logits, as plain JSON."""
        return {
            "architecture": self.architecture,
            "weights_sha256": self.weights_sha256,
            "mean": list(self.mean),
            "std": list(self.std),
            "num_classes": self.num_classes,
            "outputs": None if self.outputs is None else list(self.outputs),
        }


def load_model(name: str, spec: AnyModel, *, source_model: Path, classes: tuple[str, ...]) -> LoadedModel:
    """Load the model that *spec* describes; *source_model* is the path of the benchmark's trained model.

    Raises:
        EvaluationError: the weights are missing, unknown or not the expected ones, or do not predict *classes*, those
            of the class map.
    """
    if isinstance(spec, TrainedModel):
        model = trained_model(name, source_model)
    elif isinstance(spec, TorchvisionModel):
        model = torchvision_model(name, spec)
    elif isinstance(spec, TimmModel):
        model = timm_model(name, spec)
    else:
        model = checkpoint_model(name, spec, num_classes=len(read_classes(spec.classes) if spec.classes else classes))
    own_classes = None if isinstance(spec, TrainedModel) else spec.classes or _imagenet(model, classes)
    if own_classes is not None:
        model = _of_some_classes(model, read_classes(own_classes), classes, named=own_classes)
    if model.num_classes != len(classes):
        raise EvaluationError(
            f"model {name} predicts {model.num_classes} classes; expected the class map's {len(classes)}: "
            "use a model for these classes, or name the model's classes in its field `classes`"
        )
    return model


def _imagenet(model: LoadedModel, classes: tuple[str, ...]) -> Path | None:
    """Return the name of ImageNet's list if *classes* are some of its classes and *model* has as many outputs."""
    known = read_classes(_IMAGENET)
    return _IMAGENET if model.num_classes == len(known) > len(classes) and set(classes) <= set(known) else None


class _SomeOutputs(nn.Module):
    """A classifier without the outputs for classes that the benchmark lacks."""

    def __init__(self, network: nn.Module, outputs: list[int]) -> None:
        super().__init__()
        self.network = network
        self.outputs: torch.Tensor
        self.register_buffer("outputs", torch.tensor(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for the K classes of the benchmark."""
        logits: torch.Tensor = self.network(images)
        return logits[:, self.outputs]


def _of_some_classes(
    model: LoadedModel, own_classes: tuple[str, ...], classes: tuple[str, ...], *, named: Path
) -> LoadedModel:
    """Return *model*, whose outputs are *own_classes*, with only the outputs for *classes*, in their order."""
    if own_classes == classes:
        return model
    unknown = sorted(set(classes) - set(own_classes))
    if len(own_classes) != model.num_classes or unknown:
        raise EvaluationError(
            f"{named} names {len(own_classes)} classes and lacks {unknown[:3] or 'none'} of the class map; expected "
            f"the {model.num_classes} outputs of model {model.name}, in their order"
        )
    outputs = [own_classes.index(name) for name in classes]
    return replace(
        model,
        make=lambda: _with_outputs(model.make(), outputs, of=model.num_classes),
        num_classes=len(outputs),
        outputs=tuple(outputs),
    )


def _with_outputs(network: nn.Module, outputs: list[int], *, of: int) -> nn.Module:
    """Return *network*, a classifier with *of* outputs, with only *outputs*.

    If the last layer can be identified, it is cut itself, so that methods that use its input can find it.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear) and layer.out_features == of]
    if len(layers) != 1:
        return _SomeOutputs(network, outputs)
    (layer,) = layers
    layer.out_features = len(outputs)
    layer.weight = nn.Parameter(layer.weight.detach()[outputs])
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach()[outputs])
    return network


def trained_model(name: str, path: Path) -> LoadedModel:
    """Return the source model that a benchmark has trained, with its description.

    Raises:
        EvaluationError: the model is missing, damaged or changed.
    """
    network, facts = load_source_model(path)
    return LoadedModel(
        name=name,
        make=lambda: deepcopy(network),  # not read again: the file may be of another training by then
        num_classes=len(facts.classes),
        weights=path.name,
        weights_sha256=facts.weights_sha256,
        mean=facts.mean,
        std=facts.std,
        architecture=f"tta_pipeline SmallConvNet, width {facts.width}",
    )


def torchvision_model(name: str, spec: TorchvisionModel) -> LoadedModel:
    """Return torchvision's model with the weights and the normalisation that *spec* names.

    Raises:
        EvaluationError: torchvision has no such model or weights, or they cannot be downloaded.
    """
    from torchvision.models import get_model_weights, list_models

    if spec.architecture not in list_models():
        raise EvaluationError(
            f"torchvision has no model {spec.architecture!r}; expected one of {', '.join(list_models())}"
        )
    choices = get_model_weights(spec.architecture)
    if spec.weights not in choices.__members__:
        raise EvaluationError(
            f"{spec.architecture} has no weights {spec.weights!r}; expected one of {', '.join(choices.__members__)}"
        )
    weights = choices[spec.weights]
    transforms = weights.transforms()
    return _loaded(
        name, "torchvision", spec.architecture, _downloaded(weights), num_classes=len(weights.meta["categories"]),
        mean=tuple(transforms.mean), std=tuple(transforms.std), weights=str(weights),
    )  # fmt: skip


def timm_model(name: str, spec: TimmModel) -> LoadedModel:
    """Return timm's model with the weights and the normalisation that *spec* names.

    Raises:
        EvaluationError: timm is not installed, has no such model, or its weights cannot be downloaded.
    """
    timm = _imported_timm()
    try:
        network = timm.create_model(spec.architecture, pretrained=True)
    except Exception as error:  # its hub client raises errors of any kind
        raise EvaluationError(
            f"timm cannot make {spec.architecture!r} ({error}); expected one of timm.list_models(pretrained=True), and "
            "a connection or its file in the cache of huggingface_hub"
        ) from error
    settings = network.pretrained_cfg
    return _loaded(
        name, "timm", spec.architecture, network.state_dict(), num_classes=network.num_classes,
        mean=tuple(settings["mean"]), std=tuple(settings["std"]),
        weights=f"timm {spec.architecture} {settings.get('tag') or ''}".strip(),
    )  # fmt: skip


def checkpoint_model(name: str, spec: CheckpointModel, *, num_classes: int) -> LoadedModel:
    """Return the architecture of *spec* with the weights in its file.

    Raises:
        EvaluationError: see `require_fitting`.
    """
    return _loaded(
        name, spec.library, spec.architecture, require_fitting(spec, num_classes=num_classes),
        num_classes=num_classes, mean=spec.mean, std=spec.std, weights=spec.path.name, weights_sha256=spec.sha256,
    )  # fmt: skip


def model_of_state(
    name: str,
    library: str,
    architecture: str,
    state: dict[str, torch.Tensor] | None,
    *,
    num_classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> LoadedModel:
    """Return the architecture with the weights *state*, or untrained if *state* is None.

    Raises:
        EvaluationError: the architecture does not exist, or the weights do not fit it.
    """
    if state is None:
        weights, state = "untrained", _made(library, architecture, num_classes=num_classes).state_dict()
    elif misfit := _misfit(library, architecture, state, num_classes=num_classes):
        raise EvaluationError(f"the weights do not fit {misfit}; expected its state dict")
    else:
        weights = "a state dict"
    return _loaded(name, library, architecture, state, num_classes=num_classes, mean=mean, std=std, weights=weights)


def _loaded(
    name: str,
    library: str,
    architecture: str,
    state: dict[str, torch.Tensor],
    *,
    num_classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    weights: str,
    weights_sha256: str | None = None,
) -> LoadedModel:
    """Return the architecture with weights *state*, hashed by their file if there is one, else by themselves."""
    return LoadedModel(
        name=name,
        make=lambda: _network(library, architecture, state, mean, std, num_classes=num_classes),
        num_classes=num_classes,
        weights=weights,
        weights_sha256=weights_sha256 or state_sha256(state),
        mean=mean,
        std=std,
        architecture=f"{library} {architecture}",
    )


def require_fitting(spec: CheckpointModel, *, num_classes: int | None) -> dict[str, torch.Tensor]:
    """Return the weights in the file of *spec*, checked to fit its architecture.

    Args:
        spec: The model in the benchmark file.
        num_classes: Number of outputs that they must have; None: any number.

    Raises:
        EvaluationError: the weights are missing, changed, unreadable or of something else; with the first names.
    """
    path = spec.path.expanduser()
    state = _read_state(path, spec.sha256)
    if misfit := _misfit(spec.library, spec.architecture, state, num_classes=num_classes):
        raise EvaluationError(
            f"{path} does not fit {misfit}; expected its state dict: correct `architecture` or `path`"
        )
    return state


_ANY_NUMBER = 7919
"""A number of classes that no network has; a shape that contains it is that of outputs."""


def _misfit(
    library: str, architecture: str, found: Mapping[str, torch.Tensor], *, num_classes: int | None
) -> str | None:
    """Return a message that says which network *found* does not fit, and why; None if it fits.

    The message counts missing, unexpected and misshapen weights, and names the first of each.

    Raises:
        EvaluationError: the architecture does not exist.
    """
    network = _shaped(library, architecture, num_classes=num_classes)
    expected = network.state_dict()
    others = [
        name
        for name, weights in expected.items()
        if name in found and _ANY_NUMBER not in weights.shape and not _is_alike(found[name], weights)
    ]
    # torch knows which names older files may lack.
    absent = {name: expected[name] for name in (set(found) & set(expected))}
    keys = network.load_state_dict({**found, **absent}, strict=False, assign=True)
    parts = []
    if keys.missing_keys:
        parts.append(f"{len(keys.missing_keys)} of {len(expected)} weights are missing, first {keys.missing_keys[0]}")
    if keys.unexpected_keys:
        parts.append(f"{len(keys.unexpected_keys)} are unexpected, first {keys.unexpected_keys[0]}")
    if others:
        shapes = f"{tuple(found[others[0]].shape)} in place of {tuple(expected[others[0]].shape)}"
        parts.append(f"{len(others)} have another shape, first {others[0]}: {shapes}")
    return f"{_called(library, architecture, num_classes)}: {', '.join(parts)}" if parts else None


def _shaped(library: str, architecture: str, *, num_classes: int | None) -> nn.Module:
    """Return the network without storage for its weights, or with it if the network computes its shapes."""
    try:
        with torch.device("meta"):
            return _made(library, architecture, num_classes=num_classes)
    except NotImplementedError:  # such as RegNets
        return _made(library, architecture, num_classes=num_classes)


def _made(library: str, architecture: str, *, num_classes: int | None) -> nn.Module:
    """Return the untrained network; if *num_classes* is None, it has `_ANY_NUMBER` outputs.

    Raises:
        EvaluationError: the architecture does not exist.
        NotImplementedError: the network computes its widths with tensors, which the meta device cannot do.
    """
    try:
        return bare_network(library, architecture, num_classes=num_classes or _ANY_NUMBER)
    except NotImplementedError:
        raise  # the network can be made on another device than meta
    except (RuntimeError, ValueError) as error:
        raise EvaluationError(
            f"{_called(library, architecture, num_classes)} cannot be made ({_first_line(error)}); expected an "
            f"architecture that {library} lists"
        ) from error


def _called(library: str, architecture: str, num_classes: int | None) -> str:
    return f"{library}'s {architecture}" + (f" with {num_classes} classes" if num_classes else "")


def _is_alike(found: torch.Tensor, expected: torch.Tensor) -> bool:
    # torch treats a one-element vector of its first versions as a number.
    return found.shape == expected.shape or (expected.ndim == 0 and found.shape == (1,))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _read_state(path: Path, sha256: str) -> dict[str, torch.Tensor]:
    """Return the state dict in *path*, without running code from it."""
    try:
        is_file, found = path.is_file(), file_sha256(path) if path.is_file() else None
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read ({error.strerror}); expected weights: restore it") from error
    if not is_file:  # reading a FIFO would block
        raise EvaluationError(f"{path} is {'not a file' if path.exists() else 'missing'}; expected weights: restore it")
    if found != sha256:
        raise EvaluationError(f"{path} hashes to {found}; expected {sha256} as the benchmark file says: restore it")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of any kind: bytes that are not a pickle can make any pickle instruction fail
        raise EvaluationError(
            f"{path} cannot be read as weights ({_first_line(error)}); expected safetensors or a saved state dict, "
            "without code"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not state or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise EvaluationError(f"{path} holds {type(content).__name__}; expected a state dict, names to tensors")
    return {str(key).removeprefix("module."): value for key, value in state.items()}


def _network(
    library: str,
    architecture: str,
    state: dict[str, torch.Tensor],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    *,
    num_classes: int,
) -> nn.Module:
    network = bare_network(library, architecture, num_classes=num_classes)
    network.load_state_dict(state)
    return Normalized(network, mean=mean, std=std)


def bare_network(library: str, architecture: str, *, num_classes: int) -> nn.Module:
    """Return the untrained network."""
    network: nn.Module
    if library == "timm":
        network = _imported_timm().create_model(architecture, num_classes=num_classes)
    else:
        from torchvision.models import get_model

        network = get_model(architecture, weights=None, num_classes=num_classes)
    return network


def _imported_timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise EvaluationError(
            "timm is not installed; expected the extra: run pip install 'tta_pipeline[timm]'"
        ) from error


def _downloaded(weights: Any) -> dict[str, torch.Tensor]:
    try:
        state: dict[str, torch.Tensor] = weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        raise EvaluationError(
            f"{weights} cannot be downloaded from {weights.url} ({error}); expected a connection or a file in {folder}"
        ) from error
    return state


def state_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """Return the hash of the names and bytes of *state*, on any device and of any type and layout."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        # As bytes, since NumPy has no bfloat16.
        digest.update(state[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
