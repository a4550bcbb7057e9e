"""Shared parts of the sources of generated images: the encoding of an image, and the version of the generator."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

GENERATOR_VERSION = 2
"""Version of the corruptions and their pre- and postprocessing; raised when the same settings give other bytes."""

SUFFIXES = (".npy", ".JPEG")
"""Suffixes of lossless files and of JPEG files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """Storage format of an image."""

    jpeg_quality: int | None
    """JPEG quality; None: lossless, as an array, because decoding an `.npy` file is ten times as fast as a PNG."""

    @property
    def suffix(self) -> str:
        """Suffix of the files' names."""
        return SUFFIXES[self.jpeg_quality is not None]

    def encode(self, pixels: npt.NDArray[np.uint8]) -> bytes:
        """Return the file of an image, uint8 (H, W, 3) RGB; JPEG options are the same as in the generator scripts."""
        buffer = io.BytesIO()
        if self.jpeg_quality is None:
            contiguous: npt.NDArray[Any] = np.ascontiguousarray(pixels)
            np.save(buffer, contiguous, allow_pickle=False)
        else:
            Image.fromarray(pixels).save(buffer, "JPEG", quality=self.jpeg_quality, optimize=True)
        return buffer.getvalue()


def randomness_key(name: str) -> str:
    """Return the key of the random numbers for the image *name*, given without suffix.

    The key ends like the file names of ImageNet-C for every encoding, so the encoding does not change the noise.
    """
    return f"{name}.JPEG"
