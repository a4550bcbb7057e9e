"""The order of a stream: a function of manifest, order and seed, never of threads, shard sizes or machines.

Every order ranks samples by a keyed hash of their names. So a cell gives the same stream in 3 shards or in 30, on any
machine; the hash of the stream proves it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tta_pipeline.domain import ordering
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.shards.sample_index import SampleIndex, keys_sha256


@dataclass(frozen=True, kw_only=True)
class StreamOrder:
    """The samples of a stream, in order."""

    name: str
    indices: Indices
    """Positions of the samples in the sample index, shape (N,)."""
    sha256: str
    """sha256 of the samples' keys, one per line, in stream order."""

    def __len__(self) -> int:
        return len(self.indices)


def stored_order(index: SampleIndex) -> StreamOrder:
    """Return the order of the samples in the shards, as permuted by sharding."""
    return _make_order("as_stored", index, np.arange(len(index)))


def shuffled_order(index: SampleIndex, *, seed: int) -> StreamOrder:
    """Return a permutation of all samples, determined by *seed*."""
    return _make_order(f"shuffled(seed={seed})", index, ordering.permuted(index.keys, seed=seed))


def class_order(index: SampleIndex, *, seed: int, num_at_once: int | None = None) -> StreamOrder:
    """Return all samples of the first class or classes, then of the next ones; see `ordering.by_class`."""
    found = ordering.by_class(index.keys, index.labels, seed=seed, num_at_once=num_at_once)
    return _make_order(f"by_class(seed={seed}{f', {num_at_once} at once' if num_at_once else ''})", index, found)


def listed_order(index: SampleIndex, names: Sequence[str]) -> StreamOrder:
    """Return the samples in the order of their source *names*, which name each of them; equal ones as in *index*."""
    place = {name: number for number, name in enumerate(names)}
    places = [place[name] for name in index.table["source_name"].to_pylist()]
    return _make_order("listed", index, np.argsort(np.array(places, np.int64), kind="stable"))


def dirichlet_order(index: SampleIndex, *, seed: int, delta: float) -> StreamOrder:
    """Return an order in which classes come and go; see `tta_pipeline.domain.ordering.dirichlet`."""
    if not delta > 0:
        raise StreamError(f"delta is {delta}; expected a number above 0, such as 0.1")
    dealt = ordering.dirichlet(index.keys, index.labels, seed=seed, delta=delta)
    return _make_order(f"dirichlet(seed={seed}, delta={delta})", index, dealt)


def unknown_among(known: StreamOrder, index: SampleIndex, unknown: Indices, *, seed: int) -> StreamOrder:
    """Return *known* with the samples at *unknown*, shape (M,), at positions that are drawn with *seed*.

    The known samples keep their order, and the unknown ones are permuted. *index* has both.
    """
    keys = index.keys
    permuted = unknown[ordering.permuted([keys[number] for number in unknown.tolist()], seed=seed)]
    is_unknown = np.zeros(len(known) + len(unknown), np.bool_)
    is_unknown[ordering.random_generator(seed).permutation(len(is_unknown))[: len(unknown)]] = True
    indices = np.empty(len(is_unknown), np.int64)
    indices[is_unknown], indices[~is_unknown] = permuted, known.indices
    return _make_order(f"{known.name}, {len(unknown)} unknown(seed={seed})", index, indices)


def returning_order(domains: Sequence[StreamOrder], index: SampleIndex, *, num_visits: int, seed: int) -> StreamOrder:
    """Return the samples of all *domains*, each cut into *num_visits* parts of random lengths, which may be 0.

    The first parts of all domains come first, in an order drawn for them, then the second parts, and so on. The lengths
    of a domain's parts are its share of a draw that is uniform over all cuts. This is CDC ("continual dynamic change")
    as in the code of Zhang et al. 2025, "DPCore: dynamic prompt coreset for continual test-time adaptation", which cuts
    at whole batches.

    Args:
        domains: Orders of the samples at positions in *index*, one for each domain.
        index: Samples of all domains.
        num_visits: Number of parts of each domain.
        seed: Seed of lengths and order.
    """
    rng = ordering.random_generator(seed)
    shares = [rng.dirichlet(np.ones(num_visits)) for _ in domains]
    parts = [
        np.split(domain.indices, np.rint(np.cumsum(share)[:-1] * len(domain)).astype(int))
        for domain, share in zip(domains, shares, strict=True)
    ]
    runs = [parts[number][visit] for visit in range(num_visits) for number in rng.permutation(len(domains)).tolist()]
    return _make_order(f"{domains[0].name}, returning(visits={num_visits}, seed={seed})", index, np.concatenate(runs))


def order_among(positions: Indices, index: SampleIndex, order: Callable[[SampleIndex], StreamOrder]) -> StreamOrder:
    """Return *order* of only the samples at *positions*, shape (M,)."""
    found = order(SampleIndex(table=index.table.take(positions)))
    return replace(found, indices=positions[found.indices])


def rising_and_falling_order(index: SampleIndex, levels: Indices, *, groups: Indices, seed: int) -> StreamOrder:
    """Return an order that has each image of each group once, while the level rises to the highest and falls again.

    As in CCC (Press et al. 2023, "RDumb", section 3), neighbours differ little: between two levels, the stream mixes
    both in shifting proportions. The levels are existing cells, so no image is generated.

    Args:
        index: Samples; their source names identify the images.
        levels: Level of each sample, shape (N,).
        groups: Group of each sample, in stream order from 0, shape (N,).
        seed: Seed of the images' order and of the draws between two levels.

    Raises:
        StreamError: an image of a group is missing at some level.
    """
    names = list(index.table["source_name"].to_pylist())
    rng, stretches = ordering.random_generator(seed), list[Indices]()
    ranked = ordering.permuted(index.keys, seed=seed)
    for group in range(int(groups.max()) + 1):
        members = ranked[groups[ranked] == group]
        order = list(dict.fromkeys(names[member] for member in members.tolist()))
        place = {(names[member], int(levels[member])): member for member in members.tolist()}
        steps = np.unique(levels[members])
        height = (1 - np.abs(np.linspace(-1, 1, len(order)))) * (len(steps) - 1)
        drawn = steps[np.minimum(np.floor(height + rng.random(len(order))).astype(int), len(steps) - 1)]
        try:
            found = [place[name, level] for name, level in zip(order, drawn.tolist(), strict=True)]
        except KeyError as error:
            raise StreamError(f"found no sample {error.args[0]}; expected every image at every level") from None
        stretches.append(np.array(found, np.int64))
    return _make_order(f"rising_and_falling(seed={seed})", index, np.concatenate(stretches))


def _make_order(name: str, index: SampleIndex, indices: Indices) -> StreamOrder:
    keys = index.keys
    return StreamOrder(name=name, indices=indices, sha256=keys_sha256([keys[number] for number in indices.tolist()]))
