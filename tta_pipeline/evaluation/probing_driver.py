"""A driver that computes additional outputs for each batch, to choose hyperparameters without labels."""

import torch
from torch import nn
from torch.nn import functional

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.methods.stateful import StateDict
from tta_pipeline.results.tuning_criteria import Probe

_SHARE_OF_WIDTH = 16
"""A view is shifted by this fraction of the width: 2 pixels of 32, 14 of 224."""


class ProbingDriver(ProtocolDriver):
    """Driver that wraps another driver and probes it before each batch. It changes no prediction.

    The same method predicts the second view from the same state, with adaptation, which is then undone. So all methods
    are probed in the same way, whatever state they have in addition to the network.
    """

    def __init__(self, probed: ProtocolDriver, *, probes: frozenset[Probe], source: nn.Module | None) -> None:
        super().__init__(probed.method)
        self._probed = probed
        self._views = "second_view" in probes
        self._source = None if source is None else source.eval()
        self._source_logits: torch.Tensor | None = None
        self._view_logits: torch.Tensor | None = None
        self.keeps_probabilities = "neighbourhood" in probes

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        if self._views:
            self._view_logits = self._predict_view(images)
        if self._source is not None:
            with torch.inference_mode():
                self._source_logits = self._source(images).clone()  # a CUDA graph overwrites its output
        logits = self._probed.predict(images)
        self.num_unadapted = self._probed.num_unadapted
        return logits

    def source_logits(self) -> torch.Tensor | None:
        """Return the source model's logits (B, K): the method's own if it has them."""
        own = self._probed.source_logits()
        return self._source_logits if own is None else own

    def view_logits(self) -> torch.Tensor | None:
        """Return the logits (B, O) of the second views of the last images."""
        return self._view_logits

    def state_dict(self) -> StateDict:
        """Return a copy of the other driver's state."""
        return self._probed.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Restore *state* from `state_dict`."""
        self._probed.load_state_dict(state)

    def _predict_view(self, images: torch.Tensor) -> torch.Tensor:
        state, num_unadapted = self._probed.state_dict(), self._probed.num_unadapted
        logits = self._probed.predict(shift(images))
        self._probed.load_state_dict(state)
        self._probed.num_unadapted = num_unadapted
        return logits


def shift(images: torch.Tensor) -> torch.Tensor:
    """Return *images*, (B, 3, H, W), moved right and down by a sixteenth of their width; the edges are mirrored.

    A shift preserves the class of any image; a flip may change the class of a digit.
    """
    height, width = images.shape[-2:]
    step = max(1, width // _SHARE_OF_WIDTH)
    return functional.pad(images, (step, 0, step, 0), mode="reflect")[..., :height, :width].contiguous()
