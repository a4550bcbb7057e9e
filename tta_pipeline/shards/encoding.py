"""What is done to an image on its way into a shard: nothing, unless the settings ask for it."""

import io
from collections.abc import Callable

import numpy as np
import simplejpeg
from PIL import Image

from tta_pipeline.benchmarks.spec import ShardSettings
from tta_pipeline.shards.images import decode_with_pillow, read_image_header

_COLOURS = {"Gray": "GRAY", "CMYK": "CMYK", "YCCK": "CMYK"}
Encode = Callable[[bytes], bytes]


def encoder(settings: ShardSettings) -> Encode:
    """Return the function that makes the stored bytes of an image file, raising ValueError for a damaged one."""
    if settings.changes_images:
        return lambda data: _encoded(data, settings)
    return _decoded_and_kept if settings.decode_all else _kept


def stored_extension(file_name: str, settings: ShardSettings) -> str:
    """Return *file_name* with the extension of what is stored."""
    if not settings.changes_images:
        return file_name
    stem = file_name.rpartition(".")[0] or file_name
    return f"{stem}.npy" if settings.format == "tensor" else f"{stem}.JPEG"


def _kept(data: bytes) -> bytes:
    read_image_header(data)
    return data


def _decoded_and_kept(data: bytes) -> bytes:
    if read_image_header(data).encoding == "jpeg":
        # Strict: it also names what Pillow decodes to grey in silence.
        simplejpeg.decode_jpeg(data, _COLOURS.get(simplejpeg.decode_jpeg_header(data)[2], "RGB"), strict=True)
    else:
        decode_with_pillow(data)
    return data


def _encoded(data: bytes, settings: ShardSettings) -> bytes:
    read_image_header(data)
    image = _cropped(_resized(decode_with_pillow(data), settings.resize), settings.center_crop)
    buffer = io.BytesIO()
    if settings.format == "tensor":
        np.save(buffer, np.asarray(image), allow_pickle=False)
    else:
        image.save(buffer, "JPEG", quality=settings.quality)
    return buffer.getvalue()


def _resized(image: Image.Image, shorter_side: int | None) -> Image.Image:
    """Resize as torchvision's Resize does: bilinear, antialiased, the longer side rounded down."""
    if shorter_side is None:
        return image
    width, height = image.size
    if width <= height:
        return image.resize((shorter_side, int(shorter_side * height / width)), Image.Resampling.BILINEAR)
    return image.resize((int(shorter_side * width / height), shorter_side), Image.Resampling.BILINEAR)


def _cropped(image: Image.Image, size: int | None) -> Image.Image:
    """Crop the centre as torchvision's CenterCrop does."""
    if size is None:
        return image
    if min(image.size) < size:
        raise ValueError(f"an image of {image.height}x{image.width} pixels; expected at least {size} for the crop")
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))
