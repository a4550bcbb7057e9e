"""Image files to pixels. Nothing here, or anywhere in this project, executes what a shard contains."""

import numpy as np
import numpy.typing as npt
import simplejpeg

from tta_pipeline.images import ARRAYS, decode_with_pillow, read_array, read_image_header

_CONVERTED = ("YCbCr", "Gray", "RGB")
_JFIF, _TABLES, _JPEG_END = b"\xff\xd8\xff\xe0", b"\xff\xdb", b"\xff\xd9"


def decode_into(data: bytes, out: npt.NDArray[np.uint8]) -> None:
    """Decode the image file *data* into *out*, uint8 (H, W, 3) RGB, contiguous.

    JPEG is decoded by libjpeg-turbo with its default, exact settings: these are the pixels that Pillow gives.

    Raises:
        ValueError: *data* is not an image of *out*'s size, or is damaged.
    """
    # Nearly all files have a JFIF header, then tables, and an end mark. JFIF is grey or YCbCr by definition, so this
    # check saves parsing the header: microseconds in which the other threads wait for this one.
    is_plain = data.startswith(_JFIF) and data.startswith(_TABLES, 20) and data.endswith(_JPEG_END)
    if not (is_plain and _decode_jpeg_into(data, out)):
        _decode_any_into(data, out)


def _decode_any_into(data: bytes, out: npt.NDArray[np.uint8]) -> None:
    header = read_image_header(data)
    if (header.height, header.width) != out.shape[:2]:
        raise ValueError(f"an image of {header.height}x{header.width} pixels; expected {out.shape[0]}x{out.shape[1]}")
    if header.encoding in ARRAYS:
        out[...] = read_array(data)
        return
    is_converted = header.encoding == "jpeg" and simplejpeg.decode_jpeg_header(data)[2] in _CONVERTED
    if not (is_converted and _decode_jpeg_into(data, out)):
        out[...] = np.asarray(decode_with_pillow(data))


def _decode_jpeg_into(data: bytes, out: npt.NDArray[np.uint8]) -> bool:
    """Return whether *data* is now in *out*: false if it has another size or libjpeg gives up on it."""
    try:
        # Not strict: a few published images have harmless faults that Pillow ignores, and hashes guard the rest.
        return bool(simplejpeg.decode_jpeg(data, "rgb", buffer=out, strict=False).shape == out.shape)
    except ValueError:
        return False
