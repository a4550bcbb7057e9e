"""Images of a stream in numbered places of memory that is allocated once."""

from collections.abc import Iterable

import torch

from tta_pipeline.methods.augmentations import copy_to_device
from tta_pipeline.methods.stateful import StateDict, Stateful


class ImageStore(Stateful):
    """At most *capacity* images of one size, on the device; places are filled in order, and then used again."""

    def __init__(self, capacity: int, *, device: torch.device | None = None) -> None:
        self._capacity = capacity
        self._device = device
        self._images: torch.Tensor | None = None
        self._size = 0
        self._unwritten: dict[int, torch.Tensor] = {}

    def state_dict(self) -> StateDict:
        """Return a copy of the images."""
        self.write()
        return {"images": None if self._images is None else self._images[: self._size].clone()}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the images."""
        self._size, self._unwritten = 0, {}
        for place, image in enumerate(() if state["images"] is None else state["images"]):
            self.put(place, image)
        self.write()

    def put(self, place: int, image: torch.Tensor) -> None:
        """Put *image* (3, H, W) at *place*; it must not change before `write`."""
        self._unwritten[place] = image
        self._size = max(self._size, place + 1)

    def write(self) -> None:
        """Copy what was put since the last call; all images together, since each copy of one is a kernel."""
        if not self._unwritten:
            return
        images = torch.stack(list(self._unwritten.values())).to(self._device)
        if self._images is None or self._images.shape[1:] != images.shape[1:]:
            self._images = torch.empty((self._capacity, *images.shape[1:]), dtype=images.dtype, device=images.device)
        (places,) = copy_to_device([torch.tensor(list(self._unwritten))], images.device)
        self._images[places] = images
        self._unwritten.clear()

    def read(self, places: Iterable[int]) -> torch.Tensor:
        """Return copies of the images at *places*, (N, 3, H, W)."""
        self.write()
        assert self._images is not None, "nothing was put"
        # With a list of numbers as its index, the host would wait for the copy of the list.
        return torch.stack([self._images[place] for place in places])
