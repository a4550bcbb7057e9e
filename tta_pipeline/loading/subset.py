"""Choose a subset of the samples of a shard set, by name or number and never by shard or machine."""

from pathlib import Path

import numpy as np

from tta_pipeline.domain.ordering import Indices, permuted
from tta_pipeline.errors import StreamError
from tta_pipeline.shards.sample_index import SampleIndex
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.identifiers import find_duplicates
from tta_pipeline.util.short_lists import abbreviate_list


def first_positions(index: SampleIndex, count: int) -> Indices:
    """Return the positions of the first *count* stored samples, or of all if there are fewer, shape (M,)."""
    return np.arange(min(count, len(index)))


def draw_positions(index: SampleIndex, count: int, *, seed: int) -> Indices:
    """Return positions, in stored order, of *count* samples drawn with *seed*, or of all if there are fewer, (M,)."""
    return np.sort(permuted(index.keys, seed=seed)[:count])


def draw_long_tail(index: SampleIndex, imbalance_factor: float, *, seed: int) -> Indices:
    """Return the positions of samples drawn with *seed*, so that classes have a long tail, in stored order, (M,).

    The K classes are drawn in a random order. The class at position r, counted from 0, keeps the share
    *imbalance_factor* ** (-r / (K - 1)) of its samples, and at least one sample.
    """
    drawn_order = permuted(index.keys, seed=seed)
    classes, numbers, sizes = np.unique(index.labels, return_inverse=True, return_counts=True)
    steps = np.arange(len(classes)) / max(1, len(classes) - 1)
    kept = np.empty(len(classes), np.int64)
    drawn_classes = permuted([str(label) for label in classes.tolist()], seed=seed)
    kept[drawn_classes] = np.maximum(1, np.rint(sizes[drawn_classes] * imbalance_factor**-steps))
    is_kept = _ranks_in_class(index.labels[drawn_order]) < kept[numbers[drawn_order]]
    return np.sort(drawn_order[is_kept])


def draw_over_classes(index: SampleIndex, count: int, *, seed: int) -> Indices:
    """Return the positions of *count* samples drawn with *seed*, so that classes differ by at most one sample.

    If a class has too few samples, the others get its share. If there are fewer than *count* samples, all are
    returned. Positions are in stored order, shape (M,).
    """
    drawn_order = permuted(index.keys, seed=seed)
    ranks = _ranks_in_class(index.labels[drawn_order])
    return np.sort(drawn_order[np.argsort(ranks, kind="stable")[:count]])


def read_listed_positions(shard_set: ShardSet, path: Path) -> Indices:
    """Return the positions of the samples in the list *path*, one source name per line; in stored order, shape (M,)."""
    names = read_listed_names(path)
    position_of = {name: position for position, name in enumerate(shard_set.index.source_names)}
    if unknown := [name for name in names if name not in position_of]:
        raise StreamError(
            f"{path} lists {len(unknown)} names that are not in {shard_set.folder} ({abbreviate_list(unknown)}); "
            f"expected source names such as {next(iter(position_of))}: correct the list"
        )
    return np.array(sorted(position_of[name] for name in names), np.int64)


def read_listed_names(path: Path) -> tuple[str, ...]:
    """Return the source names in the list *path*, in the order of its lines."""
    try:
        lines = path.read_bytes().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StreamError(
            f"{path} cannot be read ({error}); expected a text file with one sample per line: check the path"
        ) from error
    names = tuple(line.strip() for line in lines if line.strip())
    doubled = sorted(find_duplicates(names))
    if doubled or not names:
        raise StreamError(
            f"{path} lists {abbreviate_list(doubled) or 'no name'}, more than once or not at all; expected each name "
            "once: correct the list"
        )
    return names


def _ranks_in_class(labels: Indices) -> Indices:
    """Return each sample's rank within its class, from 0, for *labels* of shape (M,), shape (M,)."""
    by_class = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(labels[by_class], return_index=True, return_counts=True)
    ranks = np.empty(len(labels), np.int64)
    ranks[by_class] = np.arange(len(labels)) - np.repeat(starts, sizes)
    return ranks
