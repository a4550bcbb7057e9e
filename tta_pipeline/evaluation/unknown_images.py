"""Unknown images among the known ones in a stream: as many as the protocol requires, each at most once."""

from collections.abc import Sequence
from dataclasses import replace
from math import floor

import numpy as np

from tta_pipeline.domain import ordering
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.loading.joined_sets import JoinedSets
from tta_pipeline.loading.stream_order import unknown_among
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.short_lists import abbreviate_list


def add_unknown(opened: OpenStream, unknown: Sequence[ShardSet], *, share: float, seed: int) -> OpenStream:
    """Return *opened* with unknown images among the known ones; *unknown* has a shard set for each known set.

    The unknown images of each cell are *share* of all images of the cell. They, and their positions, are drawn with
    *seed*; the known images keep their order.

    Raises:
        ManifestError: a shard of *unknown* differs from its manifest.
        StreamError: there are too few unknown images, or their classes overlap with the known classes.
    """
    known = opened.joined
    for own, other in zip(known.sets, unknown, strict=True):
        other.require_intact()
        _require_other_classes(own, other)
    joined = JoinedSets(sets=(*known.sets, *unknown), num_unknown_sets=len(unknown))
    num_known = np.bincount(known.set_numbers(opened.order.indices), minlength=len(known.sets)).tolist()
    starts = joined.starts[len(known.sets) :]
    drawn = [
        start + _draw(other, number, share=share, seed=seed)
        for start, other, number in zip(starts, unknown, num_known, strict=False)
    ]
    order = unknown_among(opened.order, joined.index, np.concatenate(drawn), seed=seed)
    return replace(opened, joined=joined, order=order)


def _draw(unknown: ShardSet, num_known: int, *, share: float, seed: int) -> Indices:
    """Return the positions in *unknown* of the images that *num_known* known images need, shape (M,)."""
    found, needed = len(unknown.index), max(1, round(num_known * share / (1 - share)))
    if found < needed:
        most = floor(found * (1 - share) / share)
        raise StreamError(
            f"{unknown.folder} has only {found:,} unknown images for {num_known:,} known images; expected {needed:,}, "
            f"so that their share is {share:g} and none is repeated: lower the share, or leave out known images with "
            f"`subset: {{random: {most}}}`"
        )
    return ordering.permuted(unknown.index.keys, seed=seed)[:needed]


def _require_other_classes(known: ShardSet, unknown: ShardSet) -> None:
    """Refuse unknown images of a known class; a number is the name of a position, not of a class."""
    shared = [name for name in unknown.manifest.classes if name in set(known.manifest.classes) and not name.isdecimal()]
    if shared:
        raise StreamError(
            f"{unknown.folder} has the classes {abbreviate_list(shared)}, which {known.folder} has too; expected "
            "unknown images from other classes: remove these classes from the unknown images"
        )
