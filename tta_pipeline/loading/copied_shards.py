"""Read shards from copies on local disk, which may still be growing.

A copy is a file of a `LocalCache`. Another process makes it (`loading.copying`): a forked worker could not use the
network library of its parent, and decoding does not wait for it. A reader waits only until the copy contains the bytes
that it needs. Copies are not trusted: each sample is checked when it is read.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

import numpy as np

from tta_pipeline.data.remote_files import FileFacts, scheme_of
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import PipelineError, StreamError
from tta_pipeline.loading.copying import ShardOrigin, copy_into_cache
from tta_pipeline.loading.decode_pool import work_is_in_vain
from tta_pipeline.loading.local_cache import LocalCache
from tta_pipeline.shards.checksums import CHECKSUMS_FILE
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.shard_set import SAMPLES_FILE, ShardSet
from tta_pipeline.util.files import node_local_folder
from tta_pipeline.util.processes import ask_worker, start_worker

_LOOK_S = 0.005
"""Pause before a reader checks again whether its bytes have arrived."""


@dataclass(frozen=True, kw_only=True)
class ShardCache:
    """Folder and size limit of the copies of shards on local disk; a full disk keeps fewer."""

    root: Path | None = None
    """Folder on local disk for copies, also of shards in folders; None: only shards at URLs are copied, to $TMPDIR."""
    limit_bytes: int = 16 * 2**30
    """Largest size of all copies."""

    @property
    def folder(self) -> Path:
        """The folder below the root that contains only the copies."""
        return (self.root or node_local_folder()) / "tta_pipeline-shards"

    @property
    def files(self) -> LocalCache:
        """The copies, as files."""
        remedy = "set local_scratch_dir to another folder, or another local_scratch_limit_gib"
        return LocalCache(folder=self.folder, limit_bytes=self.limit_bytes, remedy=remedy)


DEFAULT_CACHE = ShardCache()


def shard_origins(shard_set: ShardSet) -> list[ShardOrigin]:
    """Return where the shards are, numbered as in the manifest."""
    remote = {shard.name: shard for shard in shard_set.remote.shards} if shard_set.remote else {}
    return [
        ShardOrigin(
            location=remote[shard.name].url if remote else str((shard_set.folder / shard.name).absolute()),
            facts=FileFacts(shard.shard_bytes, remote[shard.name].tag if remote else ""),
            sha256=shard.sha256,
        )
        for shard in shard_set.manifest.shards
    ]


def copy_shard_set(shard_set: ShardSet, folder: Path) -> None:
    """Copy a whole shard set into the empty *folder*; every byte is hashed on the way.

    Raises:
        StreamError: a shard cannot be read or differs from the manifest.
        OSError: *folder* cannot be written.
    """
    for shard, origin in zip(shard_set.manifest.shards, shard_origins(shard_set), strict=True):
        with (folder / shard.name).open("w+b", buffering=0) as out:
            origin.copy(out)
    for name in (MANIFEST_FILE, SAMPLES_FILE, CHECKSUMS_FILE):
        if (shard_set.folder / name).exists():
            shutil.copyfile(shard_set.folder / name, folder / name)
    replace(shard_set, folder=folder, remote=None).note_verified()


class CopiedShards:
    """Reads byte ranges of shards from their copies; the shard that the stream needs next is copied ahead.

    A shard in a folder that cannot be copied, for example on a full disk, is read in place.
    """

    def __init__(self, shard_set: ShardSet, cache: ShardCache) -> None:
        self._index = shard_set.index
        self._files = cache.files
        self._origins = shard_origins(shard_set)
        self._lock = Lock()
        self._copies = _Copies(self._origins, self._files)
        self._leases: dict[int, ExitStack] = {}
        self._num_left = np.zeros(len(self._origins), np.int64)
        self._following: dict[int, int] = {}

    def open(self, stack: ExitStack) -> None:
        """End the copying and release the copies when *stack* closes; a later reader continues them."""
        stack.callback(self._close)

    def _close(self) -> None:
        self._copies.end()
        for lease in self._leases.values():
            lease.close()
        self._leases.clear()

    def expect(self, indices: Indices) -> None:
        """Begin to copy the shard that is needed first; the others follow in the order in which they are needed."""
        if not len(indices):
            return
        shards = self._index.shards[indices]
        found, first = np.unique(shards, return_index=True)
        plan = found[np.argsort(first)].tolist()
        self._num_left = np.bincount(shards, minlength=len(self._origins))
        self._following = dict(pairwise(plan))
        self._copies.request(plan[0])

    def read(self, shard: int, start: int, end: int, *, num_samples: int) -> bytes:
        """Return the bytes from *start* to *end*, of *num_samples* samples, once they have arrived.

        Raises:
            StreamError: the shard cannot be copied, or the server now has another file.
            OSError: the shard cannot be read in place.
        """
        data = self._await(shard, start, end)
        following = self._following.pop(shard, None)
        if following is not None:
            self._copies.request(following)
        with self._lock:
            self._num_left[shard] -= num_samples
            if self._num_left[shard] <= 0 and (lease := self._leases.pop(shard, None)):
                lease.close()
        return data

    def read_anew(self, shard: int, start: int, end: int) -> bytes:
        """Return the bytes from *start* to *end* of a new copy, once all of it has arrived and has the right hash."""
        self._files.discard(self._origins[shard].copy_name)
        return self._await(shard, start, end, is_whole=True)

    def changed(self) -> Iterator[int]:
        """Yield nothing: a copy was hashed, and so was each of its samples."""
        yield from ()

    def place(self, shard: int) -> str:
        """Return the path or URL of the shard."""
        return self._origins[shard].location

    def _await(self, shard: int, start: int, end: int, *, is_whole: bool = False) -> bytes:
        """Return the bytes from *start* to *end* once they, or the whole shard, have arrived."""
        origin = self._origins[shard]
        while True:
            with self._files.naming_faults(f"{origin.location} was read from a copy", origin.facts.size_bytes):
                if (data := self._read_copy(shard, start, end, is_whole=is_whole)) is not None:
                    return data
            if problem := self._copies.take_problem(shard):
                if scheme_of(origin.location):
                    raise StreamError(problem)
                with Path(origin.location).open("rb", buffering=0) as file:
                    return os.pread(file.fileno(), end - start, start)
            if work_is_in_vain():
                raise StreamError(f"{origin.location} had not arrived completely when its stream ended")
            self._copies.request(shard)
            time.sleep(_LOOK_S)

    def _read_copy(self, shard: int, start: int, end: int, *, is_whole: bool) -> bytes | None:
        """Return the bytes from *start* to *end* of a finished or unfinished copy; None if they have not arrived."""
        origin = self._origins[shard]
        if not self._lease(shard):
            growing = self._files.unfinished(origin.copy_name, origin.facts.size_bytes)
            return None if is_whole else _read_range(growing, start, end)
        data = _read_range(self._files.folder / origin.copy_name, start, end)
        if data is None:  # the file was truncated
            self._files.discard(origin.copy_name)
        return data

    def _lease(self, shard: int) -> bool:
        """Keep the whole copy of *shard* until its samples have been read; return whether there is one."""
        with self._lock, ExitStack() as stack:
            if shard in self._leases:
                return True
            if self._files.lease(self._origins[shard].copy_name, stack) is None:
                return False
            if self._num_left[shard] > 0:
                self._leases[shard] = stack.pop_all()
            return True


class _Copies:
    """Has shards copied, one after another, by a process that begins with the first request."""

    def __init__(self, origins: list[ShardOrigin], files: LocalCache) -> None:
        self._origins = origins
        self._files = files
        self._owner = 0
        self._lock = Lock()

    def request(self, shard: int) -> None:
        """Have *shard* copied after those that were requested before, unless it is there or among them."""
        if self._files.has(self._origins[shard].copy_name):
            return
        with self._lock:
            if self._owner != os.getpid():  # a forked worker starts its own process
                self._begin()
            if shard not in self._under_way:
                self._under_way.add(shard)
                self._todo.put(shard)

    def take_problem(self, shard: int) -> str:
        """Return why the last copy of *shard* failed, once; empty if it did not."""
        return self._problems.pop(shard, "") if self._owner == os.getpid() else ""

    def end(self) -> None:
        """Kill the process; the next one continues from what was copied."""
        if self._owner == os.getpid():
            self._owner = 0
            self._process.kill()
            self._todo.put(None)

    def _begin(self) -> None:
        self._under_way = set[int]()
        self._problems = dict[int, str]()
        self._todo = SimpleQueue[int | None]()
        self._process = start_worker()
        # A daemon, so that a program that does not close its shards ends all the same.
        Thread(target=self._serve, args=(self._process, self._todo), name="tta-copies", daemon=True).start()
        self._owner = os.getpid()

    def _serve(self, process: "subprocess.Popen[bytes]", todo: "SimpleQueue[int | None]") -> None:
        while (shard := todo.get()) is not None:
            try:
                ask_worker(process, copy_into_cache, self._origins[shard], self._files)
            except PipelineError as error:
                self._problems[shard] = str(error)
            self._under_way.discard(shard)
        process.communicate()


def _read_range(path: Path, start: int, end: int) -> bytes | None:
    """Return the bytes of a file from *start* to *end*; None if it does not have all of them."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        data = os.pread(descriptor, end - start, start)
    finally:
        os.close(descriptor)
    return data if len(data) == end - start else None
