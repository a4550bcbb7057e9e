"""Read the loose files that shards were made of as `ImageFolder` does: one file for each image, decoded by Pillow."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

import torch
from torch.utils.data import Dataset

from tta_pipeline.data.sources.listing import ImageReader, Listing, SourceImage
from tta_pipeline.errors import SourceError, StreamError
from tta_pipeline.loading.batch_loader import BatchLoader, collate_images, decode_or_explain, require_images
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.member_names import make_member_name, sample_key
from tta_pipeline.shards.ordering import Indices
from tta_pipeline.shards.shard_set import ShardSet


@dataclass(frozen=True, kw_only=True)
class LooseFiles:
    """The file of each sample of one or several shard sets."""

    images: tuple[SourceImage, ...]
    """File of each sample, by its position in the index."""
    sha256s: tuple[bytes, ...]
    """sha256 of each sample's bytes according to the manifest, by its position in the index."""

    @classmethod
    def of(cls, sets: Sequence[tuple[ShardSet, Listing]]) -> Self:
        """Return the files of the samples of *sets*, each set with the listing of its cell.

        Raises:
            StreamError: a sample has no file of its name and size.
        """
        return cls(
            images=tuple(chain.from_iterable(_find_files(shard_set, listing) for shard_set, listing in sets)),
            sha256s=tuple(chain.from_iterable(each.index.table["sha256"].to_pylist() for each, _ in sets)),
        )

    def require_unchanged(self, positions: Indices) -> None:
        """Check that the files of the samples at *positions*, shape (M,), have the bytes of the manifest.

        The files still have the size and time of change from before they were streamed, so their bytes now are the
        bytes that were streamed. The check reads every file a second time, outside any measured time.

        Raises:
            StreamError: a file has other bytes, or was changed since it was listed.
        """
        with ImageReader() as reader:
            for position in positions.tolist():
                image, expected = self.images[position], self.sha256s[position]
                try:
                    found = hashlib.sha256(reader.read(image)).digest()
                except SourceError as error:
                    raise StreamError(f"{error}; no result was recorded") from error
                if found != expected:
                    raise StreamError(
                        f"{image.path}: found sha256 {found.hex()}; expected {expected.hex()} as in the manifest, "
                        "so no result was recorded: materialize tar_shards and shard_manifest of this cell again"
                    )


@dataclass(frozen=True, kw_only=True)
class LooseFileLoader(BatchLoader):
    """A `DataLoader` over loose files, in any order. It compares no bytes; see `LooseFiles.require_unchanged`."""

    files: LooseFiles

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch.

        Raises:
            StreamError: a file cannot be read or decoded; the message names it.
        """
        dataset = _Images([image.path for image in self.files.images], self.image_size)
        for number, images in enumerate(self.make_data_loader(dataset, self.order.indices.tolist(), collate_images)):
            yield self.batch_at(number, require_images(images))


class _Images(Dataset[torch.Tensor | str]):
    def __init__(self, paths: Sequence[str], image_size: int) -> None:
        self._paths = paths
        self._image_size = image_size

    def __getitem__(self, position: int) -> torch.Tensor | str:
        path = self._paths[position]
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            return f"{path} cannot be read ({error.strerror}); expected an image of the source"
        return decode_or_explain(data, image_size=self._image_size, place=path)


def _find_files(shard_set: ShardSet, listing: Listing) -> Iterator[SourceImage]:
    """Yield the file of each sample of *shard_set*, in stored order."""
    by_key = {sample_key(make_member_name(image.class_name, image.file_name)): image for image in listing.images}
    for key, size_bytes in zip(shard_set.index.keys, shard_set.index.sizes.tolist(), strict=True):
        image = by_key.get(key)
        if image is None or image.offset is not None or image.size_bytes != size_bytes:
            found = "no such file" if image is None else f"{image.path} of {image.size_bytes} bytes"
            raise StreamError(
                f"{listing.root}, sample {key}: found {found}; expected the loose file of {size_bytes} bytes that "
                f"{shard_set.folder} was made of: materialize tar_shards again, or set loader to indexed"
            )
        yield image
