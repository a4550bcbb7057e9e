"""Match a model's outputs to the classes of a benchmark: leave some out, or let several stand for a class."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

import torch
from torch import nn

from tta_pipeline.data.labels.output_map import OutputMap
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.class_outputs import ClassOutputs
from tta_pipeline.models.loaded_model import LoadedModel


class _SelectedOutputs(nn.Module):
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


def select_classes(
    model: LoadedModel, own_classes: tuple[str, ...], classes: tuple[str, ...], *, named: str
) -> LoadedModel:
    """Return *model*, whose outputs are *own_classes*, with only the outputs for *classes*, in the order of *classes*.

    Raises:
        EvaluationError: *own_classes*, which *named* has, are not the outputs of *model* or lack some of *classes*.
    """
    if own_classes == classes:
        return model
    _require_outputs(model, own_classes, classes, named=named)
    outputs = [own_classes.index(name) for name in classes]
    return replace(
        model,
        make_network=lambda: _cut_outputs(model.make_network(), outputs, of=model.num_classes),
        num_classes=len(outputs),
        outputs=tuple(outputs),
    )


def let_outputs_share_classes(
    model: LoadedModel, own_classes: tuple[str, ...], output_map: OutputMap, *, named: str
) -> LoadedModel:
    """Return *model*, whose outputs are *own_classes*, with all of them, scored on the classes of *output_map*.

    Raises:
        EvaluationError: *own_classes*, which *named* has, are not the outputs of *model* or lack some of the map's.
    """
    _require_outputs(model, own_classes, chain.from_iterable(output_map.outputs.values()), named=named)
    position = {name: index for index, name in enumerate(own_classes)}
    outputs = tuple(tuple(position[name] for name in members) for members in output_map.outputs.values())
    return replace(model, class_outputs=ClassOutputs(rule=output_map.rule, outputs=outputs))


def _require_outputs(model: LoadedModel, own_classes: tuple[str, ...], needed: Iterable[str], *, named: str) -> None:
    unknown = sorted(set(needed) - set(own_classes))
    if len(own_classes) != model.num_classes or unknown:
        raise EvaluationError(
            f"{named} lists {len(own_classes)} classes, without {unknown[:3] or 'none'} of the class map; expected "
            f"the {model.num_classes} outputs of model {model.name}, in their order"
        )


def _cut_outputs(network: nn.Module, outputs: list[int], *, of: int) -> nn.Module:
    """Return *network*, a classifier with *of* outputs, restricted to *outputs*.

    If the last layer can be identified, the layer itself is cut, so that methods that use its input can find it.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear) and layer.out_features == of]
    if len(layers) != 1:
        return _SelectedOutputs(network, outputs)
    (layer,) = layers
    layer.out_features = len(outputs)
    layer.weight = nn.Parameter(layer.weight.detach()[outputs])
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach()[outputs])
    return network
