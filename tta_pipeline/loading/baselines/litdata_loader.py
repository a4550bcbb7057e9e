"""Lightning's litdata, over its own chunk files."""

from collections.abc import Iterator
from pathlib import Path

from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.cache import Cache

from tta_pipeline.loading.baselines.baseline import Baseline, open_stored_images
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet

_CHUNK_BYTES = 64 * 2**20


class LitdataLoader(Baseline):
    """StreamingDataLoader over JPEG files, which litdata decodes with torchvision."""

    outputs = ("uint8",)
    formats = ("raw",)

    @classmethod
    def prepare(cls, shard_set: ShardSet, folder: Path) -> None:
        """Write chunks of unchanged image files and their positions."""
        cache = Cache(str(folder), chunk_bytes=_CHUNK_BYTES)
        for position, picture in enumerate(open_stored_images(shard_set)):
            cache[position] = {"image": picture, "position": position}
        cache.done()
        cache.merge()

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch, in litdata's own order."""
        dataset = StreamingDataset(str(self.folder))
        loader = StreamingDataLoader(dataset, batch_size=self.batch_size, num_workers=self.num_threads)
        yield from self.rebatch((batch["image"].permute(0, 2, 3, 1), batch["position"]) for batch in loader)
