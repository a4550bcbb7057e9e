"""The manifest of shards at URLs: made from the shards' own manifest, or by reading every byte once."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tta_pipeline.data.copied_file import copy_file
from tta_pipeline.data.formats.tar_format import BLOCK_BYTES
from tta_pipeline.data.images.existing_shards import classes_in_label_order, iterate_stated_classes
from tta_pipeline.data.images.remote_shards import REMOTE_FILE, RemoteCell, RemoteShard, read_remote_cell
from tta_pipeline.data.images.tar_stream import TarStream
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.data.remote_files import read_beginning, read_whole
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.adoption import publish_adopted
from tta_pipeline.shards.backfill_checksums import backfill_checksums
from tta_pipeline.shards.manifest import MANIFEST_FILE, parse_record
from tta_pipeline.shards.set_contents import PublishedShardSet
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_reading import Sample, ShardContents, ShardToRead, read_shard
from tta_pipeline.shards.shard_set import SAMPLES_FILE, ShardSet
from tta_pipeline.util.daemon_threads import run_ahead
from tta_pipeline.util.progress import Progress

_UNFINISHED = "unfinished-shards-"
_NUM_COMPARED = 32
_MAX_COMPARED_BYTES = 4 * 2**20
"""Limits of the check of a server's manifest: samples and bytes of the first shard that are compared."""


PinClasses = Callable[[Callable[[], tuple[str, ...]]], ClassMap]
"""Returns the benchmark's class map; if there is none, the given classes of the first cell are pinned."""


def adopt_remote(
    folder: Path, cell: Cell, progress: Progress, *, benchmark_name: str, pin_classes: PinClasses
) -> PublishedShardSet:
    """Make the manifest of the shards whose URLs are in *folder*.

    If the shards have their own manifest, it is fetched; its labels are used if its class map is the benchmark's.
    Otherwise every byte is read once; *folder* then contains up to two shards at a time.

    Args:
        folder: Folder of `remote.json`; the manifest is published here.
        cell: Cell of the shards.
        progress: Counts samples and bytes done.
        benchmark_name: Name of the dataset in the manifest.
        pin_classes: Returns the benchmark's class map.
    """
    started = time.perf_counter()
    remote = read_remote_cell(folder)
    if remote is None:
        raise ManifestError(
            f"{folder} has no {REMOTE_FILE}; expected a file with the URLs of the shards: materialize this cell's "
            "tar_shards"
        )
    if present := _find_described_set(folder, remote):
        pinned = pin_classes(partial(_stated_classes, present))
        if pinned.sha256 == present.manifest.class_map_sha256:
            return PublishedShardSet(
                shard_set=backfill_checksums(present), was_built=False, wall_s=time.perf_counter() - started
            )
    like = _fetch_own_manifest(remote, cell)
    find_classes = partial(_stated_classes, like)
    if like is not None and pin_classes(find_classes).sha256 == like.manifest.class_map_sha256:
        shards = tuple(_contents_from_index(like))
    else:  # labels of another class map cannot be converted to this one
        shards = tuple(_read_remote_shards(remote, folder, progress))
        find_classes = partial(_classes_in, shards, folder)
        if like is not None:
            _require_same_hashes(shards, like, remote)
    return publish_adopted(
        folder,
        cell,
        shards,
        benchmark_name=benchmark_name,
        class_map=pin_classes(find_classes),
        version=remote.version,
        like=like.manifest if like else None,
        started=started,
    )


def _stated_classes(shard_set: ShardSet | None) -> tuple[str, ...]:
    return shard_set.manifest.classes if shard_set else ()


def _classes_in(shards: Sequence[ShardContents], folder: Path) -> tuple[str, ...]:
    return classes_in_label_order((sample.stated for shard in shards for sample in shard.samples), where=folder)


def _find_described_set(folder: Path, remote: RemoteCell) -> ShardSet | None:
    """Return the set in *folder* if its manifest has the version of the located shards, or None."""
    try:
        found = ShardSet.open(folder)
    except ManifestError:
        return None
    return found if found.manifest.source.version == remote.version else None


def _fetch_own_manifest(remote: RemoteCell, cell: Cell) -> ShardSet | None:
    """Fetch the shards' own manifest and return the set that it describes; None if there is no manifest."""
    if remote.manifest is None:
        return None
    place = remote.manifest.rpartition("/")[0]
    with TemporaryDirectory(prefix="tta_pipeline-manifest-") as name:
        folder = Path(name)
        for file in (MANIFEST_FILE, SAMPLES_FILE):
            (folder / file).write_bytes(read_whole(f"{place}/{file}"))
        parse_record((folder / MANIFEST_FILE).read_bytes(), remote.manifest, Manifest)  # an error names the URL
        try:
            found = ShardSet.open(folder)
        except ManifestError as error:
            raise ManifestError(str(error).replace(str(folder), place)) from None
    if found.manifest.cell != cell:
        raise ManifestError(
            f"{remote.manifest} is the manifest of {found.manifest.cell.key}; expected the manifest of {cell.key}: "
            "change the URL of this cell, or remove this manifest from the server so that the shards themselves are "
            "read"
        )
    stated = {shard.name: shard.shard_bytes for shard in found.manifest.shards}
    for shard in remote.shards:
        if stated.get(shard.name) != shard.size_bytes:
            raise ManifestError(
                f"{shard.url} has {shard.size_bytes} bytes, but {remote.manifest} lists "
                f"{stated.get(shard.name, 'no such shard')}; expected the shards of that manifest: upload them, or "
                "remove the manifest from the server"
            )
    _require_labels(found, remote)
    return found


def _require_labels(described: ShardSet, remote: RemoteCell) -> None:
    """Refuse a manifest whose labels differ from those in the first samples of its first shard."""
    index, classes = described.index, described.manifest.classes
    name = described.manifest.shards[0].name
    shard = next(shard for shard in remote.shards if shard.name == name)
    rows = sorted(np.flatnonzero(index.shards == 0).tolist(), key=index.offsets.__getitem__)
    # Read to the end of the first image that is not compared: every member of the images before it is then included.
    ends = [int(index.offsets[row] + -(-index.sizes[row] // BLOCK_BYTES) * BLOCK_BYTES) for row in rows]
    is_small = shard.size_bytes <= _MAX_COMPARED_BYTES
    num_near = len(rows) if is_small else sum(end <= _MAX_COMPARED_BYTES for end in ends) - 1
    num_compared = min(_NUM_COMPARED, max(1, num_near))
    end = ends[num_compared] if num_compared < len(rows) else shard.size_bytes
    data = read_beginning(shard.url, end, shard.facts) + bytes(2 * BLOCK_BYTES)
    labels = {int(index.offsets[row]): int(index.labels[row]) for row in rows[:num_compared]}
    for image, stated in iterate_stated_classes(TarStream(BytesIO(data), shard.url, begins_at=0), shard.url):
        if image.offset not in labels:
            continue
        label = labels[image.offset]
        others = [
            f"the class {each}" for each in (stated.name, stated.text) if each in classes and each != classes[label]
        ]
        if stated.label not in (None, label):
            others.append(f"the label {stated.label}")
        if others:
            raise ManifestError(
                f"{shard.url}: {image.name} has {others[0]} in the shard, but the label {label} ({classes[label]}) in "
                f"{remote.manifest}; expected the same class in both: upload the manifest of these shards, or remove "
                "it so that the shards themselves are read"
            )


def _require_same_hashes(shards: Sequence[ShardContents], described: ShardSet, remote: RemoteCell) -> None:
    """Refuse shards that were read in full and do not match their own manifest."""
    hashes = {shard.name: shard.sha256 for shard in described.manifest.shards}
    for shard in shards:
        if shard.sha256 != hashes[shard.name]:
            raise ManifestError(
                f"{shard.name} has the sha256 {shard.sha256}, but {remote.manifest} lists {hashes[shard.name]}; "
                "expected the shards of that manifest: upload them, or remove the manifest from the server"
            )


def _contents_from_index(shard_set: ShardSet) -> Iterator[ShardContents]:
    """Yield the contents of each shard according to the index of *shard_set*."""
    classes = shard_set.manifest.classes
    has_numbers = classes == tuple(map(str, range(len(classes))))  # a class name is then a label in any class map
    samples: list[list[Sample]] = [[] for _ in shard_set.manifest.shards]
    for row in shard_set.index.table.to_pylist():
        label = row["label"]
        samples[row["shard"]].append(
            Sample(
                key=row["key"],
                source_name=row["source_name"],
                class_name="" if has_numbers else classes[label],
                offset=row["offset"],
                size_bytes=row["size_bytes"],
                sha256=row["sha256"],
                checksum=b"",
                label=label if has_numbers else None,
            )
        )
    for shard, found in zip(shard_set.manifest.shards, samples, strict=True):
        yield ShardContents(shard.name, shard.shard_bytes, shard.sha256, found)


def _read_remote_shards(remote: RemoteCell, folder: Path, progress: Progress) -> Iterator[ShardContents]:
    """Read each shard while the next one is downloaded."""
    # After an error or Ctrl-C, the next one may still arrive while the folder is removed.
    with TemporaryDirectory(prefix=_UNFINISHED, dir=folder, ignore_cleanup_errors=True) as scratch:

        def fetch(shard: RemoteShard) -> Path:
            path = Path(scratch, shard.name)
            with path.open("w+b", buffering=0) as out:
                copy_file(shard.url, out, shard.facts, algorithm="sha256")
            return path

        for shard, path in zip(remote.shards, run_ahead(fetch, remote.shards), strict=True):
            try:
                contents = read_shard(ShardToRead(path, is_foreign=True), progress.advance)
            except ManifestError as error:
                raise ManifestError(str(error).replace(str(path), shard.url)) from None
            path.unlink()
            yield contents
