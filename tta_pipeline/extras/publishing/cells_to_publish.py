"""Finds the cells to publish, in a benchmark or below a folder."""

from collections.abc import Sequence
from pathlib import Path

from tta_pipeline.errors import ManifestError
from tta_pipeline.extras.publishing.published_cell import PublishedCell, verify_cell
from tta_pipeline.shards.expected_shard_set import ExpectedShardSet, expected_at_path, expected_for_cell
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.verification import find_shard_sets
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.partitions import TRAIN, Cell
from tta_pipeline.util.progress import Reporter


def find_benchmark_cells(
    locations: Locations, benchmark_name: str, cells: Sequence[Cell], reporter: Reporter
) -> tuple[PublishedCell, ...]:
    """Return *cells* of a benchmark, after hashing each of their shards.

    Raises:
        ManifestError: a cell has no shards; see also `verify_cell`.
    """
    folders = {cell: locations.shards(benchmark_name, cell) for cell in cells}
    if missing := [cell.key for cell, folder in folders.items() if not (folder / MANIFEST_FILE).exists()]:
        raise ManifestError(
            f"found no shards of {len(missing)} of {len(cells)} cells of {benchmark_name}, such as {missing[0]}; "
            "expected all: materialize tar_shards and shard_manifest first, or name the cells to publish with --cell"
        )
    return _verify_cells(
        [(folder, expected_for_cell(locations, benchmark_name, cell)) for cell, folder in folders.items()], reporter
    )


def find_cells_below(root: Path, keys: Sequence[str], reporter: Reporter) -> tuple[PublishedCell, ...]:
    """Return the cells below *root*, except training images, after hashing each shard; only *keys*, if there are any.

    Raises:
        ManifestError: there is no shard set, or none for one of *keys*; see also `verify_cell`.
    """
    stated = {folder: ShardSet.open(folder).manifest.cell for folder in find_shard_sets([root])}
    chosen = {folder: cell for folder, cell in stated.items() if cell != TRAIN and (not keys or cell.key in keys)}
    if unknown := sorted(set(keys) - {cell.key for cell in chosen.values()}):
        keys_there = sorted({cell.key for cell in stated.values()})
        there = name_choices(unknown[0], keys_there, listed_in="`tta-pipeline shards verify`")
        raise ManifestError(f"found no cell {unknown[0]!r} below {root}; expected one of {there}")
    return _verify_cells([(folder, expected_at_path(folder, cell)) for folder, cell in chosen.items()], reporter)


def _verify_cells(found: Sequence[tuple[Path, ExpectedShardSet]], reporter: Reporter) -> tuple[PublishedCell, ...]:
    progress = reporter("hashing", len(found), unit="cells")
    proven = []
    for folder, belonging in found:
        proven.append(cell := verify_cell(folder, belonging))
        progress.advance(1, cell.shard_set.manifest.shard_bytes)
    return tuple(proven)
