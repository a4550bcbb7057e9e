"""Orders of samples: functions of names, classes and a seed, the same on every machine and with every library version.

Shards are stored and streams are read in one of these orders. Each function returns positions among the samples, int64
of shape (N,).
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
_MAX_SLOTS = 100


def permuted(names: Sequence[str], *, seed: int) -> Indices:
    """Rank samples by a keyed hash of their names: the order of two samples does not depend on the others."""
    key = seed.to_bytes(8, "big", signed=True)
    # A file's name need not be UTF-8.
    encoded = (name.encode("utf-8", "surrogateescape") for name in names)
    ranks = [hashlib.blake2b(name, digest_size=16, key=key).digest() for name in encoded]
    return np.array(sorted(range(len(ranks)), key=ranks.__getitem__), np.int64)


def random_generator(seed: int) -> np.random.Generator:
    """Return the random generator for *seed*, -2^63 to 2^63 - 1.

    NumPy takes no negative seeds: they become the upper half of the 64-bit range, as in the key of `permuted`.
    """
    return np.random.default_rng(seed % 2**64)


def by_class(names: Sequence[str], labels: Indices, *, seed: int, num_at_once: int | None = None) -> Indices:
    """Put all samples of the first class before all samples of the second, each class permuted.

    With *num_at_once*, put all samples of a group of at most so many classes before the next group. *seed* draws the
    groups, whose sizes differ by at most one class.
    """
    ranked = permuted(names, seed=seed)
    if num_at_once is None or not len(labels):
        return _sorted_by(labels, ranked)
    classes, numbers = np.unique(labels, return_inverse=True)
    num_groups = -(-len(classes) // num_at_once)
    place = np.empty(len(classes), np.int64)
    place[permuted([str(label) for label in classes.tolist()], seed=seed)] = np.arange(len(classes))
    return _sorted_by((place * num_groups // len(classes))[numbers], ranked)


def dirichlet(names: Sequence[str], labels: Indices, *, seed: int, delta: float) -> Indices:
    """Deal each class over time slots in Dirichlet(*delta*) proportions; in a slot, the classes follow one another.

    This is the correlated stream of Yuan et al. 2023, "Robust test-time adaptation in dynamic scenarios", section 4.1,
    and of its authors' sampler: as many slots as classes, at most 100, and an order of the classes drawn for each slot.
    The smaller *delta*, the fewer classes in a slot. The images of a class are permuted.
    """
    ranked = by_class(names, labels, seed=seed)
    _, starts = np.unique(labels[ranked], return_index=True)
    if not len(starts):
        return ranked
    rng = random_generator(seed)
    shares = rng.dirichlet(np.full(min(len(starts), _MAX_SLOTS), delta), len(starts))
    dealt = [
        np.split(members, (np.cumsum(share)[:-1] * len(members)).astype(np.int64))
        for members, share in zip(np.split(ranked, starts[1:]), shares, strict=True)
    ]
    return np.concatenate([slot[number] for slot in zip(*dealt, strict=True) for number in rng.permutation(len(slot))])


def domain_seed(seed: int, domain: str) -> int:
    """Return the seed with which *domain*, such as the key of a cell, draws its own order in a stream of *seed*."""
    digest = hashlib.blake2b(domain.encode(), digest_size=8, key=seed.to_bytes(8, "big", signed=True)).digest()
    return int.from_bytes(digest, "big", signed=True)


def _sorted_by(values: Indices, ranked: Indices) -> Indices:
    """Return the samples sorted by *values*, with ties in the order of *ranked*."""
    return ranked[np.argsort(values[ranked], kind="stable")]
