"""Read shards at URLs from copies on local disk, which may still be growing.

A copy is a file of a `LocalCache`, `<sha256 of the shard>.tar`, so processes and benchmarks share it, and a changed
shard has another. Another process makes it (`loading.copying`): a forked worker could not use the network library of
its parent, and decoding does not wait for it. Whoever reads a copy waits only until it has the bytes; it is not
trusted, since each sample is compared when it is read.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock, Thread

import numpy as np

from tta_pipeline.data.sources.remote_shards import RemoteCell
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.copying import CopyRequest
from tta_pipeline.loading.local_cache import LocalCache
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import node_local_folder

OWN_FOLDER = "tta_pipeline-remote"
_LOOK_S = 0.005
"""Pause before a reader looks again whether its bytes have arrived."""


@dataclass(frozen=True, kw_only=True)
class ShardCache:
    """Where copies of remote shards are kept on local disk, and how many; a full disk keeps fewer."""

    root: Path | None = None
    """Folder on local disk; None: this user's folder in $TMPDIR."""
    limit_bytes: int = 16 * 2**30
    """Largest size of all copies."""

    @property
    def folder(self) -> Path:
        """The folder below the root that contains only the copies."""
        return (self.root or node_local_folder()) / OWN_FOLDER

    @property
    def files(self) -> LocalCache:
        """The copies, as files."""
        remedy = "set stage_folder to another folder, or another remote_limit_gib"
        return LocalCache(folder=self.folder, limit_bytes=self.limit_bytes, remedy=remedy)


DEFAULT_CACHE = ShardCache()


class CopiedShards:
    """Reads byte ranges of shards at URLs from their copies; the shard that the stream needs next is copied ahead."""

    def __init__(self, shard_set: ShardSet, remote: RemoteCell, cache: ShardCache) -> None:
        located = {shard.name: shard for shard in remote.shards}
        self._index = shard_set.index
        self._files = cache.files
        self._requests = [
            CopyRequest(
                url=located[shard.name].url,
                size_bytes=shard.shard_bytes,
                tag=located[shard.name].tag,
                sha256=shard.sha256,
                folder=str(self._files.folder),
                limit_bytes=self._files.limit_bytes,
                remedy=self._files.remedy,
            )
            for shard in shard_set.manifest.shards
        ]
        self._lock = Lock()
        self._copying = _Copying()
        self._leases: dict[int, ExitStack] = {}
        self._num_left = np.zeros(len(self._requests), np.int64)
        self._following: dict[int, int] = {}

    def open(self, stack: ExitStack) -> None:
        """End the copying, and let copies go, when *stack* closes; a later reader goes on with them."""
        stack.callback(self._close)

    def _close(self) -> None:
        self._copying.end()
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
        self._num_left = np.bincount(shards, minlength=len(self._requests))
        self._following = dict(pairwise(plan))
        self._request(plan[0])

    def read(self, shard: int, start: int, end: int, *, num_samples: int) -> bytes:
        """Return the bytes from *start* to *end*, which *num_samples* samples have, once they have arrived.

        Raises:
            StreamError: the shard cannot be copied, or the server now has another file.
        """
        data = self._read(shard, start, end)
        following = self._following.pop(shard, None)
        if following is not None:
            self._request(following)
        with self._lock:
            self._num_left[shard] -= num_samples
            if self._num_left[shard] <= 0 and (lease := self._leases.pop(shard, None)):
                lease.close()
        return data

    def read_anew(self, shard: int, start: int, end: int) -> bytes:
        """Return the bytes from *start* to *end* of a new copy, once all of it has arrived and has the right hash."""
        self._files.discard(self._requests[shard].name)
        return self._read(shard, start, end, is_whole=True)

    def changed(self) -> Iterator[int]:
        """Yield nothing: a copy was hashed, and so was each of its samples."""
        yield from ()

    def place(self, shard: int) -> str:
        """Return the URL of the shard."""
        return self._requests[shard].url

    def _read(self, shard: int, start: int, end: int, *, is_whole: bool = False) -> bytes:
        """Return the bytes from *start* to *end* once they, or the whole shard, have arrived."""
        request = self._requests[shard]
        with self._files.naming_faults(f"{request.url} was read from a copy", request.size_bytes):
            return self._await(shard, start, end, is_whole=is_whole)

    def _await(self, shard: int, start: int, end: int, *, is_whole: bool) -> bytes:
        request = self._requests[shard]
        unfinished = self._files.unfinished(request.name, request.size_bytes)
        self._copying.forget(shard)
        while True:
            if self._lease(shard):
                if (data := _read_range(self._files.folder / request.name, start, end)) is not None:
                    return data
                self._files.discard(request.name)  # somebody has cut it
            elif not is_whole and (data := _read_range(unfinished, start, end)) is not None:
                return data
            self._copying.require_well(shard)
            self._request(shard)
            time.sleep(_LOOK_S)

    def _lease(self, shard: int) -> bool:
        """Keep the whole copy of *shard* until its samples have been read; return whether there is one."""
        with self._lock, ExitStack() as stack:
            if shard in self._leases:
                return True
            if self._files.lease(self._requests[shard].name, stack) is None:
                return False
            if self._num_left[shard] > 0:
                self._leases[shard] = stack.pop_all()
            return True

    def _request(self, shard: int) -> None:
        """Have *shard* copied, unless it is there or under way."""
        if not self._files.has(self._requests[shard].name):
            with self._lock:
                self._copying.request(shard, self._requests[shard])


class _Copying:
    """The process that copies the shards of a stream, one after another; it begins with the first request."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._under_way: set[int] = set()
        self._problems: dict[int, str] = {}
        """What went wrong with shards, by their numbers."""

    def request(self, shard: int, request: CopyRequest) -> None:
        """Have *shard* copied after those that were requested before, unless it is among them."""
        if self._process is None or self._owner != os.getpid():  # a forked worker has its own
            self._begin()
        if shard not in self._under_way:
            self._under_way.add(shard)
            assert self._process is not None
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):  # its end is noticed below
                self._process.stdin.write(f"{json.dumps([shard, asdict(request)])}\n")
                self._process.stdin.flush()

    def forget(self, shard: int) -> None:
        """Forget that an earlier copy of *shard* failed."""
        self._problems.pop(shard, None)

    def require_well(self, shard: int) -> None:
        """Raise StreamError if the copy of *shard* has failed."""
        if problem := self._problems.get(shard):
            raise StreamError(problem)

    def end(self) -> None:
        """Kill the process; what it has copied stays for the next one."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            assert process.stdin is not None
            process.kill()
            process.stdin.close()
            process.wait()

    def _begin(self) -> None:
        command = [sys.executable, "-m", "tta_pipeline.loading.copying"]
        self._process = subprocess.Popen(  # noqa: S603 - this Python
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._owner, self._under_way, self._problems = os.getpid(), set(), {}
        Thread(target=self._listen, args=(self._process,), name="tta-copies", daemon=True).start()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        """Take down what the process says of each shard when it is done with it."""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                shard, problem = json.loads(line)
                if problem:
                    self._problems[shard] = problem
                self._under_way.discard(shard)
        if self._process is process:
            ended = (
                "the process that copies shards has ended; expected it to go on: run again, which goes on from there"
            )
            self._problems.update(dict.fromkeys(self._under_way, ended))
            self._process = None


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
