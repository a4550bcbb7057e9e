"""Open the source and the class map of a benchmark."""

from collections.abc import Callable
from pathlib import Path

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.data.images.images_section import ConvertedSection, ImagesContext
from tta_pipeline.data.images.listing import Observed, Source
from tta_pipeline.data.labels.class_map import ClassMap, pin_class_map, read_pinned_class_map
from tta_pipeline.data.labels.label_files import is_shipped_list, read_classes, read_output_map
from tta_pipeline.data.labels.output_map import OutputMap
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.progress import Reporter, quiet_reporter


def open_observed_images(benchmark: Benchmark, locations: Locations) -> Observed:
    """Open the source of *benchmark*, which may also consist of third-party shards."""
    return benchmark.images.open(_images_context(benchmark, locations, quiet_reporter))


def open_images(benchmark: Benchmark, locations: Locations, progress: Reporter = quiet_reporter) -> Source:
    """Open the images of *benchmark*; for generated digits, the generated files.

    *progress* reports how much of an archive has been read.
    """
    assert isinstance(benchmark.images, ConvertedSection), "shards are linked to and adopted, not converted"
    return benchmark.images.open(_images_context(benchmark, locations, progress))


def load_class_map(
    benchmark: Benchmark,
    locations: Locations,
    source: Observed | None = None,
    find_classes: Callable[[], tuple[str, ...]] | None = None,
) -> ClassMap:
    """Return the class map of *benchmark*, pinned at its first use.

    If the benchmark names its classes, these are used; otherwise the result of *find_classes*, or by default the
    classes of *source*.

    Raises:
        ClassMapError: the classes in the file that the benchmark names, or their order, differ from the pinned ones.
        DataRootError: nothing is pinned in a read-only store.
    """

    def find() -> tuple[str, ...]:
        if named := _read_named_classes(benchmark):
            return named
        return find_classes() if find_classes else (source or open_observed_images(benchmark, locations)).class_names()

    pinned_at = locations.class_map(benchmark.name)
    if not pinned_at.exists():
        locations.require_own(pinned_at)
    pinned = pin_class_map(pinned_at, find)
    if benchmark.names_classes and not _is_missing(benchmark):
        pinned.require_same(_read_named_classes(benchmark), where=Path(benchmark.class_map), pinned_at=pinned_at)
    return pinned


def load_output_map(benchmark: Benchmark) -> OutputMap | None:
    """Return the outputs that stand for each class of *benchmark*; None if each class is one output.

    Raises:
        ClassMapError: the file that the benchmark names is damaged.
    """
    if not benchmark.names_classes or _is_missing(benchmark):
        return None
    return read_output_map(Path(benchmark.class_map).expanduser())


def _images_context(benchmark: Benchmark, locations: Locations, progress: Reporter) -> ImagesContext:
    return ImagesContext(
        cells=benchmark.cells,
        dataset=benchmark.dataset,
        spill_root=locations.spill_root(benchmark.name),
        generated_root=locations.generated_source(benchmark.name),
        image_size=benchmark.image_size,
        classes=lambda: _find_classes(benchmark, locations),
        progress=progress,
    )


def _find_classes(benchmark: Benchmark, locations: Locations) -> tuple[str, ...]:
    """Return the pinned classes of *benchmark*, or those that it names; empty if its class folders are the classes."""
    if not benchmark.names_classes:
        return ()
    pinned = read_pinned_class_map(locations.class_map(benchmark.name))
    return pinned.classes if pinned else _read_named_classes(benchmark)


def _read_named_classes(benchmark: Benchmark) -> tuple[str, ...]:
    return read_classes(Path(benchmark.class_map).expanduser()) if benchmark.names_classes else ()


def _is_missing(benchmark: Benchmark) -> bool:
    path = Path(benchmark.class_map).expanduser()
    return not path.exists() and not is_shipped_list(path)
