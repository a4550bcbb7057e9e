"""What a computation submits to a device, counted without one."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = {"_local_scalar_dense", "lift_fresh", "nonzero", "equal"}
"""What torch calls the reading of a number, a tensor made of the host's numbers, a mask as an index, a comparison."""


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the names of operations that write a tensor on *device*, each of which is a kernel or more."""

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
