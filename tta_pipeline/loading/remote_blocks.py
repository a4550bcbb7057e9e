"""Read shards at URLs in blocks, ahead of the stream, and cache the blocks on local disk within a limit.

A block is a file of a `LocalCache`, `<sha256 of the shard>-<number>-<size>.block`, as the server sent it. Its name has
the hash of its shard, so processes and benchmarks share the block, and the blocks of a changed shard have other names.
The cache is not trusted: each sample is compared when it is read, and a wrong one is fetched again.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from tta_pipeline.data.remote_files import describe_change, fetch_file_facts, read_range
from tta_pipeline.data.server_requests import run_and_wait, start_coroutine
from tta_pipeline.data.sources.remote_shards import RemoteCell
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.local_cache import LocalCache
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import node_local_folder

OWN_FOLDER = "tta_pipeline-remote"
BLOCK_BYTES = 2**21
_NUM_AHEAD = 12
"""Number of blocks of a set that are requested before they are needed: 24 MiB fill a gigabit per second at 200 ms."""
_FIRST_AHEAD = 2
_SHARE = 16


class Block(NamedTuple):
    """A part of a shard: the number of the shard, and the number of the block in it."""

    shard: int
    number: int


@dataclass(frozen=True, kw_only=True)
class BlockCache:
    """Where blocks of remote shards are kept on local disk, and how many; a full disk keeps fewer."""

    root: Path | None = None
    """Folder on local disk; None: this user's folder in $TMPDIR."""
    limit_bytes: int = 16 * 2**30
    """Largest size of all blocks; each process may exceed it by a sixteenth for a short time."""

    @property
    def folder(self) -> Path:
        """The folder below the root that contains only the blocks."""
        return (self.root or node_local_folder()) / OWN_FOLDER

    @property
    def files(self) -> LocalCache:
        """The blocks, as files."""
        remedy = "set stage_folder to another folder, or a lower remote_limit_gib"
        return LocalCache(folder=self.folder, limit_bytes=self.limit_bytes, remedy=remedy)


DEFAULT_CACHE = BlockCache()


class RemoteBlocks:
    """Reads byte ranges of shards at URLs; blocks that the stream needs next are read ahead."""

    def __init__(self, shard_set: ShardSet, remote: RemoteCell, cache: BlockCache) -> None:
        located = {shard.name: shard for shard in remote.shards}
        self._index = shard_set.index
        self._facts = shard_set.manifest.shards
        self._remote = [located[shard.name] for shard in shard_set.manifest.shards]
        self._files = cache.files
        self._room_bytes = 0
        self._lock = Lock()
        self._arriving: dict[Block, Any] = {}
        self._plan: list[Block] = []
        self._position: dict[Block, int] = {}
        self._next = 0

    def open(self, stack: ExitStack) -> None:
        """Cancel the requests that are under way when *stack* closes."""
        stack.callback(self._cancel)

    def _cancel(self) -> None:
        with self._lock:
            self._plan = []
            for arriving in self._arriving.values():
                arriving.cancel()
            self._arriving.clear()

    def expect(self, indices: Indices) -> None:
        """Plan to read the blocks of the samples at *indices* in the order in which they are first needed.

        An order that returns to more blocks than the cache may keep is refused.
        """
        if not len(indices):
            return
        index = self._index
        starts, ends = index.offsets[indices], index.offsets[indices] + index.sizes[indices] - 1
        most = 1 + max(shard.shard_bytes for shard in self._facts) // BLOCK_BYTES
        numbers = index.shards[indices] * most
        both = np.stack([numbers + starts // BLOCK_BYTES, numbers + ends // BLOCK_BYTES], axis=1).ravel()
        blocks, first = np.unique(both, return_index=True)
        last = len(both) - 1 - np.unique(both[::-1], return_index=True)[1]
        self._require_room(first, last, len(both))
        with self._lock:
            self._plan = [Block(*divmod(block, most)) for block in blocks[np.argsort(first)].tolist()]
            self._position = {block: position for position, block in enumerate(self._plan)}
            self._next = 0
            self._read_ahead(0)

    def read(self, shard: int, start: int, end: int) -> bytes:
        """Return the bytes from *start* to *end*.

        Raises:
            StreamError: the bytes cannot be read, or the server now has another file.
        """
        blocks = [Block(shard, number) for number in range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1)]
        with self._lock:
            self._read_ahead(max(self._position.get(block, -1) for block in blocks) + 1)
        return b"".join(self._read_block(block, start, end) for block in blocks)

    def read_anew(self, shard: int, start: int, end: int) -> bytes:
        """Remove the cached blocks with the bytes from *start* to *end*, and fetch these bytes anew from the server."""
        for number in range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1):
            self._files.discard(self._name(Block(shard, number)))
        remote = self._remote[shard]
        return run_and_wait(read_range(remote.url, start, end, facts=remote.facts))

    def changed(self) -> Iterator[int]:
        """Yield the shards for which the server now reports other facts than before."""
        found = fetch_file_facts([remote.url for remote in self._remote])
        for number, (now, remote) in enumerate(zip(found, self._remote, strict=True)):
            if describe_change(now, remote.facts):
                yield number

    def place(self, shard: int) -> str:
        """Return the URL of the shard."""
        return self._remote[shard].url

    def _read_block(self, block: Block, start: int, end: int) -> bytes:
        """Return the bytes of *block* between *start* and *end* of its shard, once they have arrived."""
        first = block.number * BLOCK_BYTES
        begin, stop = max(start - first, 0), min(end - first, self._size(block))
        with self._lock:
            arriving = self._arriving.get(block)
        if arriving is None:
            kept = self._files.read(self._name(block), self._size(block), start=begin, end=stop)
            if kept is not None:
                return kept
            with self._lock:
                arriving = self._request_block(block)
        data: bytes = arriving.result()
        return data[begin:stop]

    def _read_ahead(self, position: int) -> None:
        """Request the next blocks of the plan, some way beyond *position*; the caller holds the lock."""
        # Few at first: requests made at once share the link, and the first block would wait for all of them.
        ahead = min(_NUM_AHEAD, _FIRST_AHEAD + position)
        while self._next < min(position + ahead, len(self._plan)):
            block = self._plan[self._next]
            self._next += 1
            if not self._files.has(self._name(block)):
                self._request_block(block)

    def _request_block(self, block: Block) -> Any:
        if block not in self._arriving:
            self._arriving[block] = start_coroutine(self._fetch_block(block))
        return self._arriving[block]

    async def _fetch_block(self, block: Block) -> bytes:
        """Fetch a block and write it to the cache; later reads take it from disk, or, after an error, ask again."""
        remote, first = self._remote[block.shard], block.number * BLOCK_BYTES
        try:
            data = await read_range(remote.url, first, first + self._size(block), facts=remote.facts)
            await asyncio.to_thread(self._store, block, data)
        finally:
            with self._lock:
                self._arriving.pop(block, None)
        return data

    def _store(self, block: Block, data: bytes) -> None:
        """Write a block to the cache, unless another process is writing it."""
        with self._files.naming_faults("a block of a remote shard was kept", self._files.limit_bytes):
            self._room_bytes -= len(data)
            if self._room_bytes < 0:  # going through all blocks takes a while, so room is made for many at once
                self._room_bytes = max(self._files.limit_bytes // _SHARE - len(data), 0)
                if not self._files.make_room(self._room_bytes + len(data)):  # the disk is nearly full
                    self._room_bytes = 0
                    self._files.make_room(len(data))
            self._files.write(self._name(block), data, makes_room=False)

    def _require_room(self, first: Indices, last: Indices, count: int) -> None:
        """Refuse an order that returns to more blocks than the cache keeps: it would fetch them again and again."""
        living = np.zeros(count + 1, np.int64)
        np.add.at(living, first, 1)
        np.add.at(living, last + 1, -1)
        needed = (int(np.cumsum(living).max()) + _NUM_AHEAD) * BLOCK_BYTES
        if needed > self._files.limit_bytes:
            raise StreamError(
                f"{self._remote[0].url} and others: found an order that jumps between {needed} bytes of shards; "
                f"expected at most {self._files.limit_bytes} bytes, the limit of {self._files.folder}: raise "
                "remote_limit_gib, or stream in stored order"
            )

    def _size(self, block: Block) -> int:
        return min(BLOCK_BYTES, self._facts[block.shard].shard_bytes - block.number * BLOCK_BYTES)

    def _name(self, block: Block) -> str:
        return f"{self._facts[block.shard].sha256}-{block.number}-{BLOCK_BYTES}.block"
