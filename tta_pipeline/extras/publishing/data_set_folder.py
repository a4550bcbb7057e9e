"""Writes the folder to upload: shards, their descriptions, and the sha256 of every file."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

from tta_pipeline.benchmarks.shard_settings import Transform
from tta_pipeline.errors import ManifestError
from tta_pipeline.extras.publishing.card import CLASSES_FILE, CROISSANT_FILE, PREVIEW_FILE, SUMS_FILE, card_text
from tta_pipeline.extras.publishing.croissant import croissant_metadata
from tta_pipeline.extras.publishing.data_set import DataSet
from tta_pipeline.extras.publishing.preview import preview_png
from tta_pipeline.extras.publishing.published_cell import PublishedCell
from tta_pipeline.shards.manifest import WRITER_FILE
from tta_pipeline.shards.shard_set import VERIFIED_FILE
from tta_pipeline.shards.transformation import transform_shard_set
from tta_pipeline.util.files import hash_file, published_folder
from tta_pipeline.util.progress import Reporter

CARD_FILE = "README.md"


def require_absent(target: Path) -> None:
    """Refuse *target* if it exists.

    Raises:
        ManifestError: *target* exists.
    """
    if target.exists():
        raise ManifestError(f"{target} exists already; expected a new folder: name another, or remove this one")


def write_data_set(data_set: DataSet, target: Path, published_on: date, reporter: Reporter) -> DataSet:
    """Write *data_set* as the new folder *target*, completely or not at all, and return it as written.

    The same data set and date give the same bytes at any time, on any machine. Shards with a label beside each image
    are hard-linked or copied. Other shards are rewritten with labels, the samples in the same order, since other
    programs look for labels there.

    Raises:
        ManifestError: *target* exists.
        SourceError: an image is damaged.
        OSError: the folder cannot be written.
    """
    require_absent(target)
    with published_folder(target) as folder:
        placed = tuple(_place_cell(cell, folder / cell.place, reporter) for cell in data_set.cells)
        written = replace(data_set, cells=placed)
        sums = {f"{cell.place}/{name}": sha256 for cell in placed for name, sha256 in _file_hashes(cell)}
        for name, data in _descriptions(written, published_on).items():
            (folder / name).write_bytes(data)
            sums[name] = hashlib.sha256(data).hexdigest()
        (folder / SUMS_FILE).write_text("".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items())))
    return written


def _descriptions(data_set: DataSet, published_on: date) -> dict[str, bytes]:
    """Return the content of each file that describes the set, by name."""
    return {
        CARD_FILE: card_text(data_set).encode(),
        CLASSES_FILE: "".join(f"{name}\n" for name in data_set.classes).encode(),
        CROISSANT_FILE: json.dumps(croissant_metadata(data_set, published_on), indent=1, ensure_ascii=False).encode(),
        PREVIEW_FILE: preview_png(data_set.cells),
    }


def _place_cell(cell: PublishedCell, folder: Path, reporter: Reporter) -> PublishedCell:
    if not cell.has_labels:
        made = transform_shard_set(cell.shard_set.folder, folder, Transform(labels=True), reporter)
        for name in (VERIFIED_FILE, WRITER_FILE):  # of this machine
            (folder / name).unlink(missing_ok=True)
        return replace(cell, shard_set=made.published.shard_set, has_labels=True)
    folder.mkdir(parents=True)
    for path in cell.files:
        _link_or_copy(path, folder / path.name)
    return cell


def _file_hashes(cell: PublishedCell) -> Iterator[tuple[str, str]]:
    """Yield the name and sha256 of each file of a cell; the shards have just been verified, so theirs are known."""
    of_shards = {shard.name: shard.sha256 for shard in cell.shard_set.manifest.shards}
    for path in cell.files:
        yield path.name, of_shards.get(path.name) or hash_file(path)


def _link_or_copy(source: Path, target: Path) -> None:
    """Hard-link *source* at *target*, which takes no space, or copy it if the file system does not allow links."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
