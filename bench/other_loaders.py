"""Third-party loaders over the samples of a shard set, for `bench.loaders`; each imports its package when it reads.

Install those to compare: `pip install nvidia-dali-cuda130 spdl litdata mosaicml-streaming`, and FFmpeg for SPDL.
"""

import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.extras.loader_bench.baseline import (
    Baseline,
    Output,
    decode_image,
    read_stored_files,
    tensor_transform,
)
from tta_pipeline.extras.loader_bench.loaders import Loader
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet

_COMPONENT = "image"
_CHUNK_BYTES = 64 * 2**20


class TarLoader(Baseline):
    """A map-style dataset over `tarfile`, as users often write one; each worker opens a shard at its first use."""

    outputs = ("float32", "uint8")

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch."""
        yield from self.map_style_batches(_Members(self.shard_set, self.output), self.order.indices.tolist())


class _Members(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, shard_set: ShardSet, output: Output) -> None:
        index = shard_set.index
        self._paths = [shard_set.folder / shard.name for shard in shard_set.manifest.shards]
        self._shards, self._offsets, self._labels = index.shards, index.offsets, index.labels
        self._transform = tensor_transform(output)
        self._opened: dict[Path, tuple[tarfile.TarFile, dict[int, tarfile.TarInfo]]] = {}

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        tar, members = self._open(self._paths[self._shards[position]])
        file = tar.extractfile(members[int(self._offsets[position])])
        assert file is not None
        return self._transform(decode_image(file.read())), int(self._labels[position])

    def __del__(self) -> None:
        for tar, _ in self._opened.values():
            tar.close()

    def _open(self, path: Path) -> tuple[tarfile.TarFile, dict[int, tarfile.TarInfo]]:
        if path not in self._opened:
            tar = tarfile.open(path)  # noqa: SIM115 - it stays open as long as the dataset
            self._opened[path] = (tar, {member.offset_data: member for member in tar.getmembers()})
        return self._opened[path]


class DaliLoader(Baseline):
    """NVIDIA DALI: its webdataset reader with threads; decoding on the GPU (`mixed`) if CUDA is available."""

    outputs = ("uint8",)

    @classmethod
    def prepare(cls, shard_set: ShardSet, folder: Path) -> None:
        """Write the index files of DALI's `wds2idx`, version 1.2, for each shard."""
        index = shard_set.index
        for number, shard in enumerate(shard_set.manifest.shards):
            places = np.flatnonzero(index.shards == number).tolist()
            lines = [f"{_COMPONENT} {index.offsets[place]} {index.sizes[place]} {place}" for place in places]
            (folder / f"{shard.name}.idx").write_text("\n".join([f"v1.2 {len(lines)}", *lines, ""]))

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch, in stored order."""
        pipeline = self._pipeline()
        stored = np.arange(len(self.order))
        for start in range(0, len(stored), self.batch_size):
            indices = stored[start : start + self.batch_size]
            (decoded,) = pipeline.run()
            # In the last batch, the reader has started over.
            yield self.batch(torch.utils.dlpack.from_dlpack(decoded.as_tensor())[: len(indices)], indices)

    def _pipeline(self) -> Any:
        from nvidia.dali import Pipeline, fn

        names = [shard.name for shard in self.shard_set.manifest.shards]
        has_cuda = torch.cuda.is_available()
        pipeline = Pipeline(self.batch_size, max(1, self.num_threads), 0 if has_cuda else None)
        with pipeline:
            encoded = fn.readers.webdataset(
                paths=[str(self.shard_set.folder / name) for name in names],
                index_paths=[str(self.folder / f"{name}.idx") for name in names],
                ext=[_COMPONENT],
            )
            pipeline.set_outputs(fn.decoders.image(encoded, device="mixed" if has_cuda else "cpu"))
        pipeline.build()
        return pipeline


class SpdlLoader(Baseline):
    """SPDL's threads read batches at the manifest's offsets, since SPDL has no reader of shards, and decode them.

    FFmpeg's pixels are as bright as libjpeg's, except for rounding. Most files keep colours at half size, and FFmpeg
    enlarges them differently: there, single channels differed by up to 40 of 255, otherwise by 3.
    """

    outputs = ("uint8",)

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch."""
        import spdl.io
        from spdl.pipeline import PipelineBuilder

        index, num_threads = self.shard_set.index, max(1, self.num_threads)
        starts = range(0, len(self.order), self.batch_size)
        with ExitStack() as stack:
            files = [
                stack.enter_context((self.shard_set.folder / shard.name).open("rb", buffering=0)).fileno()
                for shard in self.shard_set.manifest.shards
            ]

            def load(indices: Indices) -> tuple[torch.Tensor, Indices]:
                images = [
                    os.pread(files[index.shards[place]], int(index.sizes[place]), int(index.offsets[place]))
                    for place in indices.tolist()
                ]
                return spdl.io.to_torch(spdl.io.load_image_batch(images, width=None, height=None)), indices

            pipeline = (
                PipelineBuilder()
                .add_source([self.order.indices[start : start + self.batch_size] for start in starts])
                .pipe(load, concurrency=num_threads, output_order="input")
                .add_sink()
                .build(num_threads=num_threads)
            )
            with pipeline.auto_stop():
                for images, indices in pipeline.get_iterator():
                    yield self.batch(images, indices)


class LitdataLoader(Baseline):
    """Lightning's litdata: StreamingDataLoader over its own chunks of JPEG files, which torchvision decodes."""

    outputs = ("uint8",)

    @classmethod
    def prepare(cls, shard_set: ShardSet, folder: Path) -> None:
        """Write chunks of unchanged image files and their positions."""
        from litdata.streaming.cache import Cache

        cache = Cache(str(folder), chunk_bytes=_CHUNK_BYTES)
        for position, picture in enumerate(_open_stored_images(shard_set)):
            cache[position] = {"image": picture, "position": position}
        cache.done()
        cache.merge()

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch, in litdata's own order."""
        from litdata import StreamingDataLoader, StreamingDataset

        dataset = StreamingDataset(str(self.folder))
        loader = StreamingDataLoader(dataset, batch_size=self.batch_size, num_workers=self.num_threads)
        yield from self.rebatch((batch["image"].permute(0, 2, 3, 1), batch["position"]) for batch in loader)


class MosaicmlLoader(Baseline):
    """MosaicML's streaming: DataLoader over its own MDS files of JPEG files, which Pillow decodes."""

    outputs = ("uint8",)

    @classmethod
    def prepare(cls, shard_set: ShardSet, folder: Path) -> None:
        """Write MDS files of unchanged image files and their positions."""
        from streaming import MDSWriter

        with MDSWriter(columns={"image": "jpeg", "position": "int"}, out=str(folder)) as writer:
            for position, picture in enumerate(_open_stored_images(shard_set)):
                writer.write({"image": picture, "position": position})

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch, in streaming's own order."""
        from streaming import StreamingDataset

        dataset = StreamingDataset(local=str(self.folder), batch_size=self.batch_size)
        loader = DataLoader(dataset, batch_size=self.batch_size, num_workers=self.num_threads, collate_fn=_collate)
        yield from self.rebatch(loader)


def _collate(samples: Sequence[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    images = np.stack([np.asarray(sample["image"]) for sample in samples])
    return torch.from_numpy(images), torch.tensor([int(sample["position"]) for sample in samples])


def _open_stored_images(shard_set: ShardSet) -> Iterator[Image.Image]:
    """Yield every image in stored order, opened as a file, so that writers of JPEG files copy the bytes."""
    with tempfile.NamedTemporaryFile() as file:
        for data in read_stored_files(shard_set):
            Path(file.name).write_bytes(data)
            with Image.open(file.name) as picture:
                yield picture


_LOADERS: Mapping[str, tuple[type[Baseline], str]] = {
    "tar": (TarLoader, "torch"),
    "dali": (DaliLoader, "nvidia-dali-cuda130"),
    "spdl": (SpdlLoader, "spdl"),
    "litdata": (LitdataLoader, "litdata"),
    "streaming": (MosaicmlLoader, "mosaicml-streaming"),
}
"""Each loader with the package that it needs."""


def installed_loaders() -> Mapping[str, Loader]:
    """Return the loaders whose package is installed."""
    installed = {found.name for found in distributions()}
    return {
        name: Loader(module=__name__, class_name=kind.__name__, package=package)
        for name, (kind, package) in _LOADERS.items()
        if package in installed
    }
