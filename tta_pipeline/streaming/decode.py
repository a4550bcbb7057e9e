"""Image files to pixels. Nothing here, or anywhere in this project, executes what a shard contains."""

import numpy as np
import numpy.typing as npt
import simplejpeg

from tta_pipeline.shards.images import decode_with_pillow, read_image_header, read_npy


def decode_into(data: bytes | memoryview, out: npt.NDArray[np.uint8]) -> None:
    """Decode the image file *data* into *out*, uint8 (H, W, 3) RGB, contiguous.

    JPEG by libjpeg-turbo with its default, exact settings: the pixels that Pillow gives.

    Raises:
        ValueError: *data* is no image of *out*'s size, or is damaged.
    """
    data = bytes(data)
    header = read_image_header(data)
    if (header.height, header.width) != out.shape[:2]:
        raise ValueError(f"an image of {header.height}x{header.width} pixels; expected {out.shape[0]}x{out.shape[1]}")
    if header.encoding == "jpeg" and simplejpeg.decode_jpeg_header(data)[2] in ("YCbCr", "Gray", "RGB"):
        # Not strict: a few published images have harmless faults that Pillow passes over, and hashes guard the rest.
        simplejpeg.decode_jpeg(data, "RGB", buffer=out, strict=False)
    elif header.encoding == "npy":
        out[...] = read_npy(data)
    else:
        out[...] = np.asarray(decode_with_pillow(data))
