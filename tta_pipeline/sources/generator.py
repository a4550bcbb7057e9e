"""What the sources of images made here share: how an image is stored, and when all are made again."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

GENERATOR_VERSION = 2
"""Counts the changes to the corruptions, and to what is done before and after them, that give other bytes for the same
settings."""

SUFFIXES = (".npy", ".JPEG")
"""Of files stored lossless, and of JPEG files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """How an image is stored."""

    jpeg_quality: int | None
    """None: lossless, as the array that it is. An `.npy` file is decoded ten times as fast as a PNG."""

    @property
    def suffix(self) -> str:
        """Of the files' names."""
        return SUFFIXES[self.jpeg_quality is not None]

    def file(self, pixels: npt.NDArray[np.uint8]) -> bytes:
        """Return the file of an image, uint8 (H, W, 3) RGB; a JPEG as the generator scripts save theirs."""
        buffer = io.BytesIO()
        if self.jpeg_quality is None:
            contiguous: npt.NDArray[Any] = np.ascontiguousarray(pixels)
            np.save(buffer, contiguous, allow_pickle=False)
        else:
            Image.fromarray(pixels).save(buffer, "JPEG", quality=self.jpeg_quality, optimize=True)
        return buffer.getvalue()


def randomness_key(name: str) -> str:
    """Return what decides the random numbers of the image *name*, without suffix, besides seed and cell.

    It ends as the files of ImageNet-C do, however the image is stored: another encoding is no other noise.
    """
    return f"{name}.JPEG"
