"""Small pictures for the web UI, drawn by Pillow because there is one for each cell."""

import base64
import io
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.streaming.order import as_stored
from tta_pipeline.streaming.reader import Stream

_TILE = 96
_CAPTION = 30
_GAP = 6
# Blue and orange are told apart by everyone; the words say it as well.
_RIGHT, _WRONG = "#0072B2", "#D55E00"


def prediction_grid(folder: Path, facts: Mapping[str, Any], *, image_size: int) -> str:
    """Return a picture of the first samples of the shard set in *folder* with what an evaluation predicted for them.

    Args:
        folder: The cell's shards.
        facts: The evaluation's record, with `first_predictions` and `first_confidences`.
        image_size: Height and width of the images, in pixels.

    Returns:
        A PNG as a data URI.
    """
    shard_set = ShardSet.open(folder)
    classes = shard_set.manifest.classes
    stream = Stream(
        shard_set=shard_set,
        order=as_stored(shard_set.index),
        batch_size=len(facts["first_predictions"]),
        image_size=image_size,
        num_threads=1,
    )
    (batch,) = islice(stream, 1)
    captions = [
        (f"label {classes[label]}", f"{classes[prediction]} {confidence:.0%}", label == prediction)
        for label, prediction, confidence in zip(
            batch.labels.tolist(), facts["first_predictions"], facts["first_confidences"], strict=True
        )
    ]
    return _data_uri(_sheet([Image.fromarray(np.asarray(image)) for image in batch.images], captions))


def _sheet(images: list[Image.Image], captions: list[tuple[str, str, bool]]) -> Image.Image:
    sheet = Image.new("RGB", (len(images) * (_TILE + _GAP) + _GAP, _TILE + _CAPTION + 2 * _GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for number, (image, (label, prediction, is_right)) in enumerate(zip(images, captions, strict=True)):
        left = _GAP + number * (_TILE + _GAP)
        sheet.paste(image.resize((_TILE, _TILE), Image.Resampling.NEAREST), (left, _GAP))
        draw.text((left, _GAP + _TILE + 2), label, fill="black", font=font)
        verdict = prediction if is_right else f"{prediction} wrong"
        draw.text((left, _GAP + _TILE + 15), verdict, fill=_RIGHT if is_right else _WRONG, font=font)
    return sheet


def _data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
