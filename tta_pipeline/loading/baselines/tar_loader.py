"""A map-style reader of tar members: a torch `Dataset` over `tarfile`, as users often write one themselves."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tta_pipeline.loading.baselines.baseline import Baseline, Output, decode_image, tensor_transform
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet


class TarLoader(Baseline):
    """DataLoader over members of the shards; each worker opens a shard, and reads its headers, at its first use.

    It works like the first system's archive script, but looks members up by offset instead of searching.
    """

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
            tar = tarfile.open(path)  # noqa: SIM115 - it stays open as long as the data set
            self._opened[path] = (tar, {member.offset_data: member for member in tar.getmembers()})
        return self._opened[path]
