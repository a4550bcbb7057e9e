"""Checks of an image file's first and last bytes, which take microseconds and detect truncated files."""

import io
import pickle
import zipfile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from tta_pipeline.data.formats.npy_format import MAGIC, read_array_header

_JPEG, _PNG, _BMP, _RIFF = b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"BM", b"RIFF"
_PNG_END = b"IEND\xaeB`\x82"
_JPEG_END = b"\xff\xd9"
_ZIP = b"PK\x03\x04"
ARRAYS = frozenset({"npy", "pth"})
"""Encodings that `read_array` reads; `decode_with_pillow` decodes the others."""
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
_PNG_LEVEL = 1
"""PNG compression level: all are lossless; a higher level takes ten times as long and saves a few per cent."""
_JPEG_SCAN = 0xDA
_JPEG_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_UNCOMPRESSED_BMP = frozenset({0, 3, 6})
"""Compressions of a BMP whose size follows from its header: none, and bit fields."""
MAX_PIXELS = 50_000_000
"""Most pixels of an image: no dataset of this field comes near this limit, and decoding takes much memory."""


class ImageHeader(NamedTuple):
    """Encoding and size of an image. A plain tuple, because millions are read."""

    encoding: str
    height: int
    width: int


def read_image_header(data: bytes) -> ImageHeader:
    """Return encoding and size of the image file *data*.

    Raises:
        ValueError: *data* is not a JPEG, PNG, BMP, WebP, `.npy` or `.pth` file, ends early, or has more than
            `MAX_PIXELS`.
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
    if data.startswith((MAGIC, _ZIP)):
        return _array_header(data)
    raise ValueError(
        f"{len(data)} bytes that begin with {data[:12]!r}; expected a JPEG, PNG, BMP, WebP, .npy or .pth file"
    )


def _jpeg_header(data: bytes) -> ImageHeader:
    # This only reads the header, which a truncated file still has.
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    # Cameras, editors and download tools append bytes, even a film.
    if not data.endswith(_JPEG_END):
        _require(data.find(_JPEG_END, _first_scan(data)) > 0, "JPEG", data, "an end mark FF D9")
    return ImageHeader(encoding="jpeg", height=height, width=width)


def _first_scan(data: bytes) -> int:
    """Return where the first scan of a JPEG begins; a thumbnail before it has its own end mark."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != _JPEG_SCAN:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        else:
            at += 2 if marker in _JPEG_WITHOUT_LENGTH else 2 + _big(data[at + 2 : at + 4])
    return at


def _png_header(data: bytes) -> ImageHeader:
    _require(len(data) > 33 and data.rfind(_PNG_END) > 0, "PNG", data, "an IEND chunk")
    return ImageHeader(encoding="png", height=_big(data[20:24]), width=_big(data[16:20]))


def _bmp_header(data: bytes) -> ImageHeader:
    _require(len(data) >= 34, "BMP", data, "a header")
    if _little(data[14:18]) == 12:  # as OS/2 and Windows 2 wrote it
        width, height, depth, compression = _little(data[18:20]), _little(data[20:22]), _little(data[24:26]), 0
    else:
        width, height = _little(data[18:22]), abs(int.from_bytes(data[22:26], "little", signed=True))
        depth, compression = _little(data[28:30]), _little(data[30:34])
    # The size of the file in its header is often wrong, and no decoder needs it.
    pixels_bytes = (width * depth + 31) // 32 * 4 * height if compression in _UNCOMPRESSED_BMP else _little(data[34:38])
    size_bytes = _little(data[10:14]) + pixels_bytes
    _require(len(data) >= size_bytes, "BMP", data, f"{size_bytes} bytes")
    return ImageHeader(encoding="bmp", height=height, width=width)


def _webp_header(data: bytes) -> ImageHeader:
    _require(len(data) >= max(30, _little(data[4:8]) + 8), "WebP", data, f"{_little(data[4:8]) + 8} bytes")
    if data[12:16] == b"VP8X":
        return ImageHeader(encoding="webp", height=_little(data[27:30]) + 1, width=_little(data[24:27]) + 1)
    if data[12:16] == b"VP8L":
        bits = _little(data[21:25])
        return ImageHeader(encoding="webp", height=(bits >> 14 & 0x3FFF) + 1, width=(bits & 0x3FFF) + 1)
    return ImageHeader(encoding="webp", height=_little(data[28:30]) & 0x3FFF, width=_little(data[26:28]) & 0x3FFF)


def _array_header(data: bytes) -> ImageHeader:
    pixels = read_array(data)
    encoding = "npy" if data.startswith(MAGIC) else "pth"
    return ImageHeader(encoding=encoding, height=pixels.shape[0], width=pixels.shape[1])


def read_array(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the pixels, uint8 (H, W, 3), of the `.npy` or `.pth` file *data* without copying them.

    Raises:
        ValueError: see `read_npy` and `read_pth`.
    """
    return read_npy(data) if data.startswith(MAGIC) else read_pth(data)


def read_pth(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the pixels, uint8 (H, W, 3), of *data*, a tensor (3, H, W) that torch.save wrote.

    Raises:
        ValueError: *data* is truncated or compressed, or holds anything else; no code in *data* is ever executed.
    """
    import torch

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
                raise ValueError("the .pth file is compressed; expected an uncompressed file, as torch.save writes it")
        tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (EOFError, KeyError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        found = str(error).partition("\n")[0]
        raise ValueError(f"a .pth file without a plain tensor ({found}); expected uint8 (3, H, W)") from None
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.uint8 or tensor.ndim != 3 or len(tensor) != 3:
        is_tensor = isinstance(tensor, torch.Tensor)
        found = f"a tensor of {tensor.dtype} {tuple(tensor.shape)}" if is_tensor else f"a {type(tensor).__name__}"
        raise ValueError(f"{found} in a .pth file; expected uint8 (3, H, W)")
    pixels: npt.NDArray[np.uint8] = tensor.permute(1, 2, 0).numpy()
    return pixels


def read_npy(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the pixels, uint8 (H, W, 3), of the `.npy` file *data* without copying them.

    Raises:
        ValueError: *data* is truncated, or holds anything else; pickled objects are never read.
    """
    header = read_array_header(data)
    shape = header.shape
    if header.dtype != np.uint8 or header.is_fortran or len(shape) != 3 or shape[2] != 3:
        order = " in Fortran order" if header.is_fortran else ""
        raise ValueError(f"an array of dtype {header.dtype} and shape {shape}{order}; expected uint8 (H, W, 3)")
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


def encode_png(image: Image.Image) -> bytes:
    """Return *image* as a PNG file, without loss for every mode that PNG has; any other mode becomes RGB."""
    buffer = io.BytesIO()
    savable = image if image.mode in _PNG_MODES else image.convert("RGB")
    savable.save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue()


def _require(intact: object, encoding: str, data: bytes, expected: str) -> None:
    if not intact:
        raise ValueError(f"a cut {encoding} of {len(data)} bytes; expected {expected}")


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
