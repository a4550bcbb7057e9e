"""Speed of sharding, against the usual ways and against the limits: `python -m bench.sharding`."""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.figures import spread
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.cli.shard_everything import ShardRequest, shard_everything
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.data.images.archived_images import ArchivedImages
from tta_pipeline.data.images.folder_tree import discover_tree
from tta_pipeline.data.images.kinds import ArchiveSection
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import CLEAN, grid_of_cells
from tta_pipeline.extras.loader_bench.synthetic_photographs import NUM_CLASSES, make_jpeg_tree
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import Conversion, convert
from tta_pipeline.shards.shard_set_writing import Target, write_shards
from tta_pipeline.shards.verification import verify_shard_sets
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Progress, quiet_reporter

REPEATS = 5
NUM_SHARDS = 16
NUM_CORES = len(os.sched_getaffinity(0))
QUIET = Progress(lambda _: None, what="", total=0, interval_s=float("inf"))
ARCHIVE_COPIES = 4  # so that the start of processes takes a share as small as for a published archive
ARCHIVE_CELLS = grid_of_cells(("gaussian_noise", "shot_noise", "fog", "contrast"), (1, 2, 3, 4, 5))


def main() -> None:
    """Make the images, measure, and print a table."""
    data = Path(os.environ.get("TTA_DATA_ROOT", "data")) / "bench"
    table = Table(title="Sharding: medians \\[range] of interleaved runs", box=None)
    for name in ("what", "ours", "reference", "ratio", "asked"):
        table.add_column(name)
    for size, num_images, copies, asked in ((64, 20_000, 5, ">= 3.5"), (224, 6_000, 4, ">= 15 k images/s")):
        tree = make_jpeg_tree(data / f"copied_{size}", num_images=num_images, size=size, copies=copies)
        _compare_trees(table, tree, size, asked)
        _compare_archive(table, _archive(data / f"cells_{size}.tar", tree), size)
    Console(width=140).print(table)


def _compare_trees(table: Table, tree: Path, size: int, asked: str) -> None:
    def shard(folder: Path) -> int:
        with Workers(NUM_CORES) as workers:
            return write(folder, workers)

    def write(folder: Path, workers: Workers) -> int:
        source = discover_tree(tree, class_dir_depth=0)
        version = source.version(CLEAN)
        listing = source.listing(CLEAN)
        write_shards(
            listing,
            Target(folder=folder / "shards", benchmark_name="bench", source_kind="folder"),
            version=version,
            class_map=ClassMap(classes=source.class_names()),
            settings=ShardSettings(num_shards=NUM_SHARDS),
            progress=QUIET,
            workers=workers,
        )
        return len(listing.images)

    speeds = _run_interleaved({"ours": shard, "tarfile.add": lambda folder: _tarfile_add(tree, folder)})
    _row(
        table, f"{size}x{size} tree -> shards, both hashes, fsync", speeds, "tarfile.add", unit="images/s", asked=asked
    )
    with tempfile.TemporaryDirectory(dir=tree.parent) as kept:
        shard(Path(kept))
        folder = Path(kept) / "shards"
        class_map = ClassMap(classes=discover_tree(tree, class_dir_depth=0).class_names())
        publish_shard_set(folder, class_map, QUIET)
        paths = sorted(folder.glob("*.tar"))
        checks = {"ours": lambda _: _verify(folder), "sha256": lambda _: _sha256(paths)}
        _row(table, f"{size}x{size} verify", _run_interleaved(checks), "sha256", unit="MB/s", asked=">= 0.8")
        reads = {"ours": lambda _: _read_back(folder, class_map), "sha256": lambda _: _sha256(paths)}
        _row(
            table,
            f"{size}x{size} read-back (manifest)",
            _run_interleaved(reads),
            "sha256",
            unit="MB/s",
            asked="timed apart",
        )


def _compare_archive(table: Table, archive: Path, size: int) -> None:
    def write(folder: Path) -> float:
        """Write as the asset `tar_shards` does, one cell in each process."""
        class_map = ClassMap(classes=tuple(f"n{number:08d}" for number in range(NUM_CLASSES)))
        conversion = Conversion(
            source=ArchivedImages(archives=(archive,), cells=ARCHIVE_CELLS, spill_root=folder), source_kind="archive",
            generated=False, benchmark_name="bench", class_map=class_map,
            settings=lambda _: ShardSettings(num_shards=1), folder=lambda cell: folder / cell.path,
            progress=quiet_reporter,
        )  # fmt: skip
        with Workers(NUM_CORES) as workers:
            workers.start(convert)
            with conversion.session(ARCHIVE_CELLS) as session:
                every = [workers.submit(convert, session.task(cell), quiet_reporter) for cell in ARCHIVE_CELLS]
                assert all(each.result().was_written for each in every)
        return archive.stat().st_size / 1e6

    def write_and_read(folder: Path) -> float:
        order = ShardRequest(
            images=ArchiveSection(kind="archive", archives=(archive,)), output=folder / "shards", jobs=NUM_CORES,
            settings=ShardSettings(num_shards=1), dataset=shipped_sets()["imagenet_c"],
        )  # fmt: skip
        done = list(shard_everything(order, quiet_reporter))
        assert len(done) == len(ARCHIVE_CELLS), done
        return archive.stat().st_size / 1e6

    def read_pass(folder: Path) -> float:
        source = ArchivedImages(archives=(archive,), cells=ARCHIVE_CELLS, spill_root=folder)
        with source.prepared(ARCHIVE_CELLS):
            return archive.stat().st_size / 1e6

    speeds = _run_interleaved(
        {
            "write": write,
            "with manifests": write_and_read,
            "pass": read_pass,
            "cat": lambda _: _cat(archive),
            # Each byte is hashed with its image and with its shard.
            "both hashes": lambda _: _sha256([archive] * 2) / 2,
        }
    )
    for what, ours, reference, asked in (
        (f"{size}x{size} archive -> 20 cells", "write", "cat", ">= 0.7, or bound by sha256"),
        ("  the same", "write", "both hashes", ""),
        ("  its pass over the archive alone", "pass", "both hashes", ""),
        ("  with manifests, read back", "with manifests", "both hashes", "timed apart"),
    ):
        _row(table, what, {"ours": speeds[ours], reference: speeds[reference]}, reference, unit="MB/s", asked=asked)


def _run_interleaved(ways: Mapping[str, Callable[[Path], float]]) -> dict[str, list[float]]:
    """Return the speed of each of *ways*, run in turn so that fluctuations of the machine affect all of them."""
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    data = Path(os.environ.get("TTA_DATA_ROOT", "data")) / "bench"
    for repeat in range(REPEATS + 1):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory(dir=data) as folder:
                os.sync()
                started = time.perf_counter()
                amount = way(Path(folder))
                if repeat:  # the first run warms the page cache
                    speeds[name].append(amount / (time.perf_counter() - started))
    return speeds


def _row(table: Table, what: str, speeds: Mapping[str, list[float]], reference: str, *, unit: str, asked: str) -> None:
    ratios = [ours / theirs for ours, theirs in zip(speeds["ours"], speeds[reference], strict=True)]
    table.add_row(
        what,
        f"{spread(speeds['ours'])} {unit}",
        f"{reference} {spread(speeds[reference])}",
        spread(ratios, digits=2),
        asked,
    )


def _tarfile_add(tree: Path, folder: Path) -> int:
    """Write in the simplest way: sorted files, `tarfile.add`, no hash, no fsync."""
    paths = sorted(tree.rglob("*.JPEG"))
    size = -(-len(paths) // NUM_SHARDS)
    for number in range(NUM_SHARDS):
        with tarfile.open(folder / f"shard-{number:05d}.tar", "w") as tar:
            for path in paths[number * size : (number + 1) * size]:
                tar.add(path, arcname=str(path.relative_to(tree)))
    return len(paths)


def _verify(folder: Path) -> float:
    (verdict,) = verify_shard_sets([folder], quiet_reporter)
    assert not verdict.problems, verdict
    return verdict.shard_bytes / 1e6


def _read_back(folder: Path, class_map: ClassMap) -> float:
    (folder / "manifest.json").unlink()
    with Workers(NUM_CORES) as workers:
        return publish_shard_set(folder, class_map, QUIET, workers).shard_set.manifest.shard_bytes / 1e6


def _sha256(paths: list[Path]) -> float:
    """Hash files on all cores."""

    def digest(path: Path) -> int:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
        return path.stat().st_size

    with ThreadPoolExecutor(NUM_CORES) as pool:
        return sum(pool.map(digest, paths)) / 1e6


def _cat(path: Path) -> float:
    with Path(os.devnull).open("wb") as sink:
        subprocess.run(["cat", path], stdout=sink, check=True)
    return path.stat().st_size / 1e6


def _archive(path: Path, tree: Path) -> Path:
    """Pack `ARCHIVE_COPIES` copies of the tree as an archive in Zenodo's layout, cell after cell, unless it exists."""
    if not path.exists():
        images = [(copy, image) for copy in range(ARCHIVE_COPIES) for image in sorted(tree.rglob("*.JPEG"))]
        with tarfile.open(path.with_suffix(".part"), "w", format=tarfile.GNU_FORMAT) as tar:
            for number, cell in enumerate(ARCHIVE_CELLS):
                for copy, image in images[number :: len(ARCHIVE_CELLS)]:
                    tar.add(image, f"{cell.path}/{image.parent.name}/{copy}_{image.name}")
        shutil.move(path.with_suffix(".part"), path)
    return path


if __name__ == "__main__":
    main()
