"""Shard sets at URLs without a benchmark file: located, and described in a folder without shards."""

import hashlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tta_pipeline.data.images.remote_shards import RemoteCell, RemoteShards, write_remote_cell
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.data.remote_files import REMOTE_SCHEMES, read_whole, scheme_of, validate_url
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.errors import ManifestError, StreamError
from tta_pipeline.shards.adopt_remote import PinClasses, adopt_remote
from tta_pipeline.shards.expected_shard_set import cell_from_path
from tta_pipeline.shards.manifest import parse_record
from tta_pipeline.shards.set_contents import PublishedShardSet
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import node_local_folder
from tta_pipeline.util.identifiers import is_benchmark_name
from tta_pipeline.util.locks import locked
from tta_pipeline.util.progress import Reporter, quiet_reporter

_NO_BENCHMARK = "own"
"""Name of the dataset in a manifest made here, if the URL contains none."""


def open_location(location: Path | str) -> ShardSet:
    """Open the shard set in a folder or at a URL.

    A set at a URL is described in `$TMPDIR`, by its own manifest or by reading every byte once. Its images are read
    only when requested.

    Raises:
        ManifestError: there is no shard set, or it differs from its manifest.
        ImagesError, StreamError: the URL is not valid, has no shards, or cannot be read.
        ClassMapError: a sample has no class.
    """
    if not isinstance(location, str) or not (scheme := scheme_of(location)):
        return ShardSet.open(Path(location))
    url = validate_url(location, expected=(*REMOTE_SCHEMES, "file"))
    if scheme != "file":
        return _open_url(url)
    if not url.startswith("file:///"):
        raise StreamError(f"The URL is {location}; expected file:/// and an absolute path")
    return ShardSet.open(Path(unquote(url.removeprefix("file://"))))


def _open_url(url: str) -> ShardSet:
    digest = hashlib.sha256(url.encode()).hexdigest()[:32]
    root = node_local_folder() / "at-urls" / digest
    root.mkdir(parents=True, exist_ok=True)
    with locked(root.with_name(f"{digest}.lock")):
        return adopt_url(url, root).shard_set


def adopt_url(
    url: str, root: Path, *, class_map: ClassMap | None = None, progress: Reporter = quiet_reporter
) -> PublishedShardSet:
    """Describe the shards at *url* in the folder of their cell under *root*.

    The cell comes from the shards' own manifest, or from the last two names of the URL; otherwise it is clean images.

    Args:
        url: A folder of shards, with a manifest or a listing, or one shard.
        root: Folder in which the folder of the cell is made.
        class_map: Labels; None: the labels of the shards' own manifest, or the sorted classes that are found.
        progress: Reports the samples, if every byte is read.
    """
    url = validate_url(url)
    path = Path(unquote(urlsplit(url).path))
    folder_path = path.parent if path.name.endswith(".tar") else path
    named = cell_from_path(folder_path, CLEAN)
    remote = RemoteShards(urls=(url,), elsewhere=((named or CLEAN, (url,)),)).at(named or CLEAN)
    own = _read_own_manifest(remote)
    if own is not None and named is not None and named != own.cell:
        raise ManifestError(
            f"{remote.manifest} is the manifest of {own.cell.key}; expected {named.key}, as in the URL: upload the "
            "right shard set"
        )
    cell = own.cell if own else named or CLEAN
    folder = root / cell.path
    write_remote_cell(remote, folder)
    return adopt_remote(
        folder,
        cell,
        progress(url, 0),
        benchmark_name=own.benchmark if own else _benchmark_name(folder_path, named),
        pin_classes=_pinned(class_map),
    )


def _read_own_manifest(remote: RemoteCell) -> Manifest | None:
    if remote.manifest is None:
        return None
    data = read_whole(remote.manifest)
    return parse_record(data, remote.manifest, Manifest)


def _pinned(class_map: ClassMap | None) -> PinClasses:
    return lambda find_classes: class_map or ClassMap(classes=find_classes())


def _benchmark_name(path: Path, named: Cell | None) -> str:
    """Return the name of the folder above the cell, if it can be the name of a dataset."""
    name = path.parts[-3] if named and len(path.parts) > 3 else path.name
    return name if is_benchmark_name(name) else _NO_BENCHMARK
