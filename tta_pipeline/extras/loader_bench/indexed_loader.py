"""This project's own reader, as one loader among others."""

from collections.abc import Iterator

from tta_pipeline.extras.loader_bench.baseline import Baseline
from tta_pipeline.loading.reader import Batch, Stream


class IndexedLoader(Baseline):
    """`tta_pipeline.loading.reader.Stream`."""

    outputs = ("uint8",)

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch."""
        yield from Stream(
            shard_set=self.shard_set,
            order=self.order,
            batch_size=self.batch_size,
            image_size=self.image_size,
            num_threads=self.num_threads,
            pin_memory=self.pin_memory,
            prefetch=Stream.prefetch if self.num_threads else 0,
        )
