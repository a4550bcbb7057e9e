"""Scores of classes that several outputs of a network stand for, such as the superclasses of LAION-C."""

from dataclasses import dataclass
from functools import cache

import torch

from tta_pipeline.data.labels.output_map import Rule
from tta_pipeline.util.json_values import JsonObject

_PADDING = -1


@dataclass(frozen=True, kw_only=True)
class ClassOutputs:
    """The network's outputs that stand for each class, and the rule that makes one score of them."""

    rule: Rule
    outputs: tuple[tuple[int, ...], ...]
    """Indices of each class's outputs, in the order of the labels."""

    def class_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) of the classes for *logits* (B, O) of the network's outputs.

        Their softmax is the mean or the maximum of the outputs' softmax in each class, divided by its sum over the
        classes; other outputs do not count.
        """
        columns = _columns(self.outputs, logits.device)
        is_padding = columns == _PADDING
        scores = logits[:, columns.clamp(min=0)].masked_fill(is_padding, -torch.inf)
        if self.rule == "max":
            return scores.amax(2)
        return scores.logsumexp(2) - (~is_padding).sum(1).log()

    @property
    def identity(self) -> JsonObject:
        """Return the rule and the outputs as plain JSON."""
        return {"rule": self.rule, "outputs": [list(members) for members in self.outputs]}


@cache
def _columns(outputs: tuple[tuple[int, ...], ...], device: torch.device) -> torch.Tensor:
    """Return *outputs* as int64 (K, M), filled up with `_PADDING`; kept, since a copy would make the host wait."""
    most = max(map(len, outputs))
    return torch.tensor([[*members, *[_PADDING] * (most - len(members))] for members in outputs], device=device)
