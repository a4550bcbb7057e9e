"""A whole image is told from a cut one by its bytes, whatever follows it."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from tta_pipeline.data.image_bytes import read_image_header

TRAILERS = {"nothing": b"", "padding": bytes(6_000), "a film": b"\xff\xfb" * 50_000}


def encoded(kind: str, mode: str = "RGB", **options: object) -> bytes:
    """Return a picture of 23x37 pixels; the JPEG has a thumbnail with an end mark of its own."""
    pixels = np.random.default_rng(0).integers(0, 256, (23, 37, 3), np.uint8)
    buffer = io.BytesIO()
    if kind == "JPEG":
        options["exif"] = with_thumbnail()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def with_thumbnail() -> bytes:
    """Return EXIF data that ends with a whole small JPEG."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    return Image.Exif().tobytes() + buffer.getvalue()


@pytest.mark.parametrize("trailer", TRAILERS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP"])
def test_bytes_after_an_image_are_no_damage(kind: str, trailer: str):
    """Cameras append films, and download tools padding."""
    header = read_image_header(encoded(kind) + TRAILERS[trailer])

    assert (23, 37) == (header.height, header.width)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP"])
@pytest.mark.parametrize("share", [0.8, 0.95, 0.999])
def test_a_cut_image_is_refused(kind: str, share: float):
    """Its length is in the message."""
    whole = encoded(kind)
    cut = whole[: int(len(whole) * share)]

    with pytest.raises(ValueError, match=f"{len(cut)} bytes"):
        read_image_header(cut)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_the_pixels_of_a_bmp_count_and_not_its_size_field(mode: str):
    """Some programs write another size there, which no decoder asks for."""
    whole = encoded("BMP", mode)
    odd = whole[:2] + (len(whole) + 2).to_bytes(4, "little") + whole[6:]

    assert (23, 37) == (read_image_header(odd).height, read_image_header(odd).width)
    with pytest.raises(ValueError, match=f"{len(whole) - 1} bytes"):
        read_image_header(whole[:-1])


def test_every_form_of_a_header_says_how_large_the_image_is():
    """WebP without loss and with a thumbnail, a BMP of Windows 2, and a JPEG with a byte that fills."""
    pixels = bytes(112 * 23)
    filled = encoded("JPEG").replace(b"\xff\xd8", b"\xff\xd8\xff", 1)
    wholes = (
        encoded("WEBP", lossless=True),
        encoded("WEBP", exif=with_thumbnail()),
        struct.pack("<2s4I4H", b"BM", 26 + len(pixels), 0, 26, 12, 37, 23, 1, 24) + pixels,
        filled + bytes(6_000),
    )
    for whole in wholes:
        assert (23, 37) == (read_image_header(whole).height, read_image_header(whole).width)
    for cut in (*(whole[:-1] for whole in wholes[:3]), filled[:-1]):
        with pytest.raises(ValueError, match=f"{len(cut)} bytes"):
            read_image_header(cut)
