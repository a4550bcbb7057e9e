"""Small pictures for the web UI, drawn by Pillow because there is one for each cell."""

import base64
import io
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from tta_pipeline.evaluation.evaluate import Preview

_TILE = 96
_CAPTION = 30
_GAP = 6
# Blue and orange are told apart by everyone; the words say it as well.
_RIGHT, _WRONG = "#0072B2", "#D55E00"


def prediction_grid(preview: "Preview", classes: tuple[str, ...]) -> str:
    """Return a picture of the previewed images with label, prediction and confidence, as a data URI."""
    num_images = len(preview.images)
    sheet = Image.new("RGB", (num_images * (_TILE + _GAP) + _GAP, _TILE + _CAPTION + 2 * _GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for number in range(num_images):
        left = _GAP + number * (_TILE + _GAP)
        tile = Image.fromarray(preview.images[number]).resize((_TILE, _TILE), Image.Resampling.NEAREST)
        sheet.paste(tile, (left, _GAP))
        label, prediction = classes[preview.labels[number]], classes[preview.predictions[number]]
        right = label == prediction
        verdict = f"{prediction} {preview.confidences[number]:.0%}" + ("" if right else " wrong")
        draw.text((left, _GAP + _TILE + 2), f"label {label}", fill="black", font=font)
        draw.text((left, _GAP + _TILE + 15), verdict, fill=_RIGHT if right else _WRONG, font=font)
    return _data_uri(sheet)


def _data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
