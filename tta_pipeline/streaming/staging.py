"""Shard sets copied to node-local disk before they are read, each whole or not at all, within a limit.

<root>/tta_pipeline-staged/
  <manifest sha256>/        a shard set; locked (shared) by whoever reads it, and removed by nobody meanwhile
  unfinished-<hex digits>/  what is being copied or removed
  lock                      held while something is copied or removed

The kernel frees both locks when a process ends, however it ends. Nothing is removed but folders of these names.
"""

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.errors import ManifestError, StreamError
from tta_pipeline.files import advice, fsync_path, locked, own_folder, published_folder
from tta_pipeline.progress import Progress, Tell, quiet
from tta_pipeline.shards.belonging import Belonging, cell_at
from tta_pipeline.shards.checksums import CHECKSUMS_FILE, decoded_checksums
from tta_pipeline.shards.completion import completed
from tta_pipeline.shards.manifest import MANIFEST_FILE, SAMPLES_FILE, Manifest, ShardSet
from tta_pipeline.shards.replacing import require_replaceable
from tta_pipeline.streaming.remote import Folder, LocalFolder, folder_at, waited_for

_PIECE_BYTES = 2**22
_NUM_FILES_AT_ONCE = 4
_NUM_PIECES_AHEAD = 4
"""Of each file; so about 64 MiB are on their way."""
_NUM_TRIES = 2
"""To copy a file, for one that was replaced meanwhile."""
OWN_FOLDER = "tta_pipeline-staged"
_UNFINISHED = "unfinished-"
_UNFINISHED_NAME = re.compile(rf"{_UNFINISHED}[0-9a-f]{{32}}(?:[0-9a-f]{{32}})?")
_STAGED_NAME = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@contextmanager
def opened_shard_set(location: str, stage: "Stage | None" = None) -> Iterator[ShardSet]:
    """Yield the shard set at *location*, a folder or a URL, through *stage*; without one a folder is read in place.

    Raises:
        ManifestError, StreamError: see `Stage.shard_set`.
    """
    if stage is not None:
        with stage.shard_set(location) as shard_set:
            yield shard_set
        return
    origin = folder_at(location)
    if not isinstance(origin, LocalFolder):
        raise StreamError(f"found {origin}, which is remote; expected a folder on disk: give a folder to stage it in")
    yield ShardSet.open(origin.path)


def node_local_folder() -> Path:
    """Return a folder of this user in `$TMPDIR`, made if need be.

    Raises:
        StreamError: it belongs to somebody else, who could put anything into it.
    """
    folder = Path(tempfile.gettempdir()) / f"tta_pipeline-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or folder.is_symlink():
        raise StreamError(f"{folder} can be written by others; expected one's own folder: set TMPDIR to another place")
    return folder


def fetch_shard_set(location: str, root: Path, progress: Tell) -> tuple[ShardSet, bool]:
    """Copy the shard set at *location* to `<root>/<corruption>/<severity>` unless it is there.

    Returns:
        The set, and whether it was copied.

    Raises:
        ManifestError, StreamError: the set cannot be read, or is not what its manifest says.
    """
    origin = folder_at(location)
    manifest = origin.manifest()
    if not _NAME.fullmatch(manifest.corruption):
        raise StreamError(f"{origin}: found a manifest of corruption {manifest.corruption!r}; expected a plain name")
    stated = Belonging(cell=cell_at(Path(str(origin)), manifest.cell))
    if problems := stated.problems(manifest):
        raise StreamError(f"{origin}: {'; '.join(problems)} by its place: put the shard set there that belongs there")
    target = root / manifest.cell.path
    with suppress(ManifestError):
        present = ShardSet.open(target)
        present.require_intact()
        if present.manifest.sha256 == manifest.sha256:
            return present, False
    require_replaceable(target, {shard.name for shard in manifest.shards})
    with published_folder(target) as folder:
        _copy_shard_set(origin, manifest, folder, progress(manifest.cell.key, manifest.num_samples))
    return ShardSet.open(target), True


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A folder on node-local disk below which shard sets are kept for the next reader."""

    root: Path
    """Others may have files there too."""
    limit_bytes: int
    """Of all shards in it together."""
    tell: Callable[[str], None]
    """Is told when a shard set is not staged but read from its place."""

    @property
    def folder(self) -> Path:
        """The folder below the root where the sets are, and nothing else is."""
        return self.root / OWN_FOLDER

    @contextmanager
    def shard_set(self, location: str) -> Iterator[ShardSet]:
        """Yield the shard set at *location*, a folder or a URL, on local disk, where it stays until the block ends.

        It is copied unless it is there; who used which longest ago makes room. One that does not fit is read from its
        place if that is a folder.

        Raises:
            ManifestError: the set has no sound manifest.
            StreamError: the set cannot be read, is not what its manifest says, is remote and does not fit, or the
                stage cannot be written to.
        """
        origin = folder_at(location)
        manifest = origin.manifest()
        with ExitStack() as stack:
            yield self._staged(origin, manifest, stack) or self._in_place(origin, manifest)

    def _staged(self, origin: Folder, manifest: Manifest, stack: ExitStack) -> ShardSet | None:
        """Return the staged set, held against removal until *stack* closes; None if there is no room for it."""
        if manifest.shard_bytes > self.limit_bytes:
            return None
        try:
            if present := self._present(manifest, stack):
                return present
            own_folder(self.folder)
            with locked(self.folder / "lock"):
                if present := self._present(manifest, stack):  # copied by another process meanwhile
                    return present
                self._remove_unfinished()
                if not self._make_room(manifest):
                    return None
                self._copy(origin, manifest)
                return self._present(manifest, stack)
        except OSError as error:
            raise StreamError(
                f"{self.folder}: found {error.strerror} while {origin} was staged; expected a folder with room for "
                f"{manifest.shard_bytes} bytes: {advice(error)}, or give another folder, or a lower limit"
            ) from error

    def _present(self, manifest: Manifest, stack: ExitStack) -> ShardSet | None:
        """Return the set if it is there and sound, held until *stack* closes."""
        folder = self.folder / manifest.sha256
        with ExitStack() as holding:
            try:
                holding.enter_context(_held(folder, fcntl.LOCK_SH))
                shard_set = ShardSet.open(folder)
                if shard_set.manifest.sha256 != manifest.sha256:
                    return None
                shard_set.require_intact()
                os.utime(folder, ns=(time.time_ns(),) * 2)  # the file system's own clock ticks every few milliseconds
            except (FileNotFoundError, ManifestError):
                return None
            stack.enter_context(holding.pop_all())
            return shard_set

    def _in_place(self, origin: Folder, manifest: Manifest) -> ShardSet:
        found = f"{origin} has {manifest.shard_bytes} bytes of shards, for which {self.folder} has no room"
        expected = f"limit {self.limit_bytes} bytes, sets in use stay"
        if not isinstance(origin, LocalFolder):
            raise StreamError(f"{found}; expected that they fit ({expected}): raise the limit")
        self.tell(f"{found} ({expected}); it is read from its place")
        return ShardSet.open(origin.path)

    def _make_room(self, manifest: Manifest) -> bool:
        """Remove sets until *manifest*'s fits, and whatever has its name; return whether it fits now."""
        kept = sorted(_named(self.folder, _STAGED_NAME), key=lambda folder: folder.stat().st_mtime_ns)
        kept.sort(key=lambda folder: folder.name != manifest.sha256)  # of that name there is at most a damaged one
        total_bytes = manifest.shard_bytes + sum(map(_shard_bytes, kept))
        for folder in kept:
            if total_bytes <= self.limit_bytes and folder.name != manifest.sha256:
                return True
            size_bytes = _shard_bytes(folder)
            if self._removed(folder):
                total_bytes -= size_bytes
        return total_bytes <= self.limit_bytes and not (self.folder / manifest.sha256).exists()

    def _removed(self, folder: Path) -> bool:
        """Remove a set unless somebody reads it; return whether it is gone."""
        try:
            with _held(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                folder.rename(self.folder / f"{_UNFINISHED}{folder.name}")
        except BlockingIOError:
            return False
        self._remove_unfinished()
        return True

    def _copy(self, origin: Folder, manifest: Manifest) -> None:
        folder = self.folder / f"{_UNFINISHED}{uuid.uuid4().hex}"
        folder.mkdir(mode=0o700)
        try:
            _copy_shard_set(origin, manifest, folder, quiet(manifest.cell.key, manifest.num_samples))
            fsync_path(folder / MANIFEST_FILE)
            fsync_path(folder)
            folder.rename(self.folder / manifest.sha256)
            fsync_path(self.folder)
        finally:
            self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Remove what a copy that failed or was killed left behind: whoever has the lock is the only one at work."""
        for folder in _named(self.folder, _UNFINISHED_NAME):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _held(folder: Path, how: int) -> Iterator[None]:
    """Hold the lock of *folder*.

    Raises:
        FileNotFoundError: it is not there, or was removed while this waited.
        BlockingIOError: somebody holds it, and *how* says not to wait.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, how)
        if not os.path.samestat(folder.stat(), os.fstat(descriptor)):
            raise FileNotFoundError(folder)
        yield
    finally:
        os.close(descriptor)


def _named(parent: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Return the folders in *parent* that are called as ours are."""
    return [path for path in parent.iterdir() if pattern.fullmatch(path.name) and path.is_dir()]


def _shard_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.tar"))


class _File(NamedTuple):
    """What a file must be."""

    name: str
    size_bytes: int | None
    """None where the manifest gives the hash alone."""
    sha256: str
    num_samples: int = 0


def _copy_shard_set(origin: Folder, manifest: Manifest, folder: Path, progress: Progress) -> None:
    """Copy a shard set into the empty *folder*, every byte verified on its way.

    Its samples' checksums are copied too, or made if the origin has none.

    Raises:
        ManifestError, StreamError: a file cannot be read or is not what the manifest says.
    """
    (folder / MANIFEST_FILE).write_bytes(manifest.encoded())
    checksums = waited_for(_copy_files(origin, manifest, folder, progress))
    shard_set = ShardSet.open(folder)
    shard_set.remember_verified()
    # Those of the origin count only if they are whole and of this index.
    known = decoded_checksums(checksums, manifest.samples_sha256, manifest.num_samples)
    if known is not None:
        shard_set.with_checksums(known)
    else:
        completed(shard_set)


async def _copy_files(origin: Folder, manifest: Manifest, folder: Path, progress: Progress) -> bytes:
    """Copy index and shards into *folder*, several at a time; return the file of checksums, empty if there is none.

    Raises:
        StreamError: one cannot be read or is not what the manifest says.
    """
    places = asyncio.Semaphore(_NUM_FILES_AT_ONCE)
    files = [_File(SAMPLES_FILE, None, manifest.samples_sha256)]
    files += [_File(shard.name, shard.shard_bytes, shard.sha256, shard.num_samples) for shard in manifest.shards]

    async def copy(file: _File) -> None:
        await _copy_file(origin, file, folder / file.name, group, places)
        progress.advance(file.num_samples, file.size_bytes or 0)

    try:
        async with asyncio.TaskGroup() as group:
            for file in files:
                group.create_task(copy(file))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    try:
        return await origin.read(CHECKSUMS_FILE)
    except StreamError:
        return b""


async def _copy_file(
    origin: Folder, file: _File, target: Path, group: asyncio.TaskGroup, places: asyncio.Semaphore
) -> None:
    async with places:
        for _ in range(_NUM_TRIES):
            found = await _copied_sha256(origin, file, target, group)
            if found == file.sha256:
                return
    raise StreamError(
        f"{origin}/{file.name}: found sha256 {found}; expected {file.sha256}, as in the manifest: it was damaged or "
        "replaced, so put the one there that the manifest is of"
    )


async def _copied_sha256(origin: Folder, file: _File, target: Path, group: asyncio.TaskGroup) -> str:
    """Copy a file piece by piece, the next ones being read meanwhile; return the hash of what was written."""
    digest = hashlib.sha256()
    spans = iter(_spans(file.size_bytes))
    reading: deque[asyncio.Task[bytes]] = deque()

    def take(data: bytes) -> None:
        digest.update(data)
        out.write(data)

    def read_ahead(num_pieces: int) -> None:
        reading.extend(group.create_task(origin.read(file.name, *span)) for span in islice(spans, num_pieces))

    with target.open("wb") as out:
        read_ahead(_NUM_PIECES_AHEAD)
        while reading:
            await asyncio.to_thread(take, await reading.popleft())
            read_ahead(1)
        out.flush()
        await asyncio.to_thread(os.fsync, out.fileno())
    return digest.hexdigest()


def _spans(size_bytes: int | None) -> list[tuple[int, int | None]]:
    if size_bytes is None:
        return [(0, None)]
    return [(start, min(start + _PIECE_BYTES, size_bytes)) for start in range(0, size_bytes, _PIECE_BYTES)]
