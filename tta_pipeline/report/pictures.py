"""Small pictures, drawn by Pillow because the web UI shows several per cell."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import order_of
from tta_pipeline.report.tables import name_class
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.shard_set import ShardSet

_TILE = 96
_CAPTION = 30
_GAP = 6
# Colour-blind readers can distinguish blue from orange; a word repeats the meaning.
_RIGHT, _WRONG = "#0072B2", "#D55E00"
_PARTS = (
    ("compute_s", "compute", "#0072B2"),
    ("host_to_device_s", "copy to the device, overlapped", "#999999"),
    ("data_wait_s", "waiting for data", "#D55E00"),
)
_MAX_COLUMNS, _CHART, _SQUARE, _LINE = 600, 120, 180, 15


@dataclass(frozen=True, kw_only=True)
class ShownSample:
    """A sample with the prediction for it."""

    image: Image.Image
    label: str
    prediction: str
    confidence: float
    is_right: bool


def sample_row(folder: Path, row: Evaluation, *, image_size: int) -> Image.Image:
    """Return a picture of the first samples of the shard set in *folder* with an evaluation's predictions for them.

    Arguments and errors are the same as for `first_samples`.
    """
    return _sheet(first_samples(folder, row, image_size=image_size))


def first_samples(folder: Path, row: Evaluation, *, image_size: int) -> Sequence[ShownSample]:
    """Return the first samples of the shard set in *folder* with an evaluation's predictions for them.

    Args:
        folder: The cell's shards.
        row: The evaluation whose first samples are shown.
        image_size: Height and width of the images, in pixels.

    Raises:
        ManifestError: there is no manifest.
        StreamError: the shards are missing, or do not match the manifest.
    """
    shard_set = ShardSet.open(folder)
    classes, first = shard_set.manifest.classes, row.predicted.first_samples
    stream = Stream(
        shard_set=shard_set,
        order=order_of(shard_set.index, np.array(first.positions, np.int64)),
        batch_size=len(first.predictions),
        image_size=image_size,
        num_threads=1,
    )
    (batch,) = islice(stream, 1)
    return [
        ShownSample(
            image=Image.fromarray(np.asarray(image)), label=classes[label], prediction=name_class(classes, prediction),
            confidence=confidence, is_right=label == prediction,
        )
        for image, label, prediction, confidence in zip(
            batch.images, batch.labels.tolist(), first.predictions, first.confidences, strict=True
        )
    ]  # fmt: skip


def reliability_diagram(row: Evaluation) -> Image.Image:
    """Return a reliability diagram: for each confidence bin, a bar for accuracy and a line for mean confidence.

    A bar that ends below its line shows overconfidence; the width of a bar shows its share of the samples.

    Args:
        row: The evaluation.
    """
    bins = row.calibration.bins
    counts, confidences, correct = (
        np.array(each, float) for each in (bins.counts, bins.confidence_sums, bins.correct_counts)
    )
    picture = Image.new("RGB", (_SQUARE + 2 * _GAP, _SQUARE + 3 * _LINE + 2 * _GAP), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(11)
    top, bottom, width = _LINE + _GAP, _LINE + _GAP + _SQUARE, _SQUARE / len(counts)
    draw.text((_GAP, 1), f"calibration, ECE {row.calibration.ece:.1%}", fill="black", font=font)
    draw.rectangle((_GAP, top, _GAP + _SQUARE, bottom), outline="#bbbbbb")
    draw.line((_GAP, bottom, _GAP + _SQUARE, top), fill="#bbbbbb")
    for number in np.flatnonzero(counts):
        middle = _GAP + (number + 0.5) * width
        half = max(1, 0.5 * width * np.sqrt(counts[number] / counts.max()) - 1)
        accuracy, confidence = correct[number] / counts[number], confidences[number] / counts[number]
        draw.rectangle((middle - half, bottom - accuracy * _SQUARE, middle + half, bottom), fill=_RIGHT)
        level = bottom - confidence * _SQUARE
        draw.line((middle - width / 2 + 1, level, middle + width / 2 - 1, level), fill=_WRONG, width=3)
    draw.text((_GAP, bottom + 3), "accuracy of a confidence bin", fill=_RIGHT, font=font)
    draw.text((_GAP, bottom + 3 + _LINE), "mean confidence of the bin", fill=_WRONG, font=font)
    return picture


def timeline(row: Evaluation) -> Image.Image:
    """Return a chart of each batch's time by activity: batches from left to right, seconds upwards.

    Args:
        row: The evaluation.
    """
    parts = np.array([getattr(row.time.batches, name) for name, _, _ in _PARTS]).T
    columns = np.array([part.sum(0) for part in np.array_split(parts, min(len(parts), _MAX_COLUMNS))])
    tallest_s = columns.sum(1).max()
    width = max(1, _MAX_COLUMNS // len(columns))
    picture = Image.new("RGB", (width * len(columns) + 2 * _GAP, _CHART + 4 * _LINE), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(11)
    for number, column in enumerate(columns):
        left, bottom = _GAP + number * width, float(_LINE + _CHART)
        for seconds, (_, _, colour) in zip(column, _PARTS, strict=True):
            height = seconds / tallest_s * _CHART
            draw.rectangle((left, bottom - height, left + max(0, width - 2), bottom), fill=colour)
            bottom -= height
    batches = f"{len(parts)} batches" if len(parts) == len(columns) else f"{len(parts)} batches, several per column"
    draw.text((_GAP, 1), f"{batches}; tallest {tallest_s * 1000:,.1f} ms", fill="black", font=font)
    for number, ((_, label, colour), total_s) in enumerate(zip(_PARTS, parts.sum(0), strict=True)):
        draw.text((_GAP, _CHART + (number + 1) * _LINE + 2), f"{label} {total_s:,.2f} s", fill=colour, font=font)
    return picture


def _sheet(samples: Sequence[ShownSample]) -> Image.Image:
    sheet = Image.new("RGB", (len(samples) * (_TILE + _GAP) + _GAP, _TILE + _CAPTION + 2 * _GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for number, each in enumerate(samples):
        left = _GAP + number * (_TILE + _GAP)
        sheet.paste(each.image.resize((_TILE, _TILE), Image.Resampling.NEAREST), (left, _GAP))
        draw.text((left, _GAP + _TILE + 2), f"label {each.label}", fill="black", font=font)
        verdict = f"{each.prediction} ({each.confidence:.0%}){'' if each.is_right else ' wrong'}"
        draw.text((left, _GAP + _TILE + 15), verdict, fill=_RIGHT if each.is_right else _WRONG, font=font)
    return sheet


def encode_png(image: Image.Image) -> bytes:
    """Return *image* as PNG bytes."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def as_data_uri(png: bytes) -> str:
    """Return a PNG image as a data URI for Markdown and HTML."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
