"""A network without weights, whichever library or module makes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from tta_pipeline.models.loaded import LoadedModel
from tta_pipeline.models.weights import state_sha256
from tta_pipeline.util.json_values import JsonObject


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A network of normalised images that can be made with any weights."""

    name: str
    """Library and architecture as records have them, such as `timm resnet50`."""
    called: str
    """The same in a sentence, such as `timm's resnet50`."""
    library: str
    """Package that defines it, with its version, such as `timm 1.0.15`."""
    make: Callable[[int], nn.Module]
    """Function that returns the network with so many outputs, its weights drawn from torch's global seed."""
    needs_storage: bool = False
    """Whether it can be made only with storage for its weights, since code that is not known here makes it."""
    code: JsonObject = field(default_factory=dict)
    """What else determines the network, such as the hash of a factory's source; empty if nothing does."""

    def with_state(
        self,
        name: str,
        state: Mapping[str, torch.Tensor],
        *,
        num_classes: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        weights: str,
        weights_sha256: str | None = None,
        key: str | None = None,
    ) -> LoadedModel:
        """Return the model *name* with weights *state*, hashed by their file if there is one, else by themselves.

        *key* is where they lie in the file if the user chose among several.
        """
        return LoadedModel(
            name=name,
            make_network=lambda: self._network(state, num_classes),
            num_classes=num_classes,
            weights=weights,
            weights_sha256=weights_sha256 or state_sha256(state),
            mean=mean,
            std=std,
            architecture=self.name,
            code={**self.code, **({"state": key} if key else {})},
        )

    def _network(self, state: Mapping[str, torch.Tensor], num_classes: int) -> nn.Module:
        network = self.make(num_classes)
        network.load_state_dict(state)
        return network
