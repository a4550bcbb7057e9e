"""Networks to fine-tune, of any kind that has weights, for any number of classes."""

from torch import nn

from tta_pipeline.benchmarks.model_specs import NetworkSection
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import NetworkWeights
from tta_pipeline.models.fitting import head_shapes
from tta_pipeline.models.model_kind import kind_of


def load_network(spec: NetworkSection, *, num_classes: int) -> tuple[nn.Module, NetworkWeights]:
    """Return the network of *spec* and its weights; a head with another number of outputs is replaced by a fresh head.

    The weights of a fresh head are drawn from torch's global seed.

    Raises:
        EvaluationError: *spec* has no weights, or the weights are missing or not the expected ones.
    """
    kind = kind_of(spec)
    architecture, start = kind.architecture(), kind.weights(None)
    network = architecture.make(num_classes)
    head, own = head_shapes(architecture), network.state_dict()
    is_fitting = all(own[name].shape == start.state[name].shape for name in head)
    kept = {name: weights for name, weights in start.state.items() if is_fitting or name not in head}
    network.load_state_dict(kept, strict=is_fitting)
    if not head:  # the architecture ignores the number of outputs
        _replace_last_linear(network, num_classes=num_classes, called=architecture.display_name)
    return network, start


def declared_normalisation(spec: NetworkSection) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and standard deviation of *spec* in the benchmark file; None if the file has none."""
    mean, std = getattr(spec, "mean", None), getattr(spec, "std", None)
    return None if mean is None or std is None else (tuple(mean), tuple(std))


def _replace_last_linear(network: nn.Module, *, num_classes: int, called: str) -> None:
    """Give *network* a fresh last linear layer, unless it has *num_classes* outputs.

    Raises:
        EvaluationError: there is no linear layer.
    """
    layers = [(name, layer) for name, layer in network.named_modules() if name and isinstance(layer, nn.Linear)]
    if not layers:
        raise EvaluationError(
            f"{called} has no linear layer to replace by one of {num_classes} outputs; expected a factory with a "
            "parameter num_classes"
        )
    name, last = layers[-1]
    if last.out_features != num_classes:
        parent, _, leaf = name.rpartition(".")
        fresh = nn.Linear(last.in_features, num_classes, bias=last.bias is not None)
        setattr(network.get_submodule(parent), leaf, fresh)
