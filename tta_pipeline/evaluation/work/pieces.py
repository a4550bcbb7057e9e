"""Pieces of a benchmark: the work of one run on one device, cut so that no piece takes much longer than the others."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.cell_ranges import cell_ranges
from tta_pipeline.domain.cells import Cell

Stage = Literal["sets", "shards", "training", "evaluations", "report"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""The stages in order; each begins when no piece of the stage before runs or waits."""
Cut = Literal["corruption", "cell", "stream"]
ON_A_DEVICE: frozenset[Stage] = frozenset({"training", "evaluations"})
"""Stages whose pieces occupy one device each."""
_PIECES_PER_DEVICE = 4
"""Least number of pieces for each device, if there is enough work to cut: all devices then end at about the same
time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Assets of a benchmark and the partitions at which one run materializes them."""

    stage: Stage
    assets: tuple[str, ...]
    """Asset keys below the benchmark's, such as `evaluation/tent` or `clean/shard_manifest`."""
    keys: tuple[str, ...] = ()
    """Partition keys: one range from the first to the last; empty: the assets have no partitions."""
    expected_s: float | None = None
    """Expected time in seconds; None: not known."""

    @property
    def places(self) -> Iterator[tuple[str, str]]:
        """Each asset at each of its partition keys; the key is empty where there are no partitions."""
        return product(self.assets, self.keys or ("",))

    @property
    def name(self) -> str:
        """Description of the piece for people: its keys and its assets."""
        where = "" if not self.keys else self.keys[0] if len(self.keys) == 1 else f"{self.keys[0]}...{self.keys[-1]}"
        what = ", ".join(asset.rpartition("evaluation/")[2] for asset in self.assets)
        return f"{where}: {what}" if where else what


def join_pieces(benchmark: Benchmark, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Join *pieces* of one stage that have equal assets, as far as their cells form ranges: for one device in turn.

    Each piece is a run of Dagster, which costs about a second; a joined one materializes each asset at all its cells.
    Streams over several cells are not joined.
    """
    cells = {cell.key: cell for cell in benchmark.cells}
    groups: dict[object, list[Piece]] = {}
    for piece in pieces:
        is_of_cells = bool(piece.keys) and piece.keys[0] in cells
        groups.setdefault((piece.stage, piece.assets) if is_of_cells else piece, []).append(piece)
    joined: list[Piece] = []
    for key, group in groups.items():
        joined += group if isinstance(key, Piece) else _join_ranges(benchmark, cells, group)
    return tuple(joined)


def _join_ranges(benchmark: Benchmark, cells: Mapping[str, Cell], pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Yield a piece for each range of the cells of *pieces*, whose stage and assets are equal."""
    together = {cells[key] for piece in pieces for key in piece.keys}
    times_s = [piece.expected_s for piece in pieces]
    of_a_cell_s = sum(each for each in times_s if each is not None) / len(together)
    for own in cell_ranges(benchmark, together):
        expected_s = None if None in times_s else of_a_cell_s * len(own)
        yield replace(pieces[0], keys=tuple(cell.key for cell in own), expected_s=expected_s)


def assets_of_shards(benchmark: Benchmark) -> tuple[str, ...]:
    """Return the assets that make the shards of a cell, in their order; images that are there are not made."""
    return (*(["source_split"] if benchmark.is_drawn else []), "tar_shards", "shard_manifest")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The unfinished streams of an experiment at one partition key."""

    experiment: str
    key: str
    asset: str
    """Key of the experiment's asset below the benchmark's."""
    corruption: str
    """Corruption of the cell; empty: the key stands for a stream over several cells."""
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
) -> tuple[Piece, ...]:
    """Group *work* into pieces, the longest first.

    Work of one corruption, or of one cell, is put together until a piece is as long as a quarter of a device's share. A
    stream over several cells is always a piece of its own.

    Args:
        work: The unfinished work.
        by: The most that a piece covers: the cells of one corruption, one cell, or one stream of one experiment.
        num_devices: Number of pieces that run at the same time.
        severities: Severities of the benchmark in its order, which is also the order of the partitions.
        is_timed: Whether the expected times are seconds.
    """
    share_s = sum(each.expected_s for each in work) / (num_devices * _PIECES_PER_DEVICE)
    limit_s = 0.0 if by == "stream" else share_s
    groups = [together for group in _group_work(work, by) for together in _fill_pieces(group, limit_s)]
    groups.sort(key=lambda group: -sum(each.expected_s for each in group))
    return tuple(_make_piece(group, severities, is_timed=is_timed) for group in groups)


def _group_work(work: Iterable[Work], by: Cut) -> Iterator[list[list[Work]]]:
    """Yield the work that may form one piece, as a list for each experiment; these lists are not cut further."""
    groups: Mapping[tuple[str, ...], dict[str, list[Work]]] = defaultdict(lambda: defaultdict(list))
    for each in work:
        if not each.corruption:
            where: tuple[str, ...] = ("stream", each.experiment, each.key)
        elif by == "corruption" and each.is_partition:
            where = (each.corruption,)
        else:
            where = (each.corruption, each.key)
        groups[where][each.experiment].append(each)
    for group in groups.values():
        yield list(group.values())


def _fill_pieces(units: list[list[Work]], limit_s: float) -> Iterator[list[Work]]:
    """Join *units*, the longest first, into pieces that stay below *limit_s*."""
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


def _make_piece(work: Sequence[Work], severities: Sequence[int], *, is_timed: bool) -> Piece:
    order = {str(severity): position for position, severity in enumerate(severities)}
    keys = {each.key for each in work if each.is_partition}
    return Piece(
        stage="evaluations",
        assets=tuple(dict.fromkeys(each.asset for each in work)),
        keys=tuple(sorted(keys, key=lambda key: order.get(key.rpartition("|")[2], 0))),
        expected_s=sum(each.expected_s for each in work) if is_timed else None,
    )
