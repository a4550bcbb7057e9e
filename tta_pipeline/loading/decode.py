"""Decode image files to pixels. Nothing here, or anywhere in this project, executes code from a shard."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg

from tta_pipeline.data.image_bytes import ARRAYS, ImageHeader, decode_with_pillow, read_array, read_image_header

_CONVERTED = ("YCbCr", "Gray", "RGB")
_REDUCTIONS = (8, 4, 2)
"""Reductions for which libjpeg-turbo has vector code; any other takes longer than decoding everything."""
_ROWS_AROUND = 4
"""Extra rows below the last row that is needed, since colours are stored at half size and interpolated between rows."""
_MARKER, _START_OF_SCAN, _SEQUENTIAL = 0xFF, 0xDA, (0xC0, 0xC1)
_JFIF, _TABLES, _JPEG_END = b"\xff\xd8\xff\xe0", b"\xff\xdb", b"\xff\xd9"


class WrongSizeError(ValueError):
    """The size of an image differs from the benchmark's images."""


def decode_into(data: bytes, out: npt.NDArray[np.uint8]) -> None:
    """Decode the image file *data* into *out*, uint8 (H, W, 3) RGB, contiguous.

    JPEG is decoded by libjpeg-turbo with its default, exact settings, which produce the same pixels as Pillow.

    Raises:
        WrongSizeError: *data* is not an image of *out*'s size.
        ValueError: *data* is not an image, or is damaged.
    """
    # Nearly all files have a JFIF header, then tables, and an end mark. JFIF is grey or YCbCr by definition. So this
    # check replaces parsing the header, which takes microseconds while the other threads wait for this one.
    is_plain = data.startswith(_JFIF) and data.startswith(_TABLES, 20) and data.endswith(_JPEG_END)
    if not (is_plain and _decode_jpeg_into(data, out)):
        _decode_any_into(data, out)


def _decode_any_into(data: bytes, out: npt.NDArray[np.uint8]) -> None:
    header = read_image_header(data)
    if (header.height, header.width) != out.shape[:2]:
        height, width = out.shape[:2]
        raise WrongSizeError(
            f"an image of {header.height}x{header.width} pixels; expected {height}x{width}, the image_size of the "
            f"benchmark file: {_fitting_remedy(header.height, header.width, expected=min(height, width))}"
        )
    if header.encoding in ARRAYS:
        out[...] = read_array(data)
        return
    if not (_is_convertible(data, header) and _decode_jpeg_into(data, out)):
        out[...] = np.asarray(decode_with_pillow(data))


def _fitting_remedy(height: int, width: int, *, expected: int) -> str:
    """Return what the user can do with an image of *height* x *width* pixels if its sides must be *expected*."""
    fitting = f"set `resize: {expected * 8 // 7}` and `center_crop: {expected}` under shards"
    return f"set `image_size: {height}`, or {fitting}" if height == width else fitting


class Rows(NamedTuple):
    """The upper rows of an image."""

    pixels: npt.NDArray[np.uint8]
    """Pixels, uint8 (H, W, 3) RGB."""
    reduction: int
    """Number by which both sides were divided, rounding up: 1, 2, 4 or 8."""


def decode_rows(data: bytes, header: ImageHeader, *, end: int, most_reduction: float = 1) -> Rows:
    """Decode the image file *data* from the top down to row *end*; the result may have more rows.

    In a JPEG file, the data after these rows are not decoded. As far as *most_reduction* allows, libjpeg-turbo also
    reduces a JPEG image while it decodes, and so computes fewer pixels.

    Args:
        data: Image file.
        header: Its header.
        end: Row after the last one that is needed, in the file's own size.
        most_reduction: Largest number by which both sides may be divided.

    Raises:
        ValueError: *data* is damaged.
    """
    if header.encoding in ARRAYS:
        return Rows(read_array(data), 1)
    if _is_convertible(data, header):
        reduction = next((number for number in _REDUCTIONS if number <= most_reduction), 1)
        upper, height, width = data, header.height, header.width
        needed = end + _ROWS_AROUND * reduction
        if needed < height and (cut := _replace_height(data, needed)) is not None:
            upper, height = cut, needed
        try:
            pixels = simplejpeg.decode_jpeg(
                upper, "rgb", min_height=-(-height // reduction), min_width=-(-width // reduction), strict=False
            )
        except ValueError:
            pass
        else:
            return Rows(pixels, reduction)
    return Rows(np.asarray(decode_with_pillow(data)), 1)


def _replace_height(data: bytes, height: int) -> bytes | None:
    """Return the JPEG file *data* with *height* in its header; None if it does not store one row after another."""
    start = 2
    while start + 7 < len(data) and data[start] == _MARKER and data[start + 1] != _START_OF_SCAN:
        if data[start + 1] in _SEQUENTIAL:
            return data[: start + 5] + height.to_bytes(2, "big") + data[start + 7 :]
        start += 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    return None


def _is_convertible(data: bytes, header: ImageHeader) -> bool:
    """Return whether *data* is a JPEG file, and libjpeg-turbo converts its colours to RGB as Pillow does."""
    return header.encoding == "jpeg" and simplejpeg.decode_jpeg_header(data)[2] in _CONVERTED


def _decode_jpeg_into(data: bytes, out: npt.NDArray[np.uint8]) -> bool:
    """Decode *data* into *out*, and return whether this worked; it fails for another size or if libjpeg gives up."""
    try:
        # Not strict: a few published images have harmless faults that Pillow ignores, and hashes guard the rest.
        return bool(simplejpeg.decode_jpeg(data, "rgb", buffer=out, strict=False).shape == out.shape)
    except ValueError:
        return False
