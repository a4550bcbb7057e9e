"""The order in which samples are stored: a function of their names, the settings and nothing else."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby

import numpy as np

from tta_pipeline.benchmarks.shards import ShardSettings
from tta_pipeline.sources.listing import SourceImage

_MAX_SLOTS = 100


def ordered(images: Sequence[SourceImage], settings: ShardSettings) -> list[SourceImage]:
    """Return *images*, which are sorted by name, in the order that *settings* ask for."""
    return _ORDERS[settings.order](images, settings)


def _as_listed(images: Sequence[SourceImage], settings: ShardSettings) -> list[SourceImage]:  # noqa: ARG001 - one interface
    return list(images)


def _permuted(images: Sequence[SourceImage], settings: ShardSettings) -> list[SourceImage]:
    """Order by a keyed hash of the names: a permutation that no library version and no other image changes."""
    key = settings.seed.to_bytes(8, "big", signed=True)

    def rank(image: SourceImage) -> bytes:
        return hashlib.blake2b(image.name.encode("utf-8", "surrogateescape"), digest_size=16, key=key).digest()

    return sorted(images, key=rank)


def _by_class(images: Sequence[SourceImage], settings: ShardSettings) -> list[SourceImage]:
    """Order class by class, permuted within each."""
    return sorted(_permuted(images, settings), key=lambda image: image.class_name)


def _dirichlet(images: Sequence[SourceImage], settings: ShardSettings) -> list[SourceImage]:
    """Deal each class over time slots in Dirichlet proportions, and permute within each slot.

    The correlated stream of Yuan et al. 2023, "Robust test-time adaptation in dynamic scenarios", section 4.1, with as
    many slots as classes, 100 at most.
    """
    classes = [list(members) for _, members in groupby(_by_class(images, settings), key=lambda image: image.class_name)]
    slots: list[list[SourceImage]] = [[] for _ in range(min(len(classes), _MAX_SLOTS))]
    rng = np.random.default_rng(abs(settings.seed))
    for members in classes:
        shares = rng.dirichlet(np.full(len(slots), settings.delta))
        cuts = np.rint(np.cumsum(shares) * len(members)).astype(int)[:-1]
        for slot, part in zip(slots, np.split(np.arange(len(members)), cuts), strict=True):
            slot.extend(members[index] for index in part)
    return list(chain.from_iterable(_permuted(slot, settings) for slot in slots))


_ORDERS: Mapping[str, Callable[[Sequence[SourceImage], ShardSettings], list[SourceImage]]] = {
    "permuted": _permuted,
    "by_class": _by_class,
    "dirichlet": _dirichlet,
    "source": _as_listed,
}
