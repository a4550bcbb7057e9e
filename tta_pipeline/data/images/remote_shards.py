"""Shards at URLs: finding the shards of a cell, recording their URLs, and detecting changes."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tta_pipeline.data.images.shard_files import require_read
from tta_pipeline.data.remote_files import (
    FileFacts,
    NoSuchFileError,
    describe_change,
    expand_braces,
    fetch_file_facts,
    list_folder,
    read_whole,
)
from tta_pipeline.data.shard_locations import url_for
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ClassMapError, ImagesError, StreamError
from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.files import published_folder
from tta_pipeline.util.identifiers import natural_order

REMOTE_FILE = "remote.json"
"""File in a cell's folder with the URLs of its shards; the folder then holds no shards."""
_MANIFEST = "manifest.json"
_SHARD_ENDING = ".tar"


class RemoteShard(ConfigModel):
    """One shard at a URL, with the server's facts when the shard was located."""

    name: Annotated[str, Field(pattern=r"^[^./][^/\x00]*\.tar$")]
    url: str
    size_bytes: Annotated[int, Field(ge=0)]
    tag: str
    """The server's ETag or time of the last change; empty if it sends neither."""

    @property
    def facts(self) -> FileFacts:
        """Facts that the server must still report."""
        return FileFacts(self.size_bytes, self.tag)


class RemoteCell(ConfigModel):
    """URLs of the shards of a cell: the content of `remote.json`."""

    shards: tuple[RemoteShard, ...]
    manifest: str | None = None
    """URL of the manifest of exactly these shards; None: no manifest."""

    @property
    def version(self) -> str:
        """Digest of names, sizes and tags."""
        lines = (f"{shard.name}\0{shard.size_bytes}\0{shard.tag}" for shard in self.shards)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def serialise(self) -> bytes:
        """Return the bytes of `remote.json`."""
        return (json.dumps(self.model_dump(mode="json"), indent=1) + "\n").encode()

    def find_changes(self) -> tuple[str, ...]:
        """Return a sentence for each shard that has changed on the server."""
        found = fetch_file_facts([shard.url for shard in self.shards])
        pairs = ((shard.url, describe_change(now, shard.facts)) for shard, now in zip(self.shards, found, strict=True))
        return tuple(f"{url}: {problem}, as when the shards were located" for url, problem in pairs if problem)


@dataclass(frozen=True, kw_only=True)
class RemoteShards:
    """A source whose cells are shards at URLs."""

    urls: tuple[str, ...]
    """The root of the cells' folders, or the shards themselves, with braces, `{shift}` and `{severity}`."""
    elsewhere: tuple[tuple[Cell, tuple[str, ...]], ...] = ()
    """Cells with their own URLs, such as clean images."""

    def class_names(self) -> tuple[str, ...]:
        """Refuse to find the classes: that would read all shards, which adopting a cell does anyway.

        Raises:
            ClassMapError: always.
        """
        raise ClassMapError(
            f"The classes of the shards at {self.urls[0]} are not known yet; expected a class map: materialize the "
            "shard_manifest of a cell first, or name a file under class_map"
        )

    def version(self, cell: Cell) -> str:
        """Return a digest of names, sizes and tags of the shards of *cell*.

        Raises:
            ImagesError: there are no shards, or the server does not respond.
        """
        return self.at(cell).version

    def at(self, cell: Cell) -> RemoteCell:
        """Locate the shards of *cell*, with a request to the server for each of them."""
        try:
            return self._locate(cell)
        except StreamError as error:
            raise ImagesError(str(error)) from None

    def _locate(self, cell: Cell) -> RemoteCell:
        own = dict(self.elsewhere).get(cell)
        urls = tuple(url for each in own or self.urls for url in expand_braces(url_for(each, cell)))
        if all(url.endswith(_SHARD_ENDING) for url in urls):
            folders = {url.rpartition("/")[0] for url in urls}
            folder = folders.pop() if len(folders) == 1 else None
        elif len(urls) == 1:
            is_for_cell = own or "{s" in self.urls[0]
            folder = urls[0] if is_for_cell else f"{urls[0]}/{cell.path}"
            urls = ()
        else:
            raise ImagesError(
                f"{len(urls)} URLs were given, {urls[0]} and others; expected one folder, or shards whose names end "
                f"in {_SHARD_ENDING}: name the shards"
            )
        names = _read_manifest_names(folder) if folder else None
        if not urls:
            assert folder is not None
            urls = tuple(f"{folder}/{name}" for name in names or _list_shard_names(folder))
        is_described = names is not None and sorted(names) == sorted(url.rpartition("/")[2] for url in urls)
        shards = tuple(
            RemoteShard(name=url.rpartition("/")[2], url=url, size_bytes=each.size_bytes, tag=each.tag)
            for url, each in zip(urls, fetch_file_facts(urls), strict=True)
        )
        if len({shard.name for shard in shards}) < len(shards):
            raise ImagesError(
                f"Two shards have the same name, such as {urls[0]}; expected unique names: rename one of them"
            )
        shards = tuple(sorted(shards, key=lambda shard: natural_order(shard.name)))
        return RemoteCell(shards=shards, manifest=f"{folder}/{_MANIFEST}" if is_described else None)


def read_remote_cell(folder: Path) -> RemoteCell | None:
    """Return the URLs of the shards of the cell in *folder*; None if the shards are in the folder."""
    path = folder / REMOTE_FILE
    if not path.is_file():
        return None
    try:
        return RemoteCell.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ImagesError(
            f"{path} cannot be read ({error.strerror}); expected the URLs of the shards: rematerialize tar_shards"
        ) from error
    except ValueError:
        raise ImagesError(f"{path} is damaged; expected the URLs of the shards: rematerialize tar_shards") from None


def write_remote_cell(found: RemoteCell, folder: Path) -> bool:
    """Write the URLs of the shards into *folder*, unless they are there already; return whether they were written.

    Writing replaces the whole folder, so a folder of other or changed shards loses its manifest.
    """
    if (folder / REMOTE_FILE).is_file() and read_remote_cell(folder) == found:
        return False
    with published_folder(folder) as beside:
        (beside / REMOTE_FILE).write_bytes(found.serialise())
    return True


def _read_manifest_names(folder: str) -> tuple[str, ...] | None:
    """Return the names of the shards in the manifest of *folder*; None if it has no manifest."""
    url = f"{folder}/{_MANIFEST}"
    try:
        data = read_whole(url)
    except NoSuchFileError:
        return None
    try:
        return tuple(str(shard["name"]) for shard in json.loads(data)["shards"])
    except (ValueError, KeyError, TypeError) as error:
        raise ImagesError(f"{url} is damaged ({error!r}); expected a shard manifest: upload it again") from None


def _list_shard_names(folder: str) -> tuple[str, ...]:
    listed = [name for name in list_folder(folder) if not name.startswith(".")]
    require_read(listed, (_SHARD_ENDING,), where=folder)
    names = tuple(name for name in listed if name.endswith(_SHARD_ENDING))
    if not names:
        raise ImagesError(
            f"{folder} has neither {_MANIFEST} nor a listing of its shards; expected one of them: name the shards in "
            f"the URL, such as {folder}/shard-{{00000..00015}}{_SHARD_ENDING}"
        )
    return names
