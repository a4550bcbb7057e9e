"""The top layers of a network, which SAR, DeYO and REM do not adapt.

Niu et al. 2023, "Towards stable test-time adaptation in dynamic wild world", freeze the last stage of a ResNet, and the
last three of the twelve blocks of a ViT-B with the norm layer after them. Following them, the top is:

- the last quarter of the blocks of a transformer with blocks of one width, at least one block;
- the last stage of a transformer or ConvNeXt with stages, with the reduction before it;
- the last stage of a ResNet, by its name.

All norm layers from there on belong to the top, in the order in which the network registers its layers. Blocks and
stages are found by structure, not by name: they are the numbered parts of the network that contain most
of its layer norms. A network has no top if its parts have no attention and no layer norm and are not named as a
ResNet's: in the authors' code, every norm layer of an EfficientNet or of a ResNet-20 adapts too.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from torch import nn

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods.norm_layers import NORM_LAYERS

_LAST_OF_RESNET = "layer4"
"""Last stage of a ResNet of torchvision and timm, and of the towers of CLIP."""
_WITH_STAGES = {"ResNetV2", "ResNetEncoder"}
"""ResNet classes, of timm and of transformers, that call the last stage `stages.3`."""
_ATTENTION = re.compile("Attention|Attn|MHSA|MSA|Transformer")
"""Found in the names of a transformer's classes. Case matters: `Flatten` contains `att`."""
_NUMBERED = re.compile(r"(.*?)\d+")
_WRAPPER = "network."
"""Prefix that this project's models put before the names of the network's layers."""
_NUM_SHOWN = 6


def top_layers(model: nn.Module, method: str, *, named: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the names of the norm layers in the top of *model*, as in `named_modules`; empty if it has no top.

    Args:
        model: The network.
        method: Name of the method, for messages.
        named: Names of layers, or of modules that hold layers, to use as the top; None: find the top.

    Raises:
        AdaptationError: *model* is a transformer whose blocks are not found, or a name in *named* is no norm layer
            and holds none.
    """
    norms = {name: layer for name, layer in model.named_modules() if isinstance(layer, NORM_LAYERS)}
    if named is not None:
        return _find_named_norms(norms, named, method)
    first = _find_last_resnet_stage(model) or _find_first_of_top(model, norms)
    if first is not None:
        return _norms_from(norms, first)
    if norms and _has_attention(model):
        raise AdaptationError(
            f"{type(model).__name__} has attention, but no numbered blocks that contain most of its norm layers, "
            f"which are {_shorten_list(list(norms))}; {method} freezes the last quarter of the blocks: name these "
            "layers in `frozen_layers`, or write an empty list to adapt every norm layer"
        )
    return ()


def _find_named_norms(norms: Mapping[str, nn.Module], named: Sequence[str], method: str) -> tuple[str, ...]:
    """Return the names of the *norms* at or below the layers *named*, with or without the names of wrappers."""
    bare = {name: bare_name(name) for name in norms}
    for name in named:
        if not any(_contains(bare_name(name), each) for each in bare.values()):
            raise AdaptationError(
                f"frozen_layers names {name}, which is not a norm layer and contains none; {method} expects names "
                f"among {_shorten_list(list(bare.values()))}, or modules that contain them"
            )
    return tuple(name for name, each in bare.items() if any(_contains(bare_name(other), each) for other in named))


def _contains(part: str, name: str) -> bool:
    """Return whether the layer *name* is the part of the network called *part*, or inside it."""
    return f"{name}.".startswith(f"{part}.")


def bare_name(name: str) -> str:
    """Return the *name* of a layer in the network itself, without the wrappers of this project."""
    while name.startswith(_WRAPPER):
        name = name.removeprefix(_WRAPPER)
    return name


def _shorten_list(names: Sequence[str]) -> str:
    if len(names) <= _NUM_SHOWN:
        return ", ".join(names)
    half = _NUM_SHOWN // 2
    return ", ".join([*names[:half], "...", *names[-half:]])


def _norms_from(norms: Mapping[str, nn.Module], first: str) -> tuple[str, ...]:
    """Return the names of the *norms* in the part *first* and after it."""
    names = list(norms)
    start = next((number for number, name in enumerate(names) if _contains(first, name)), len(names))
    return tuple(names[start:])


def _find_last_resnet_stage(model: nn.Module) -> str | None:
    """Return the name of the fourth stage of a ResNet; None if *model* is no ResNet, or has fewer stages."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == _LAST_OF_RESNET:
            return str(name)
        if type(module).__name__ in _WITH_STAGES:
            return f"{name}.stages.3" if name else "stages.3"
    return None


def _has_attention(model: nn.Module) -> bool:
    return any(_ATTENTION.search(type(module).__name__) for module in model.modules())


class _Part(NamedTuple):
    """A numbered part of a network that holds norm layers: a block, a stage, or a reduction between two stages."""

    name: str
    norms: tuple[str, ...]
    """Names of its norm layers, in order."""

    @property
    def has_blocks(self) -> bool:
        """Whether it is a stage: it has numbered parts itself."""
        return any(_numbered(name.removeprefix(f"{self.name}.")) for name in self.norms)


def _find_first_of_top(model: nn.Module, norms: Mapping[str, nn.Module]) -> str | None:
    """Return the name of the first block or stage in the top of a transformer or ConvNeXt; None if there is none."""
    of_layer_norm = [name for name, layer in norms.items() if isinstance(layer, nn.LayerNorm) and _numbered(name)]
    if not of_layer_norm and not _has_attention(model):
        return None
    parts = _find_blocks_or_stages(norms, of_layer_norm or list(norms))
    if not parts:
        return None
    widths = [_width(norms[part.norms[-1]]) for part in parts]
    if len(set(widths)) == 1:
        return parts[-max(1, len(parts) // 4)].name
    # In a plain list of blocks, the last stage consists of the blocks that are as wide as the last one.
    is_before = (
        [not part.has_blocks for part in parts] if parts[-1].has_blocks else [width == widths[-1] for width in widths]
    )
    num_before = len(list(takewhile(bool, reversed(is_before[:-1]))))
    return parts[-1 - num_before].name


def _find_blocks_or_stages(norms: Mapping[str, nn.Module], counted: Sequence[str]) -> list[_Part]:
    """Return the outermost numbered parts that together hold more than half of the *counted* norm layers, in order."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name in norms:
        for group, part in _numbered(name):
            found.setdefault(group, {}).setdefault(part, []).append(name)
    holding = [
        (parent.count(".") if parent else -1, parts)
        for (parent, _), parts in found.items()
        if len(parts) > 1 and 2 * len(set(counted) & {name for each in parts.values() for name in each}) > len(counted)
    ]
    outermost = min(holding, key=lambda each: each[0], default=(0, {}))[1]
    return [_Part(name, tuple(names)) for name, names in outermost.items()]


def _numbered(name: str) -> list[tuple[tuple[str, str], str]]:
    """Return the numbered parts of a network that hold the layer *name*, each after the group it is numbered in.

    A group is the parent's name, and the part's name without the number: `encoder` and `layer` for
    `encoder.layer3.norm`.
    """
    pieces = name.split(".")
    numbered = ((depth, _NUMBERED.fullmatch(piece)) for depth, piece in enumerate(pieces[:-1]))
    return [((".".join(pieces[:depth]), match[1]), ".".join(pieces[: depth + 1])) for depth, match in numbered if match]


def _width(layer: nn.Module) -> int:
    weight = layer.weight
    return weight.numel() if isinstance(weight, nn.Parameter) else 0
