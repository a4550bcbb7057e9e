"""What the sources of generated images share: how an image is stored, and when all images are made again."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

GENERATOR_VERSION = 2
"""Version of the corruptions and of the steps before and after them; raised when the same settings give other bytes."""

SUFFIXES = (".npy", ".JPEG")
"""Suffix of files stored losslessly, and of JPEG files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """How an image is stored."""

    jpeg_quality: int | None
    """JPEG quality; None: lossless, as an array, since an `.npy` file is decoded ten times as fast as a PNG."""

    @property
    def suffix(self) -> str:
        """Suffix of the files' names."""
        return SUFFIXES[self.jpeg_quality is not None]

    def file(self, pixels: npt.NDArray[np.uint8]) -> bytes:
        """Return the file of an image, uint8 (H, W, 3) RGB; a JPEG is saved as the generator scripts save theirs."""
        buffer = io.BytesIO()
        if self.jpeg_quality is None:
            contiguous: npt.NDArray[Any] = np.ascontiguousarray(pixels)
            np.save(buffer, contiguous, allow_pickle=False)
        else:
            Image.fromarray(pixels).save(buffer, "JPEG", quality=self.jpeg_quality, optimize=True)
        return buffer.getvalue()


def randomness_key(name: str) -> str:
    """Return what determines, with seed and cell, the random numbers of the image *name*, which has no suffix.

    The key ends like the file names of ImageNet-C, however the image is stored: the encoding does not change the noise.
    """
    return f"{name}.JPEG"
