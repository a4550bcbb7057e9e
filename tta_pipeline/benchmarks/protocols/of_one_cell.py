"""Protocols whose streams are single cells: the method starts over before each cell, or before each batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.benchmarks.protocols.stream_protocol import StreamProtocol, number_segments
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.streams import Segment

if TYPE_CHECKING:
    import torch

    from tta_pipeline.methods.method import Method


@dataclass(frozen=True, kw_only=True)
class ResetEachShift(StreamProtocol):
    """Each cell from the source model (Tent: Wang et al. 2021; EATA; SAR)."""

    summary: ClassVar[str] = "reset to the source model before each cell (Tent, EATA, SAR)"
    partitioned_by: ClassVar[Literal["cell", "severity", "nothing"]] = "cell"

    def segments(self, cells: Sequence[Cell], *, seed: int) -> tuple[Segment, ...]:  # noqa: ARG002 - one cell has one order
        """Return the one segment with the one cell."""
        return number_segments((cell,) for cell in cells)


@dataclass(frozen=True, kw_only=True)
class Episodic(ResetEachShift):
    """Each batch from the source model (MEMO: Zhang et al. 2022, section 3)."""

    summary: ClassVar[str] = "reset before each batch (MEMO)"
    drives_itself: ClassVar[bool] = True

    def drive(self, method: "Method") -> ProtocolDriver:
        """Return a driver that resets *method* before each batch."""
        return EpisodicDriver(method)


class EpisodicDriver(ProtocolDriver):
    """Driver that starts each batch from the source model."""

    def predict(self, images: "torch.Tensor") -> "torch.Tensor":
        """Return logits (B, K)."""
        self.method.reset()
        return self.method.predict(images)
