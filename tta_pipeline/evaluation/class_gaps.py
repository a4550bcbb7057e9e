"""The sums behind class-wise calibration, over all classes of each sample, without a copy of all probabilities."""

import math

import numpy as np
import numpy.typing as npt
import torch

from tta_pipeline.evaluation.calibration import NUM_BINS
from tta_pipeline.loading.joined_sets import JoinedSets
from tta_pipeline.shards.ordering import Indices
from tta_pipeline.shards.shard_set import ShardSet

_ONE = 2**30
"""One, as the sums count it: the sum of whole numbers does not depend on their order, which a GPU leaves to chance."""


class ClassGaps:
    """Sums, over the known samples of each cell, of a class's probability minus whether it is the sample's class.

    A sample is in one of 15 bins for each class, by the probability of that class. The sums stay on the device.
    """

    def __init__(self, samples: ShardSet | JoinedSets) -> None:
        self._joined = samples if isinstance(samples, JoinedSets) and len(samples.known_sets) > 1 else None
        self._num_cells = len(self._joined.known_sets) if self._joined else 1
        self._sums: torch.Tensor | None = None
        self._shape = (self._num_cells, 0, NUM_BINS)

    def add(self, log_probabilities: torch.Tensor, labels: torch.Tensor, indices: Indices) -> None:
        """Add a batch of *log_probabilities*, float32 (B, K), with *labels*, int64 (B,), at *indices*, (B,)."""
        device, num_classes = log_probabilities.device, log_probabilities.shape[1]
        if self._sums is None:
            self._shape = (self._num_cells, num_classes, NUM_BINS)
            self._sums = torch.zeros(math.prod(self._shape), dtype=torch.int64, device=device)
        labels = labels.to(device, non_blocking=True)[:, None]
        probabilities = log_probabilities.exp().nan_to_num(0.0)
        bins = (probabilities * NUM_BINS).ceil().long().sub(1).clamp(0, NUM_BINS - 1)
        places = bins + NUM_BINS * torch.arange(num_classes, device=device)
        if self._joined is not None:
            # The number of an unknown sample's cell is above those of the known ones; it adds 0 to any.
            cells = torch.from_numpy(self._joined.set_numbers(indices) % self._num_cells)
            places = places + NUM_BINS * num_classes * cells.to(device, non_blocking=True)[:, None]
        gaps = (probabilities * _ONE).round().long()
        gaps = gaps.scatter_add(1, labels.clamp(min=0), torch.full_like(labels, -_ONE)) * (labels >= 0)
        self._sums.index_add_(0, places.flatten(), gaps.flatten())

    def fetch(self) -> npt.NDArray[np.float64]:
        """Return the sums, shape (C, K, 15), with a row for each cell."""
        assert self._sums is not None, "no batch was added"
        return self._sums.reshape(self._shape).cpu().numpy() / _ONE
