"""What computes: the device and the decoding threads."""

import os
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

if TYPE_CHECKING:
    import torch


class Compute(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The device that evaluates and the threads that feed it."""

    device: str = Field(default="auto", description="auto (CUDA if there is one, else cpu), cpu, cuda or cuda:1")
    decode_threads: int = Field(default=0, ge=0, description="Threads that decode images; 0: one for each core")

    def torch_device(self) -> "torch.device":
        """Return the device to evaluate on."""
        import torch

        if self.device != "auto":
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def num_threads(self) -> int:
        """The number of decoding threads."""
        return self.decode_threads or len(os.sched_getaffinity(0))
