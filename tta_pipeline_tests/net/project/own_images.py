"""A function that changes images, for `transforms` of a benchmark file and `tta-pipeline shards transform`."""

import numpy as np
import numpy.typing as npt


def grey(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return *image*, (H, W, 3), without its colours."""
    return np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8)
