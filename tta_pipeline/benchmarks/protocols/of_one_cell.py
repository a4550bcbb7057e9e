"""Protocols whose streams are single cells: the method starts over before each cell, or before each batch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.benchmarks.protocols.stream_protocol import Partition, StreamProtocol

if TYPE_CHECKING:
    import torch

    from tta_pipeline.methods.method import Method


@dataclass(frozen=True, kw_only=True)
class ResetEachShift(StreamProtocol):
    """Reset to the source model before each cell (Tent, EATA, SAR)."""

    partitioned_by: ClassVar[Partition] = "cell"


@dataclass(frozen=True, kw_only=True)
class Episodic(ResetEachShift):
    """Reset before each batch (MEMO)."""

    def drive(self, method: "Method") -> ProtocolDriver:
        """Return a driver that resets *method* before each batch."""
        return EpisodicDriver(method)


class EpisodicDriver(ProtocolDriver):
    """Driver that starts each batch from the source model (MEMO: Zhang et al. 2022, section 3)."""

    def predict(self, images: "torch.Tensor") -> "torch.Tensor":
        """Return logits (B, K)."""
        self.method.reset()
        return self.method.predict(images)
