"""Where images come from."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tta_pipeline.benchmarks import sources as declared
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.labels.class_map import ClassMap, pin_class_map
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import CLEAN, TRAIN
from tta_pipeline.progress import Reporter, quiet
from tta_pipeline.sources.existing_shards import ExistingShards
from tta_pipeline.sources.folder_tree import FolderTree, discover
from tta_pipeline.sources.listing import Observed, Source
from tta_pipeline.sources.remote_shards import RemoteShards
from tta_pipeline.sources.routed import Routed

_Corrupted = declared.FolderSource | declared.ArchiveSource | declared.NpySource | declared.GeneratedSource


def observed_source(benchmark: Benchmark, locations: Locations) -> Observed:
    """Return the source that *benchmark* names, or its third-party shards."""
    return existing_shards(benchmark) or remote_shards(benchmark) or open_source(benchmark, locations)


def existing_shards(benchmark: Benchmark) -> ExistingShards | None:
    """Return the shards on disk that *benchmark* names as its source, or None if it names something else."""
    source = benchmark.source
    if not isinstance(source, declared.ShardsSource) or not isinstance(source.root, Path):
        return None
    clean = ((CLEAN, source.clean.expanduser()),) if isinstance(source.clean, Path) else ()
    return ExistingShards(root=source.root.expanduser(), cells=benchmark.cells, elsewhere=clean)


def remote_shards(benchmark: Benchmark) -> RemoteShards | None:
    """Return the shards at URLs that *benchmark* names as its source, or None if it names something else."""
    source = benchmark.source
    if not isinstance(source, declared.ShardsSource) or isinstance(source.root, Path):
        return None
    clean = ((CLEAN, source.clean),) if isinstance(source.clean, tuple) else ()
    return RemoteShards(urls=source.root, elsewhere=clean)


def open_source(benchmark: Benchmark, locations: Locations, progress: Reporter = quiet) -> Source:
    """Return the images that *benchmark* names; for generated digits, the generated files.

    *progress* reports how much of an archive has been read.
    """
    source = benchmark.source
    assert not isinstance(source, declared.ShardsSource), "shards are linked to and adopted, not converted"
    if isinstance(source, declared.DigitsSource):
        from tta_pipeline.sources.digits import digit_tree

        return digit_tree(locations.generated_source(benchmark.name), (*benchmark.cells, CLEAN, TRAIN))
    spill_root = locations.root / benchmark.name
    corrupted = _corrupted(benchmark, source, spill_root, progress)
    if isinstance(source, declared.GeneratedSource) or source.clean is None:
        return corrupted
    return Routed(source=corrupted, elsewhere={CLEAN: _clean(source.clean, spill_root, progress)})


def benchmark_class_map(
    benchmark: Benchmark,
    locations: Locations,
    source: Observed | None = None,
    found: tuple[str, ...] | None = None,
) -> ClassMap:
    """Return the class map of *benchmark*, pinned at its first use.

    The classes are those of the file that the benchmark names or, without one, those *found*, or those of the *source*.

    Raises:
        ClassMapError: the classes in the file that the benchmark names, or their order, are not the pinned ones.
    """

    def find() -> tuple[str, ...]:
        from tta_pipeline.labels.label_files import read_classes

        if isinstance(benchmark.class_map, Path):
            return read_classes(benchmark.class_map.expanduser())
        return found or (source or observed_source(benchmark, locations)).class_names()

    pinned = pin_class_map(locations.class_map(benchmark.name), find)
    named = benchmark.class_map.expanduser() if isinstance(benchmark.class_map, Path) else None
    if named is not None and named.exists():
        from tta_pipeline.labels.label_files import read_classes

        pinned.require_same(read_classes(named), where=named, pinned_at=locations.class_map(benchmark.name))
    return pinned


def _corrupted(benchmark: Benchmark, source: _Corrupted, spill_root: Path, progress: Reporter) -> Source:
    if isinstance(source, declared.FolderSource):
        root = source.root.expanduser()
        is_flat = source.group_depth == len(("corruption", "severity"))
        found = FolderTree(root=root, cells=benchmark.cells) if is_flat else discover(root, group_depth=3)
        return replace(found, class_pattern=source.class_pattern)
    if isinstance(source, declared.NpySource):
        from tta_pipeline.sources.npy import NpySource

        return NpySource(root=source.root.expanduser(), cells=benchmark.cells, spill_root=spill_root)
    if isinstance(source, declared.GeneratedSource):
        return _generated(benchmark, source, spill_root, progress)
    return _archived(benchmark, source, spill_root, progress)


def _generated(benchmark: Benchmark, source: declared.GeneratedSource, spill_root: Path, progress: Reporter) -> Source:
    from tta_pipeline.sources.generated import GeneratedSource
    from tta_pipeline.sources.generator import Encoding

    return GeneratedSource(
        clean=_clean(source.clean, spill_root, progress),
        cells=benchmark.cells,
        table=source.severity_table,
        seed=source.seed,
        encoding=Encoding(jpeg_quality=source.stored_quality),
        image_size=benchmark.image_size,
        spill_root=spill_root,
        jobs=source.jobs,
    )


def _archived(benchmark: Benchmark, source: declared.ArchiveSource, spill_root: Path, progress: Reporter) -> Source:
    from tta_pipeline.sources.archive import ArchiveSource
    from tta_pipeline.sources.published import CORRUPTIONS_BY_ARCHIVE, MD5_BY_ARCHIVE

    return ArchiveSource(
        archives=tuple(path.expanduser() for path in source.archives),
        cells=benchmark.cells,
        spill_root=spill_root,
        expected_md5=MD5_BY_ARCHIVE[source.published] if source.published else {},
        known_corruptions=CORRUPTIONS_BY_ARCHIVE.get(source.published or "", {}),
        class_pattern=source.class_pattern,
        progress=progress,
    )


def _clean(clean: declared.CleanImages, spill_root: Path, progress: Reporter) -> Source:
    """Return the uncorrupted images."""
    path = clean.path.expanduser()
    if path.suffix in (".tar", ".gz", ".tgz"):
        from tta_pipeline.sources.archive import ArchiveSource

        return ArchiveSource(
            archives=(path,),
            cells=(CLEAN,),
            spill_root=spill_root / "clean",
            layout=clean.layout,
            classes_by_file=_ground_truth(clean),
            progress=progress,
        )
    # torchvision's ImageNet keeps the training images next to the validation images.
    folder = path / "val" if (path / "val").is_dir() else path
    return FolderTree(root=folder, cells=(CLEAN,), elsewhere=((CLEAN, folder),))


def _ground_truth(clean: declared.CleanImages) -> Mapping[str, str]:
    from tta_pipeline.labels.label_files import devkit_ids, read_ground_truth

    if clean.ground_truth is None:
        return {}
    ids = devkit_ids(clean.devkit.expanduser()) if clean.devkit else None
    return read_ground_truth(clean.ground_truth.expanduser(), ids)
