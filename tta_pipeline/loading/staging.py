"""Copy shard sets to node-local disk before they are read, each completely or not at all, within a limit.

A staged set is a folder of a `LocalCache`, named after its manifest's sha256; it is not removed while it is read.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.data.sources.remote_shards import read_remote_cell
from tta_pipeline.errors import ManifestError, StreamError
from tta_pipeline.loading.local_cache import LocalCache
from tta_pipeline.loading.shard_set_folders import Folder, LocalFolder, folder_at
from tta_pipeline.loading.verified_copy import copy_shard_set
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import fsync_path

OWN_FOLDER = "tta_pipeline-staged"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A folder on node-local disk that keeps copies of shard sets for the next reader."""

    root: Path
    """Folder on node-local disk; it may contain other files too."""
    limit_bytes: int
    """Largest size of all staged shards together."""
    tell: Callable[[str], None]
    """Function that is called with a message when a shard set is not staged but read in place."""

    @property
    def folder(self) -> Path:
        """The folder below the root that contains only the sets."""
        return self.root / OWN_FOLDER

    @property
    def _cache(self) -> LocalCache:
        remedy = "set another folder, or a lower limit"
        return LocalCache(folder=self.folder, limit_bytes=self.limit_bytes, remedy=remedy)

    @contextmanager
    def shard_set(self, location: str) -> Iterator[ShardSet]:
        """Yield the shard set at *location*, a folder or a URL, on local disk; it stays there until the block ends.

        The set is copied unless it is staged already; the least recently used sets make room. A set that does not fit
        is read in place if its location is a folder. A folder that has only the URLs of its shards is read in place
        too, and its shards are streamed.

        Raises:
            ManifestError: the set has no valid manifest.
            StreamError: the set cannot be read, differs from its manifest, is remote and does not fit, or the stage
                cannot be written to.
        """
        origin = folder_at(location)
        manifest = origin.manifest()
        if isinstance(origin, LocalFolder) and read_remote_cell(origin.path):
            yield ShardSet.open(origin.path)
            return
        with ExitStack() as stack:
            yield self._stage(origin, manifest, stack) or self._open_in_place(origin, manifest)

    def _stage(self, origin: Folder, manifest: Manifest, stack: ExitStack) -> ShardSet | None:
        """Return the staged set, protected from removal until *stack* closes; None if there is no room for it."""
        if manifest.shard_bytes > self.limit_bytes:
            return None
        with self._cache.naming_faults(f"{origin} was staged", manifest.shard_bytes), ExitStack() as making:
            if present := self._find_staged(manifest, stack):
                return present
            draft = self._cache.begin(manifest.sha256, manifest.shard_bytes, making, is_folder=True, waits=True)
            if draft:
                copy_shard_set(origin, manifest, draft.path)
                fsync_path(draft.path / MANIFEST_FILE)
                fsync_path(draft.path)
                draft.publish()
            return self._find_staged(manifest, stack)

    def _find_staged(self, manifest: Manifest, stack: ExitStack) -> ShardSet | None:
        """Return the set, protected from removal until *stack* closes; None if it is not staged, or was damaged."""
        with ExitStack() as holding:
            if self._cache.lease(manifest.sha256, holding) is None:
                return None
            with suppress(ManifestError):
                shard_set = ShardSet.open(self.folder / manifest.sha256)
                if shard_set.manifest.sha256 == manifest.sha256:
                    shard_set.require_intact()
                    stack.enter_context(holding.pop_all())
                    return shard_set
        self._cache.discard(manifest.sha256)
        return None

    def _open_in_place(self, origin: Folder, manifest: Manifest) -> ShardSet:
        found = f"{origin} has {manifest.shard_bytes} bytes of shards, for which {self.folder} has no room"
        expected = f"limit {self.limit_bytes} bytes, less on a full disk, and sets in use stay"
        if not isinstance(origin, LocalFolder):
            raise StreamError(f"{found}; expected shards that fit ({expected}): raise the limit, or make room")
        self.tell(f"{found} ({expected}); it is read in place")
        return ShardSet.open(origin.path)
