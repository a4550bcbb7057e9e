"""Images that Python code yields: their check, and the bytes of their files."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from PIL import Image

from tta_pipeline.data.image_bytes import encode_png
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.identifiers import require_unicode
from tta_pipeline.util.short_lists import short_repr

Content = bytes | Path | Image.Image
"""The bytes of an image file, its path, or a PIL image."""


class YieldedImage(NamedTuple):
    """One image that Python code yields. A plain tuple, because there are millions."""

    class_name: str
    file_name: str
    content: Content

    def read(self) -> bytes:
        """Return the bytes of the image's file; a PIL image becomes a PNG, without loss.

        Raises:
            ImagesError: the image cannot be read.
        """
        try:
            match self.content:
                case bytes(data):
                    return data
                case Path() as path:
                    return path.read_bytes()
                case image:
                    return encode_png(image)
        except (OSError, ValueError, SyntaxError) as error:  # of PIL, which decodes only now
            raise ImagesError(
                f"{self.class_name}/{self.file_name} cannot be read ({error}); expected an intact image: restore the "
                "file"
            ) from error


def check_yielded(images: Iterable[object]) -> Iterator[YieldedImage]:
    """Yield each of *images*: its class, its file name without a folder, and its content.

    Raises:
        ImagesError: one of *images* has another form, or a PIL image has a name that does not end in `.png`.
    """
    for number, image in enumerate(images):
        match image:
            case (str(class_name), str(file_name), bytes() | Path() | Image.Image() as content) if (
                class_name and _is_name_for(content, file_name)
            ):
                require_unicode(f"{class_name}/{file_name}", of=f"image {number}", error=ImagesError)
                yield YieldedImage(class_name, file_name, content)
            case _:
                raise ImagesError(
                    f"Image {number} is {short_repr(image)}; expected a tuple of class, file name without a folder, "
                    'and the file\'s bytes or path, such as ("n01440764", "1.jpg", data), or a PIL image with a name '
                    "that ends in .png"
                )


def _is_name_for(content: Content, name: str) -> bool:
    is_file_name = bool(name) and PurePosixPath(name).name == name and "\0" not in name
    return is_file_name and (name.endswith(".png") or not isinstance(content, Image.Image))
