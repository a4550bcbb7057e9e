"""The protocol whose severity rises and falls sample by sample."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tta_pipeline.benchmarks.protocols.stream_protocol import Partition, SampleOrder, Samples, StreamProtocol
from tta_pipeline.domain.ordering import Indices, permuted, random_generator
from tta_pipeline.errors import StreamError


@dataclass(frozen=True, kw_only=True)
class Slow(StreamProtocol):
    """Each image once per corruption, while the severity rises and falls sample by sample.

    As in CCC (Press et al. 2023, "RDumb", section 3), neighbours differ little: between two severities, the stream
    mixes both in shifting proportions. The severities are existing cells, so no image is generated.
    """

    partitioned_by: ClassVar[Partition] = "nothing"
    usual_order: ClassVar[str] = "slow"
    only_usual_because: ClassVar[str] = "the severities define the order"
    has_every_sample: ClassVar[bool] = False
    takes_unknown: ClassVar[bool] = False

    def order(self, samples: Samples, within: SampleOrder, *, seed: int) -> Indices:  # noqa: ARG002 - there is no other
        """Return a sample of each image of each corruption; *seed* draws the images' order, and between severities.

        Raises:
            StreamError: an image of a corruption is missing at some severity, or there are so few images that none is
                drawn at a severity.
        """
        corruptions = list(dict.fromkeys(cell.corruption for cell in samples.cells))
        groups = np.array([corruptions.index(cell.corruption) for cell in samples.cells])[samples.cell_numbers]
        levels = np.array([cell.severity for cell in samples.cells])[samples.cell_numbers]
        names, rng, stretches = samples.source_names, random_generator(seed), list[Indices]()
        ranked = permuted(samples.keys, seed=seed)
        for group in range(int(groups.max()) + 1):
            members = ranked[groups[ranked] == group]
            order = list(dict.fromkeys(names[member] for member in members.tolist()))
            place = {(names[member], int(levels[member])): member for member in members.tolist()}
            steps = np.unique(levels[members])
            height = (1 - np.abs(np.linspace(-1, 1, len(order)))) * (len(steps) - 1)
            drawn = steps[np.minimum(np.floor(height + rng.random(len(order))).astype(int), len(steps) - 1)]
            if unreached := set(steps.tolist()) - set(drawn.tolist()):
                raise StreamError(
                    f"{len(order)} images of {corruptions[group]} are too few for a slow stream: none is drawn at "
                    f"severity {', '.join(map(str, sorted(unreached)))}; expected images at each severity: take "
                    "more in subset, or list fewer severities"
                )
            try:
                found = [place[name, level] for name, level in zip(order, drawn.tolist(), strict=True)]
            except KeyError as error:
                raise StreamError(
                    f"The sample {error.args[0]} (image and severity) is missing; expected every image at every "
                    "severity"
                ) from None
            stretches.append(np.array(found, np.int64))
        return np.concatenate(stretches)
