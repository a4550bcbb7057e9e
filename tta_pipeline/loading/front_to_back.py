"""Read shards front to back with `webdataset`, in stored order and without an index."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import webdataset as wds
from torch.utils.data import get_worker_info

from tta_pipeline.errors import StreamError
from tta_pipeline.loading.baselines.webdataset_loader import IMAGES, shard_paths
from tta_pipeline.loading.batch_loader import BatchLoader, collate_images, decode_or_explain, require_images
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet

_Sample = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FrontToBackLoader(BatchLoader):
    """webdataset over the shards of one set, for orders with rising positions.

    Each worker reads all shards and decodes every n-th batch, so that batches are whole and in order. webdataset by
    itself gives each worker its own shards: then the order depends on the number of workers, and each worker ends with
    a part of a batch. Of the manifest, only keys are compared while the loader reads.
    """

    shard_set: ShardSet

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch.

        Raises:
            LoaderError: webdataset cannot open files in the shard set's folder.
            StreamError: the order goes back, or a sample cannot be decoded or has another key than in the manifest.
        """
        if (self.order.indices[1:] <= self.order.indices[:-1]).any():
            raise StreamError(
                f"{self.shard_set.folder}: found the order {self.order.name}; expected one that never goes back, since "
                "webdataset reads shards front to back: set loader to indexed"
            )
        # The stages of `WebDataset`, except those that distribute shards to processes and workers.
        dataset = wds.DataPipeline(
            wds.SimpleShardList(shard_paths(self.shard_set)),
            wds.tarfile_to_samples(),
            self._images_of_worker,
            wds.batched(self.batch_size, collation_fn=collate_images),
        )
        loader = wds.WebLoader(dataset, batch_size=None, num_workers=self.num_threads, pin_memory=self.pin_memory)
        for number, images in enumerate(loader):
            yield self.batch_at(number, require_images(images))

    def _images_of_worker(self, samples: Iterable[_Sample]) -> Iterator[torch.Tensor | str]:
        """Yield the images of this worker's share, every n-th batch; outside a `DataLoader`, of all batches."""
        worker = get_worker_info()
        number, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        places = enumerate(self.order.indices.tolist())
        wanted = (position for place, position in places if place // self.batch_size % num_workers == number)
        next_position = next(wanted, None)
        for position, sample in enumerate(samples):
            if next_position is None:
                return
            if position == next_position:
                yield self._decode_sample(position, sample)
                next_position = next(wanted, None)

    def _decode_sample(self, position: int, sample: _Sample) -> torch.Tensor | str:
        place, expected = f"{sample['__url__']}, sample {sample['__key__']}", self.shard_set.index.keys[position]
        if sample["__key__"] != expected:
            return f"{place}: expected {expected}, as in the manifest: set loader to indexed"
        found = [extension for extension in (*IMAGES, "npy") if extension in sample]
        if len(found) != 1:
            return f"{place}: found {len(found)} images; expected one: set loader to indexed"
        return decode_or_explain(sample[found[0]], image_size=self.image_size, place=place)
