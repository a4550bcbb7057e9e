"""Which samples of different shard sets show the same photograph: the unit of statistics."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tta_pipeline.domain.cells import Cell
from tta_pipeline.shards.sample_index import keys_sha256

_LEAST_SHARED = 0.5
"""Share of the smaller set's names that two sets must have in common to count as naming photographs in the same way."""
_TOKEN = re.compile(r"[^\W\d_]+|\d+")


@dataclass(frozen=True, kw_only=True)
class Numbered:
    """The photograph that each sample of a shard set shows."""

    group: int
    """Number of the sets that name photographs in the same way. Nothing is known across groups."""
    numbers: npt.NDArray[np.int64]
    """Number of each sample's photograph in the group, (N,)."""


@dataclass(kw_only=True)
class _Group:
    """Numbers of photographs by the sample's name, and by this name without the words for the cell."""

    by_name: dict[str, int] = field(default_factory=dict)
    by_bare_name: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def add(
        self, names: Sequence[str], known: dict[str, int], others: Sequence[str], also: dict[str, int]
    ) -> npt.NDArray[np.int64]:
        """Return the number of each of *names* in *known*; new names get the next one, in *also* as *others*."""
        for name, other in zip(names, others, strict=True):
            if name not in known:
                known[name] = self.size
                self.size += 1
            also.setdefault(other, known[name])
        return np.array([known[name] for name in names], np.int64)


class Photographs:
    """Numbers the photographs of any number of shard sets.

    Two sets name photographs in the same way if the larger set contains at least half of the smaller set's keys. If
    not, keys are compared without the words for the cell, such as `fog_5`.

    Args:
        pattern: Regular expression whose first group is the photograph's name in a key; empty: the whole key.
    """

    def __init__(self, pattern: str = "") -> None:
        self._pattern = re.compile(pattern) if pattern else None
        self._groups: list[_Group] = []
        self._known: dict[str, Numbered] = {}

    def number(self, keys: Sequence[str], cell: Cell) -> Numbered:
        """Return the photographs of the samples with *keys*, in their order, of a set of *cell*."""
        sha256 = keys_sha256(list(keys))
        if sha256 not in self._known:
            self._known[sha256] = self._number(self._names(keys), cell)
        return self._known[sha256]

    def _names(self, keys: Sequence[str]) -> Sequence[str]:
        if self._pattern is None:
            return keys
        found = [self._pattern.search(key) for key in keys]
        return [match[1] if match else key for match, key in zip(found, keys, strict=True)]

    def _number(self, names: Sequence[str], cell: Cell) -> Numbered:
        bare = bare_names(names, cell)
        for number, group in enumerate(self._groups):
            if _is_shared(names, group.by_name):
                return Numbered(group=number, numbers=group.add(names, group.by_name, bare, group.by_bare_name))
            if _is_shared(bare, group.by_bare_name):
                return Numbered(group=number, numbers=group.add(bare, group.by_bare_name, names, group.by_name))
        group = _Group()
        self._groups.append(group)
        numbers = group.add(names, group.by_name, bare, group.by_bare_name)
        return Numbered(group=len(self._groups) - 1, numbers=numbers)


def bare_names(names: Sequence[str], cell: Cell) -> Sequence[str]:
    """Return *names* without the words for *cell* and without what all have in common.

    If the shortened names would not be different, the names themselves are returned.
    """
    folders = [name.split("/") for name in names]
    files = [parts.pop() for parts in folders]
    words = next((each for each in _words_of(cell) if all(map(each.search, files))), None)
    stems = [_TOKEN.findall(words.sub(" ", name) if words else name) for name in files]
    bare = [f"{folder}/{stem}" for folder, stem in zip(_without_common(folders), _without_common(stems), strict=True)]
    return bare if len(set(bare)) == len(set(names)) else names


def _words_of(cell: Cell) -> Sequence[re.Pattern[str]]:
    """Return the words for *cell* in file names, such as `s3 gaussian noise`, `fog_5` or `fog`; the longest first."""
    name = r"[\W_]*".join(map(re.escape, re.split(r"[\W_]+", cell.corruption)))
    severity = rf"(?:severity|sev|level|s)?[\W_]*{cell.severity}"
    texts = (rf"(?<![^\W_]){severity}[\W_]*{name}", rf"{name}[\W_]*{severity}(?!\d)", name)
    return [re.compile(text, re.IGNORECASE) for text in texts]


def _without_common(lists: Sequence[Sequence[str]]) -> Sequence[str]:
    """Return each list as text, without the items that all lists have in the same place; numbers have no zeros."""
    if len({len(each) for each in lists}) == 1:
        columns = [column for column in zip(*lists, strict=True) if len(set(column)) > 1]
        lists = list(zip(*columns, strict=True)) if columns else [()] * len(lists)
    return [" ".join(str(int(word)) if word.isdecimal() else word for word in each) for each in lists]


def _is_shared(names: Sequence[str], known: dict[str, int]) -> bool:
    """Return whether at least half of the names of the smaller side are on both sides."""
    num_shared = len(known.keys() & set(names))
    return num_shared >= _LEAST_SHARED * min(len(set(names)), len(known)) > 0
