"""Natural-looking JPEG files for measurements: noise whose power falls with frequency, as in photographs."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from tta_pipeline.util.progress import Reporter, quiet_reporter

NUM_CLASSES = 200


def make_jpeg_tree(
    root: Path,
    *,
    num_images: int,
    size: int,
    height: int | None = None,
    quality: int = 85,
    copies: int = 1,
    progress: Reporter = quiet_reporter,
) -> Path:
    """Write *num_images* images in class folders under *root*, unless they exist, and return *root*.

    The images are *size* pixels wide and *height* pixels high; without *height*, they are square. Each image is written
    *copies* times under different names, so that a measurement takes long enough.
    """
    done = root / ".complete"
    if not done.exists():
        report = progress("images to measure on", num_images)
        for number, data in enumerate(_jpegs(num_images, size, height or size, quality)):
            report.advance(1, len(data))
            folder = root / f"n{number % NUM_CLASSES:08d}"
            folder.mkdir(parents=True, exist_ok=True)
            for copy in range(copies):
                (folder / f"ILSVRC2012_val_{copy}{number:07d}.JPEG").write_bytes(data)
        done.touch()
    return root


def _jpegs(num_images: int, size: int, height: int, quality: int) -> Iterator[bytes]:
    rng = np.random.default_rng(0)
    return (_jpeg(_photograph(rng, size)[:height], quality) for _ in range(num_images))


def _photograph(rng: np.random.Generator, size: int) -> npt.NDArray[np.uint8]:
    frequencies = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None])
    frequencies[0, 0] = 1 / size
    spectrum = np.fft.rfft2(rng.standard_normal((3, size, size))) / frequencies**1.25
    colours = np.fft.irfft2(spectrum, s=(size, size))
    # The channels of photographs are similar.
    colours = 0.85 * colours[:1] + 0.15 * colours
    colours = (colours - colours.mean()) / colours.std() * 55 + 120
    pixels: npt.NDArray[np.uint8] = np.clip(colours, 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return pixels


def _jpeg(pixels: npt.NDArray[np.uint8], quality: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
