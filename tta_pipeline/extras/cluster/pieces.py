"""Pieces of a benchmark: what one run does on one device, cut so that no piece takes much longer than the others."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple, get_args

from tta_pipeline.util.partitions import CLEAN, TRAIN, Cell

Stage = Literal["sets", "shards", "training", "evaluations", "report"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""The stages in order; each begins when no piece of the one before runs or waits."""
Cut = Literal["corruption", "cell", "stream"]
CUTS: tuple[Cut, ...] = get_args(Cut)
ON_A_DEVICE: frozenset[Stage] = frozenset({"training", "evaluations"})
"""Stages whose pieces take a device each."""
_PIECES_OF_A_DEVICE = 4
"""Pieces that each device gets at least, if there is enough to cut: the last ones then end at about the same time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Assets of a benchmark and the partitions at which one run materializes them."""

    stage: Stage
    assets: tuple[str, ...]
    """Asset keys below the benchmark's, such as `evaluation/tent` or `clean/shard_manifest`."""
    keys: tuple[str, ...] = ()
    """Partition keys, which lie in one range from the first to the last; empty: the assets have no partitions."""
    expected_s: float | None = None
    """Expected time in seconds; None: not known."""

    @property
    def places(self) -> Iterator[tuple[str, str]]:
        """Each asset at each of its partition keys; the key is empty where there are no partitions."""
        return product(self.assets, self.keys or ("",))

    @property
    def name(self) -> str:
        """What the piece is of, for people."""
        where = "" if not self.keys else self.keys[0] if len(self.keys) == 1 else f"{self.keys[0]}...{self.keys[-1]}"
        what = ", ".join(asset.rpartition("evaluation/")[2] for asset in self.assets)
        return f"{where}: {what}" if where else what


SHARDS = ("source_split", "tar_shards", "shard_manifest", "transformed_shards")
"""Kinds of assets whose outcome is a folder of shards with its manifest."""


class AssetName(NamedTuple):
    """What an asset key below the benchmark's says."""

    kind: str
    """Such as `evaluation` or `shard_manifest`."""
    of: str
    """Experiment, model or transform; empty: the key names none."""
    beside: Cell | None
    """Set beside the cells that it is of; None: it is of the partitions of its run."""

    @classmethod
    def parse(cls, asset: str) -> "AssetName":
        """Return what *asset* says."""
        folder, _, rest = asset.partition("/")
        beside = {cell.corruption: cell for cell in (CLEAN, TRAIN)}.get(folder)
        kind, _, of = (rest if beside else asset).partition("/")
        return cls(kind=kind, of=of, beside=beside)


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The streams of an experiment at one partition key, which are unfinished."""

    experiment: str
    key: str
    asset: str
    """Key of the experiment's asset below the benchmark's."""
    corruption: str
    """Corruption of the cell; empty: the key is of a stream over several cells."""
    is_partition: bool
    """Whether *key* is a partition of the asset; clean images and whole streams have none."""
    cells: tuple[Cell, ...]
    """Cells that the streams read."""
    expected_s: float
    """Expected time in seconds, or a weight where nothing was ever timed."""

    @property
    def place(self) -> tuple[str, str]:
        """The asset and its partition key, as in `Piece.places`."""
        return self.asset, self.key if self.is_partition else ""


def evaluation_pieces(
    work: Sequence[Work],
    *,
    by: Cut,
    num_devices: int,
    severities: Sequence[int],
    is_timed: bool,
    busy: AbstractSet[tuple[str, str]] = frozenset(),
) -> tuple[Piece, ...]:
    """Return *work* as pieces, the longest first.

    What lies at one corruption, or at one cell, is put together until a piece is as long as a quarter of a device's
    share. A stream over several cells is always a piece of its own.

    Args:
        work: What is unfinished.
        by: The most that a piece covers: the cells of one corruption, one cell, or one stream of one experiment.
        num_devices: Number of pieces that run at a time.
        severities: Severities of the benchmark, in its order, which is that of partitions.
        is_timed: Whether the expected times are seconds.
        busy: Places that run or wait already: a range must not reach over them, so that what an experiment has left of
            a corruption is cut into cells where it has some.
    """
    share_s = sum(each.expected_s for each in work) / (num_devices * _PIECES_OF_A_DEVICE)
    limit_s = 0.0 if by == "stream" else share_s
    groups = [together for group in _groups(work, by, busy) for together in _filled(group, limit_s)]
    groups.sort(key=lambda group: -sum(each.expected_s for each in group))
    return tuple(_piece(group, severities, is_timed=is_timed) for group in groups)


def _groups(work: Iterable[Work], by: Cut, busy: AbstractSet[tuple[str, str]]) -> Iterator[list[list[Work]]]:
    """Yield what may be in one piece: a list for each experiment, whose cells are not to be cut further."""
    cut_up = {(asset, key.partition("|")[0]) for asset, key in busy}
    groups: Mapping[tuple[str, ...], dict[str, list[Work]]] = defaultdict(lambda: defaultdict(list))
    for each in work:
        if not each.corruption:
            where: tuple[str, ...] = ("stream", each.experiment, each.key)
        elif by == "corruption" and each.is_partition and (each.asset, each.corruption) not in cut_up:
            where = (each.corruption,)
        else:
            where = (each.corruption, each.key)
        groups[where][each.experiment].append(each)
    for group in groups.values():
        yield list(group.values())


def _filled(units: list[list[Work]], limit_s: float) -> Iterator[list[Work]]:
    """Put the *units* together, the longest first, as long as a piece stays below *limit_s*."""
    lengths = sorted(((sum(each.expected_s for each in unit), unit) for unit in units), key=lambda pair: -pair[0])
    piece: list[Work] = []
    length_s = 0.0
    for unit_s, unit in lengths:
        if piece and length_s + unit_s > limit_s:
            yield piece
            piece, length_s = [], 0.0
        piece += unit
        length_s += unit_s
    yield piece


def _piece(work: Sequence[Work], severities: Sequence[int], *, is_timed: bool) -> Piece:
    order = {str(severity): position for position, severity in enumerate(severities)}
    keys = {each.key for each in work if each.is_partition}
    return Piece(
        stage="evaluations",
        assets=tuple(dict.fromkeys(each.asset for each in work)),
        keys=tuple(sorted(keys, key=lambda key: order.get(key.rpartition("|")[2], 0))),
        expected_s=sum(each.expected_s for each in work) if is_timed else None,
    )
