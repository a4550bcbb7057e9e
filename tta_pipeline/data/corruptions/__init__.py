"""The 19 corruptions of ImageNet-C at five severities, for images without a published corrupted copy.

Written from Hendrycks & Dietterich 2019 (arXiv:1903.12261) and their generator scripts with NumPy, SciPy and Pillow.
The results are not the published images, and differ from the output of the scripts in these ways:

- Randomness comes from a generator per image instead of one global state.
- frost uses textures grown from noise instead of photographs.
- snow and motion_blur imitate ImageMagick's motion blur and were not compared with its output.
- spatter uses exact distances where OpenCV approximates them, and draws no water where the scripts divide by zero.
- Nothing is stored here: the scripts save images of 224 and 64 pixels as JPEG files of quality 85, and images of 32
  pixels without loss (`tta_pipeline.data.images.generated_encoding`).
- elastic_transform samples at exact positions where OpenCV rounds them to 1/32 pixel.
- Images may have any size of at least 16 x 16 pixels, and need not be square.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tta_pipeline.data.corruptions.dispatch import TABLES, corrupt

__all__ = ["TABLES", "corrupt"]


def __getattr__(name: str) -> Any:
    """Import NumPy and SciPy only when an image is corrupted: benchmark files only need the names."""
    if name not in __all__:
        raise AttributeError(name)
    return getattr(import_module("tta_pipeline.data.corruptions.dispatch"), name)
