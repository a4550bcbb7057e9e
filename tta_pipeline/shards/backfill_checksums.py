"""Checksums for shard sets whose file of checksums is lost or damaged."""

from collections.abc import Iterator

from tta_pipeline.data.images.listing import ImageReader
from tta_pipeline.errors import ImagesError, ManifestError
from tta_pipeline.shards.checksums import as_digests, checksum
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.stored_images import stored_images


def backfill_checksums(shard_set: ShardSet) -> ShardSet:
    """Return *shard_set* with checksums; if they are missing, verify every sample and store its checksum.

    Shards at URLs are not read for this: every later read compares the sample's sha256 instead.

    Raises:
        ManifestError: a sample differs from its sha256 in the index, or the checksums cannot be written.
    """
    if shard_set.checksums is not None or shard_set.remote is not None:
        return shard_set
    try:
        return shard_set.add_checksums(as_digests(_checksums(shard_set)))
    except ImagesError as error:
        raise ManifestError(str(error)) from error


def _checksums(shard_set: ShardSet) -> Iterator[bytes]:
    with ImageReader() as reader:
        for image in stored_images(shard_set):
            yield checksum(reader.read(image))
