"""Where images come from."""

from tta_pipeline.benchmarks.spec import Benchmark, FolderSource
from tta_pipeline.locations import Locations
from tta_pipeline.partitions import CLEAN, TRAIN
from tta_pipeline.sources.folder_tree import FolderTree
from tta_pipeline.sources.listing import Source


def open_source(benchmark: Benchmark, locations: Locations) -> Source:
    """Return the source that *benchmark* names; for generated images, the files that were generated."""
    source = benchmark.source
    if isinstance(source, FolderSource):
        clean = ((CLEAN, source.clean.expanduser()),) if source.clean else ()
        return FolderTree(root=source.root.expanduser(), cells=benchmark.cells, elsewhere=clean)
    return FolderTree(root=locations.generated_source(benchmark.name), cells=(*benchmark.cells, CLEAN, TRAIN))
