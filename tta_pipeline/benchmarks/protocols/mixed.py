"""Protocols whose streams have all corruptions of a severity in one segment, at once or in parts that come back."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tta_pipeline.benchmarks.protocols.stream_protocol import SampleOrder, Samples, StreamProtocol
from tta_pipeline.domain.ordering import Indices, random_generator


@dataclass(frozen=True, kw_only=True)
class Mixed(StreamProtocol):
    """All corruptions of a severity at once, shuffled (SAR)."""

    usual_order: ClassVar[str] = "shuffled"


@dataclass(frozen=True, kw_only=True)
class Dynamic(StreamProtocol):
    """All corruptions of a severity, each in parts of random length that come back, in random order (DPCore).

    The first parts of all cells come first, in an order drawn for them, then the second parts, and so on; a part may be
    empty. The lengths of a cell's parts are its share of a draw that is uniform over all cuts. This is CDC ("continual
    dynamic change") as in the code of Zhang et al. 2025, "DPCore: dynamic prompt coreset for continual test-time
    adaptation", which cuts at whole batches.
    """

    takes_unknown: ClassVar[bool] = False
    visits: int

    def order(self, samples: Samples, within: SampleOrder, *, seed: int) -> Indices:
        """Return the samples of all cells, each cell's in the order *within*, across its parts."""
        domains = [
            positions[within.order(own, seed=seed)]
            for positions, own in (samples.of_cell(number) for number in range(len(samples.cells)))
        ]
        rng = random_generator(seed)
        shares = [rng.dirichlet(np.ones(self.visits)) for _ in domains]
        parts = [
            np.split(domain, np.rint(np.cumsum(share)[:-1] * len(domain)).astype(int))
            for domain, share in zip(domains, shares, strict=True)
        ]
        return np.concatenate(
            [parts[number][visit] for visit in range(self.visits) for number in rng.permutation(len(domains)).tolist()]
        )
