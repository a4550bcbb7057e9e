"""A network without weights, from any library or module, and weights for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.weights import state_sha256
from tta_pipeline.util.json_values import JsonObject


@dataclass(frozen=True, kw_only=True)
class NetworkWeights:
    """Weights of a network, and what is published or written with them."""

    state: Mapping[str, torch.Tensor]
    num_classes: int
    """Number of outputs; 0 if it was not requested."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    origin: str
    sha256: str | None = None
    """Hash of their file; None: the hash of `state` replaces it."""
    key: str | None = None
    """Key of the state dict in the file, if the user chose one of several."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A network that takes normalised images, and can be made with any weights."""

    name: str
    """Library and architecture as in records, such as `timm resnet50`."""
    display_name: str
    """Library and architecture in a sentence, such as `timm's resnet50`."""
    library: str
    """Package that defines the network, with its version, such as `timm 1.0.15`."""
    make: Callable[[int], nn.Module]
    """Function that returns the network with this number of outputs, with weights drawn from torch's global seed."""
    needs_storage: bool = False
    """Whether the network must be made with storage for its weights, because unknown code makes it."""
    code: JsonObject = field(default_factory=dict)
    """Other facts that determine the network, such as the hash of a factory's source; empty if there are none."""

    def make_model(self, name: str, weights: NetworkWeights) -> LoadedModel:
        """Return the model *name* with *weights*."""
        return LoadedModel(
            name=name,
            make_network=lambda: self._make_network(weights),
            num_classes=weights.num_classes,
            weights=weights.origin,
            weights_sha256=weights.sha256 or state_sha256(weights.state),
            mean=weights.mean,
            std=weights.std,
            architecture=self.name,
            code={**self.code, **({"state": weights.key} if weights.key else {})},
        )

    def _make_network(self, weights: NetworkWeights) -> nn.Module:
        network = self.make(weights.num_classes)
        network.load_state_dict(weights.state)
        return network
