"""Memories of the stream: a class-balanced bank of images, and a queue of the latest rows."""

import math
from dataclasses import astuple, dataclass

import torch

from tta_pipeline.methods.image_store import ImageStore
from tta_pipeline.methods.stateful import StateDict, Stateful


class Queue(Stateful):
    """The latest *capacity* rows of several parallel tensors, in memory that is allocated once."""

    def __init__(self, capacity: int, *, device: torch.device | None = None) -> None:
        self._capacity = capacity
        self._device = device
        self._tensors: list[torch.Tensor] = []
        self.clear()

    def __len__(self) -> int:
        return self._size

    def clear(self) -> None:
        """Remove all rows."""
        self._size = self._next = 0

    def append(self, *rows: torch.Tensor) -> None:
        """Append *rows*, (B, ...) for each tensor, with the same shapes each time; the oldest rows are dropped."""
        if not self._tensors:
            self._tensors = [
                torch.empty((self._capacity, *part.shape[1:]), dtype=part.dtype, device=self._device) for part in rows
            ]
        rows = tuple(part[-self._capacity :] for part in rows)
        count = len(rows[0])
        positions = torch.arange(self._next, self._next + count, device=rows[0].device) % self._capacity
        for tensor, part in zip(self._tensors, rows, strict=True):
            tensor[positions] = part
        self._next = (self._next + count) % self._capacity
        self._size = min(self._size + count, self._capacity)

    def rows(self) -> list[torch.Tensor]:
        """Return the kept rows of each tensor, (N, ...) with N <= capacity, in no particular order."""
        return [tensor[: self._size] for tensor in self._tensors]

    def state_dict(self) -> StateDict:
        """Return copies of the rows, and the position of the next one to replace."""
        return {"rows": [rows.clone() for rows in self.rows()], "next": self._next}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the rows and their positions."""
        self.clear()
        if state["rows"]:
            self.append(*(rows.to(self._device) for rows in state["rows"]))
        self._next = state["next"]


@dataclass(slots=True)
class _Entry:
    slot: int
    label: int
    uncertainty: float
    age: int = 0


class BalancedBank(Stateful):
    """At most *capacity* images, about equally many of each predicted class; recent and certain images are preferred.

    Yuan et al. 2023, "Robust test-time adaptation in dynamic scenarios", section 3.3 (category-balanced sampling with
    timeliness and uncertainty), equation 7 and algorithm 1. Images are on the device, everything else on the host.
    """

    def __init__(
        self,
        capacity: int,
        *,
        num_classes: int,
        lambda_t: float,
        lambda_u: float,
        device: torch.device | None = None,
    ) -> None:
        self._capacity = capacity
        self._num_classes = num_classes
        self._lambda_t = lambda_t
        self._lambda_u = lambda_u
        self.store = ImageStore(capacity, device=device)
        self._entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def state_dict(self) -> StateDict:
        """Return a copy of the images and their entries."""
        return {"store": self.store.state_dict(), "entries": [list(astuple(entry)) for entry in self._entries]}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the images and their entries."""
        self.store.load_state_dict(state["store"])
        self._entries = [_Entry(*fields) for fields in state["entries"]]

    def add(self, image: torch.Tensor, *, label: int, uncertainty: float) -> None:
        """Offer *image* (3, H, W), of predicted class *label* and entropy *uncertainty* in nats.

        It must not change before `store.write`.
        """
        entry = _Entry(len(self._entries), label, uncertainty)
        if self._make_room(entry):
            self._entries.append(entry)
            self.store.put(entry.slot, image)
        for kept in self._entries:
            kept.age += 1

    def images(self) -> torch.Tensor:
        """Return the kept images, (N, 3, H, W) with N <= capacity."""
        return self.store.read(entry.slot for entry in self._entries)

    def ages(self) -> torch.Tensor:
        """Return each kept image's age, (N,) on the host: the number of images offered since, over the capacity."""
        return torch.tensor([entry.age / self._capacity for entry in self._entries])

    def _make_room(self, new: _Entry) -> bool:
        """Return whether *new* is accepted; if it replaces another entry, remove that entry and take its slot."""
        counts = [0] * self._num_classes
        for entry in self._entries:
            counts[entry.label] += 1
        if counts[new.label] >= self._capacity / self._num_classes:
            candidates = [entry for entry in self._entries if entry.label == new.label]
        elif len(self._entries) < self._capacity:
            return True
        else:
            candidates = [entry for entry in self._entries if counts[entry.label] == max(counts)]
        worst = max(candidates, key=self._score)
        if self._score(worst) <= self._score(new):
            return False
        self._entries.remove(worst)
        new.slot = worst.slot
        return True

    def _score(self, entry: _Entry) -> float:
        timeliness = 1 / (1 + math.exp(-entry.age / self._capacity))
        return self._lambda_t * timeliness + self._lambda_u * entry.uncertainty / math.log(self._num_classes)
