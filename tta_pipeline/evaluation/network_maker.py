"""Fresh networks on the device, compiled as the experiment says."""

from dataclasses import dataclass

import torch
from torch import nn

from tta_pipeline.methods.method import Method
from tta_pipeline.models.loaded_model import LoadedModel


@dataclass(frozen=True, kw_only=True)
class NetworkMaker:
    """Makes the networks of one experiment."""

    model: LoadedModel
    device: torch.device
    compile: str
    """Mode of `Experiment.compile`."""

    def make(self) -> nn.Module:
        """Return the model on the device, in the memory layout of the images."""
        network: nn.Module = self.model.make().to(self.device).to(memory_format=torch.channels_last)
        self._compile(network)
        return network

    def compile_copies(self, method: Method) -> None:
        """Compile the copies of the network in *method*, such as a teacher: copying a network drops its compilation."""
        for own in vars(method).values():
            if type(own) is type(method.model) and own is not method.model:
                self._compile(own)

    def _compile(self, network: nn.Module) -> None:
        if self.compile != "off":
            network.compile(mode=self.compile, dynamic=False)
