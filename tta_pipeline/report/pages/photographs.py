"""A few photographs of a cell in one file, and each experiment's prediction for them."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from tta_pipeline.errors import ManifestError, StreamError
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import order_of
from tta_pipeline.report.pages.cells import CellResults, find_most_disputed, largest_comparable_group
from tta_pipeline.report.pages.collected_results import MAX_PHOTOGRAPHS, TILE, Photograph
from tta_pipeline.report.tables import name_class


def write_photographs(results: CellResults, path: Path, *, image_size: int) -> Sequence[Photograph]:
    """Write the photographs of a cell side by side into one WebP file at *path*, and return them with predictions.

    Without stored predictions or shards, nothing is written, and the result is empty.

    Args:
        results: The cell.
        path: The file.
        image_size: Height and width of the decoded images, in pixels.
    """
    positions, together = find_most_disputed(results, MAX_PHOTOGRAPHS), largest_comparable_group(results)
    if results.samples is None or not len(positions):
        return ()
    shard_set = results.samples.shard_set
    index = shard_set.index
    try:
        stream = Stream(
            shard_set=shard_set,
            order=order_of(index, positions),
            batch_size=len(positions),
            image_size=image_size,
            num_threads=1,
        )
        (batch,) = islice(stream, 1)
    except (ManifestError, StreamError):
        return ()
    save_sprite([[Image.fromarray(np.asarray(image)) for image in batch.images]], path)
    found = []
    for position in positions.tolist():
        label = results.classes[index.labels[position]]
        said: dict[str, list[str]] = {label: []}
        for name, each in together.items():
            (at,) = np.flatnonzero(each.positions == position)
            said.setdefault(name_class(results.classes, int(each.predictions[at])), []).append(name)
        right = {name: name in said[label] for name in together}
        found.append(Photograph(key=index.keys[position], label=label, said=said, right=right))
    return found


def save_sprite(rows: Sequence[Sequence[Image.Image]], path: Path) -> None:
    """Write *rows* of images into one WebP file at *path*, in fields of `TILE` x `TILE` pixels."""
    sprite = Image.new("RGB", (TILE * max(map(len, rows)), TILE * len(rows)))
    for down, row in enumerate(rows):
        for along, image in enumerate(row):
            # A small photograph is enlarged without smoothing, so that its pixels show.
            how = Image.Resampling.NEAREST if image.width <= TILE else Image.Resampling.LANCZOS
            sprite.paste(image.resize((TILE, TILE), how), (along * TILE, down * TILE))
    sprite.save(path, "WEBP", quality=85)
