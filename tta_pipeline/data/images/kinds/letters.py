"""Letters like the small handwritten digits, for streams with images of unknown classes; nothing is downloaded.

They are drawn with the font that comes with Pillow, turned, sheared, scaled and shifted, in the resolution of
scikit-learn's digits. Letters that can be read as a digit, such as B, I, O and S, are left out.
"""

from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

LETTERS = "ACEFHJKLMNPRTUVWXY"
_NUM_OF_EACH = 100
_SIZE, _SCALE, _LEVELS = 8, 8, 16
"""Height and width of a letter in pixels, how much larger it is drawn, and its levels of grey above 0."""
_FONT_SIZE, _MAX_TURN, _MAX_SHEAR, _MAX_SHIFT = (52, 68), 15.0, 0.2, 6.0
"""Sizes of the font and the largest turn in degrees, shear, and shift, in pixels of the large drawing."""


@cache
def drawn_letters() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the letters, (N, 8, 8) with values 0 to 16, and their positions in `LETTERS`, (N,)."""
    rng = np.random.default_rng(0)  # as fixed as a dataset
    labels = np.arange(len(LETTERS) * _NUM_OF_EACH) % len(LETTERS)
    return np.stack([_draw(LETTERS[label], rng) for label in labels.tolist()]), labels.astype(np.int64)


def _draw(letter: str, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    width = _SIZE * _SCALE
    large = Image.new("L", (width, width))
    font = ImageFont.load_default(int(rng.integers(*_FONT_SIZE)))
    ImageDraw.Draw(large).text((width / 2, width / 2), letter, fill=255, font=font, anchor="mm", stroke_width=2)
    shear, right, down = rng.uniform(-1, 1, 3) * (_MAX_SHEAR, _MAX_SHIFT, _MAX_SHIFT)
    turned = large.rotate(rng.uniform(-_MAX_TURN, _MAX_TURN), Image.Resampling.BILINEAR)
    moved = turned.transform(
        turned.size, Image.Transform.AFFINE, (1, shear, right - shear * width / 2, 0, 1, down),
        Image.Resampling.BILINEAR,
    )  # fmt: skip
    small = moved.resize((_SIZE, _SIZE), Image.Resampling.BOX)
    return np.rint(np.asarray(small, np.float64) * (_LEVELS / 255))
