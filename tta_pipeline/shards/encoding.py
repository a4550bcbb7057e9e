"""Processing of an image before it is stored in a shard, if the settings require it."""

import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.image_bytes import ARRAYS, decode_with_pillow, read_array, read_image_header
from tta_pipeline.errors import ShardError
from tta_pipeline.util.own_code import describe_raised, place_of
from tta_pipeline.util.user_functions import load_function

_COLOURS = {"Gray": "GRAY", "CMYK": "CMYK", "YCCK": "CMYK"}
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
Encode = Callable[[bytes], bytes]


def encoder(settings: ShardSettings) -> Encode:
    """Return the function from an image file to its stored bytes; it raises ValueError for a damaged image."""
    if settings.changes_images:
        return lambda data: _encode(data, settings)
    return _decode_and_keep if settings.decode_all else _keep


def stored_extension(file_name: str, settings: ShardSettings) -> str:
    """Return *file_name* with the extension of the stored file."""
    if not settings.changes_images:
        return file_name if settings.suffix is None else _plain_extension(file_name)
    stem = file_name.rpartition(".")[0] or file_name
    if settings.format == "tensor":
        return f"{stem}.npy"
    return f"{stem}.{settings.suffix or 'JPEG'}"


def _plain_extension(file_name: str) -> str:
    """Return *file_name* with its extension in lower case, and `jpg` for `jpeg`."""
    stem, dot, extension = file_name.rpartition(".")
    plain = "jpg" if extension.lower() == "jpeg" else extension.lower()
    return f"{stem}{dot}{plain}" if dot else file_name


def _keep(data: bytes) -> bytes:
    read_image_header(data)
    return data


def _decode_and_keep(data: bytes) -> bytes:
    if read_image_header(data).encoding == "jpeg":
        # Strict: this also reports damage that Pillow silently decodes to grey.
        simplejpeg.decode_jpeg(data, _COLOURS.get(simplejpeg.decode_jpeg_header(data)[2], "RGB"), strict=True)
    else:
        _decode(data)
    return data


def _encode(data: bytes, settings: ShardSettings) -> bytes:
    changed = _apply_function(_decode(data), settings.function)
    resized = _resize(changed, settings.resize, _FILTERS[settings.interpolation])
    image = _crop_centre(resized, settings.center_crop)
    buffer = io.BytesIO()
    if settings.format == "tensor":
        np.save(buffer, np.asarray(image), allow_pickle=False)
    else:
        image.save(buffer, "JPEG", quality=settings.quality)
    return buffer.getvalue()


def _decode(data: bytes) -> Image.Image:
    """Return the pixels of an image file, or of a tensor in a shard."""
    if read_image_header(data).encoding in ARRAYS:
        return Image.fromarray(np.ascontiguousarray(read_array(data)))
    return decode_with_pillow(data)


def _apply_function(image: Image.Image, reference: str | None) -> Image.Image:
    """Return *image* after the user's function, which gets a copy that it may change."""
    if reference is None:
        return image
    function = load_function(reference)
    try:
        pixels: npt.NDArray[np.uint8] = function(np.array(image))
    except Exception as error:  # whatever a user's function raises
        raise ShardError(
            f"{reference} raised {describe_raised(error)} for an image of {image.height}x{image.width} pixels; "
            "expected a uint8 array of shape (H, W, 3): fix this function"
        ) from error
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise ShardError(
            f"{reference}{place_of(function)} returned {found}; expected a uint8 array of shape (H, W, 3): change its "
            "return value"
        )
    if not pixels.size:
        raise ShardError(
            f"{reference} returned an array of shape {pixels.shape}; expected at least one pixel: change its return "
            "value"
        )
    return Image.fromarray(pixels)


def _resize(image: Image.Image, shorter_side: int | None, interpolation: Image.Resampling) -> Image.Image:
    """Resize like torchvision's Resize: antialiased, with the longer side rounded down."""
    if shorter_side is None:
        return image
    width, height = image.size
    if width <= height:
        return image.resize((shorter_side, int(shorter_side * height / width)), interpolation)
    return image.resize((int(shorter_side * width / height), shorter_side), interpolation)


def _crop_centre(image: Image.Image, size: int | None) -> Image.Image:
    """Crop the centre like torchvision's CenterCrop."""
    if size is None:
        return image
    if min(image.size) < size:
        raise ValueError(
            f"an image of {image.height}x{image.width} pixels; expected at least {size} pixels on each side for "
            "center_crop"
        )
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))
