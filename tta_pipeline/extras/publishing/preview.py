"""A preview picture: one image from every cell, shifts from top to bottom, severities from left to right."""

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from tta_pipeline.extras.publishing.published_cell import PublishedCell
from tta_pipeline.loading.dataset import Shards

_TILE, _GAP, _LINE, _NAMES = 96, 4, 16, 150
_MAX_ROWS = 24


def preview_png(cells: Sequence[PublishedCell]) -> bytes:
    """Return a PNG with one image of each cell, of at most 24 shifts.

    The image is the sample with the first key that all cells have, or else the first sample of each cell.

    Raises:
        StreamError: an image cannot be decoded.
    """
    shifts = list(dict.fromkeys(cell.shard_set.manifest.corruption for cell in cells))[:_MAX_ROWS]
    severities = sorted({cell.shard_set.manifest.severity for cell in cells})
    size = (_NAMES + len(severities) * (_TILE + _GAP), _LINE + len(shifts) * (_TILE + _GAP))
    sheet = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for column, severity in enumerate(severities):
        draw.text((_NAMES + column * (_TILE + _GAP), 0), f"severity {severity}", fill="black", font=font)
    for row, shift in enumerate(shifts):
        draw.text((0, _LINE + row * (_TILE + _GAP) + _TILE // 2), shift, fill="black", font=font)
    common = set.intersection(*(set(cell.shard_set.index.keys) for cell in cells))
    for cell in cells:
        manifest = cell.shard_set.manifest
        if manifest.corruption not in shifts:
            continue
        keys = cell.shard_set.index.keys
        image, _ = Shards(cell.shard_set)[list(keys).index(min(common)) if common else 0]
        place = severities.index(manifest.severity), shifts.index(manifest.corruption)
        left, top = (place[0] * (_TILE + _GAP) + _NAMES, place[1] * (_TILE + _GAP) + _LINE)
        sheet.paste(image.convert("RGB").resize((_TILE, _TILE)), (left, top))
    data = io.BytesIO()
    sheet.save(data, "PNG", optimize=True)
    return data.getvalue()
