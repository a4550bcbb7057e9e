"""A memory with about equally many images of each predicted class, in which a random image is replaced."""

from collections.abc import Callable

import torch

from tta_pipeline.methods.image_store import ImageStore
from tta_pipeline.methods.stateful import StateDict, Stateful


class UniformMemory(Stateful):
    """At most *capacity* images; a new one replaces an image drawn from a class that has the most.

    Gong et al. 2023, "SoTTA: Robust test-time adaptation on noisy data streams", section 3.1. The images are on the
    device, everything else on the host.
    """

    def __init__(
        self, capacity: int, *, num_classes: int, draw: Callable[[int], int], device: torch.device | None = None
    ) -> None:
        self._capacity = capacity
        self._draw = draw
        """Draws a number from 0 to below its argument."""
        self.store = ImageStore(capacity, device=device)
        self._slots: list[list[int]] = [[] for _ in range(num_classes)]
        """Places of the images of each class, in the order in which the images came."""

    def __len__(self) -> int:
        return sum(map(len, self._slots))

    def state_dict(self) -> StateDict:
        """Return a copy of the images and their places."""
        return {"store": self.store.state_dict(), "slots": [list(slots) for slots in self._slots]}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the images and their places."""
        self.store.load_state_dict(state["store"])
        self._slots = [list(slots) for slots in state["slots"]]

    def add(self, image: torch.Tensor, *, label: int) -> None:
        """Add *image* (3, H, W), of predicted class *label*; it must not change before `store.write`."""
        slot = len(self) if len(self) < self._capacity else self._make_room(label)
        self._slots[label].append(slot)
        self.store.put(slot, image)

    def images(self) -> torch.Tensor:
        """Return the images, (N, 3, H, W) with N <= capacity; the memory must not be empty."""
        return self.store.read(range(len(self)))

    def _make_room(self, label: int) -> int:
        """Remove an image to make room for one of class *label*, and return its place."""
        most = max(map(len, self._slots))
        largest = [number for number, slots in enumerate(self._slots) if len(slots) == most]
        chosen = label if label in largest else largest[self._draw(len(largest))]
        return self._slots[chosen].pop(self._draw(most))
