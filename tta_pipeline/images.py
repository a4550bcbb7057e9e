"""Checks of an image file's first and last bytes: they take microseconds and find every cut file."""

import io
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from tta_pipeline.npy_format import MAGIC, read_array_header

_JPEG, _PNG, _BMP, _RIFF = b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"BM", b"RIFF"
_PNG_END = b"IEND\xaeB`\x82"
_JPEG_END = b"\xff\xd9"
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
# Cameras and editors append padding; the end mark may lie this far before the end of the file.
_TRAILER_BYTES = 4096
MAX_PIXELS = 50_000_000
"""Pixels of the largest image that is read: nothing in this field comes near it, and decoding takes much memory."""


class ImageHeader(NamedTuple):
    """What the header of an image says. A plain tuple, because millions are read."""

    encoding: str
    height: int
    width: int


def read_image_header(data: bytes) -> ImageHeader:
    """Return encoding and size of the image file *data*.

    Raises:
        ValueError: *data* is not a JPEG, PNG, BMP, WebP or `.npy` file, ends early, or has more than `MAX_PIXELS`.
    """
    header = _header_by_signature(data)
    if not 0 < header.height * header.width <= MAX_PIXELS:
        raise ValueError(f"{header.height}x{header.width} pixels; expected 1 to {MAX_PIXELS}")
    return header


def _header_by_signature(data: bytes) -> ImageHeader:
    if data.startswith(_JPEG):
        return _jpeg_header(data)
    if data.startswith(_PNG):
        return _png_header(data)
    if data.startswith(_BMP):
        return _bmp_header(data)
    if data.startswith(_RIFF) and data[8:12] == b"WEBP":
        return _webp_header(data)
    if data.startswith(MAGIC):
        return _npy_header(data)
    raise ValueError(f"{len(data)} bytes that begin with {data[:12]!r}; expected a JPEG, PNG, BMP or WebP file")


def _jpeg_header(data: bytes) -> ImageHeader:
    # This reads the header alone, which a cut file still has.
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    if not data.endswith(_JPEG_END):
        _require(data.find(_JPEG_END, max(2, len(data) - _TRAILER_BYTES)) > 0, "JPEG", data, "an end mark FF D9")
    return ImageHeader(encoding="jpeg", height=height, width=width)


def _png_header(data: bytes) -> ImageHeader:
    _require(len(data) > 33 and _PNG_END in data[-_TRAILER_BYTES:], "PNG", data, "an IEND chunk")
    return ImageHeader(encoding="png", height=_big(data[20:24]), width=_big(data[16:20]))


def _bmp_header(data: bytes) -> ImageHeader:
    _require(len(data) >= max(26, _little(data[2:6])), "BMP", data, f"{_little(data[2:6])} bytes")
    height = int.from_bytes(data[22:26], "little", signed=True)
    return ImageHeader(encoding="bmp", height=abs(height), width=_little(data[18:22]))


def _webp_header(data: bytes) -> ImageHeader:
    _require(len(data) >= max(30, _little(data[4:8]) + 8), "WebP", data, f"{_little(data[4:8]) + 8} bytes")
    if data[12:16] == b"VP8X":
        return ImageHeader(encoding="webp", height=_little(data[27:30]) + 1, width=_little(data[24:27]) + 1)
    if data[12:16] == b"VP8L":
        bits = _little(data[21:25])
        return ImageHeader(encoding="webp", height=(bits >> 14 & 0x3FFF) + 1, width=(bits & 0x3FFF) + 1)
    return ImageHeader(encoding="webp", height=_little(data[28:30]) & 0x3FFF, width=_little(data[26:28]) & 0x3FFF)


def _npy_header(data: bytes) -> ImageHeader:
    pixels = read_npy(data)
    return ImageHeader(encoding="npy", height=pixels.shape[0], width=pixels.shape[1])


def read_npy(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the pixels, uint8 (H, W, 3), of the `.npy` file *data* without copying them.

    Raises:
        ValueError: *data* is cut, or holds something else; pickled objects are never read.
    """
    header = read_array_header(data)
    shape = header.shape
    if header.dtype != np.uint8 or header.is_fortran or len(shape) != 3 or shape[2] != 3:
        raise ValueError(f"an array of {header.dtype} {shape}; expected uint8 (H, W, 3)")
    _require(len(data) - header.offset == header.size_bytes, "npy", data, f"{header.size_bytes} bytes of pixels")
    return np.frombuffer(data, np.uint8, offset=header.offset).reshape(shape)


def decode_with_pillow(data: bytes) -> Image.Image:
    """Return the image file *data* decoded to RGB.

    Raises:
        ValueError: *data* is damaged, or is not a JPEG, PNG, BMP or WebP file.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"a damaged image ({error}); expected one that can be decoded") from error


def _require(intact: object, encoding: str, data: bytes, expected: str) -> None:
    if not intact:
        raise ValueError(f"a cut {encoding} of {len(data)} bytes; expected {expected}")


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
