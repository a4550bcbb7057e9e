"""Counts the operations that a computation submits to a device, without a device."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = {"_local_scalar_dense", "lift_fresh", "nonzero", "equal"}
"""Torch's names of operations that make the host wait: reading a number, making a tensor from numbers of the host,
indexing with a mask, comparing."""


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the names of operations that write a tensor on *device*; each is at least one kernel."""

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run *func*, and count it."""
        found = func(*args, **(kwargs or {}))
        of_device = [each for each in tree_leaves((args, found)) if isinstance(each, torch.Tensor)]
        if not func.is_view and any(each.device.type == self._device for each in of_device):
            self.names.append(func.overloadpacket.__name__)
        return found
