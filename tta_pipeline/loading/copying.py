"""Copy shards to local disk in a separate process, which may be killed at any time."""

import os
import select
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from io import FileIO
from threading import Thread

from tta_pipeline.data.copied_file import copy_file
from tta_pipeline.data.remote_files import FileFacts
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.local_cache import RESUMED, LocalCache

_NUM_TRIES = 3
"""Number of attempts to copy a shard, since it may be replaced during a copy."""


@dataclass(frozen=True, kw_only=True)
class ShardOrigin:
    """Location and identity of a shard."""

    location: str
    """Path or URL."""
    facts: FileFacts
    sha256: str

    @property
    def copy_name(self) -> str:
        """Name of the copy in a cache: processes and benchmarks share it, and a changed shard has a different name."""
        return f"{self.sha256}{RESUMED}"

    def copy(self, out: FileIO) -> None:
        """Append the missing bytes of the shard to *out*.

        Raises:
            StreamError: the shard cannot be read or differs from the manifest.
            OSError: *out* cannot be written.
        """
        for _ in range(_NUM_TRIES):
            found = copy_file(self.location, out, self.facts, algorithm="sha256")
            if found == self.sha256:
                return
            out.truncate(0)
        raise StreamError(
            f"{self.location} has sha256 {found}, so the shard was damaged or replaced; expected {self.sha256}, as in "
            "the manifest: upload the shard that belongs to the manifest"
        )


def copy_into_cache(origin: ShardOrigin, files: LocalCache) -> None:
    """Copy a shard into the cache, unless it is there; continue a copy that another process began.

    This process ends with its parent.

    Raises:
        StreamError: the shard cannot be read or differs from the manifest, or the cache is full or not writable.
    """
    _end_with_parent()
    size_bytes = origin.facts.size_bytes
    with files.naming_faults(f"{origin.location} was copied", size_bytes), ExitStack() as stack:
        draft = files.begin(origin.copy_name, size_bytes, stack, resumes=True)
        if draft is not None:
            with FileIO(draft.descriptor, "r+b", closefd=False) as out:
                origin.copy(out)
            draft.publish()
        elif not files.has(origin.copy_name):
            raise StreamError(
                f"There is no space in {files.folder} for {size_bytes} bytes of {origin.location} next to the shards "
                f"in use; expected at most {files.limit_bytes} bytes of shards, or less on a full disk: raise "
                "local_scratch_limit_gib, free some disk space, or leave the stream in stored order (no seeds)"
            )


@cache
def _end_with_parent() -> None:
    """End this process, even during a copy, as soon as the other end of its input is closed."""

    def wait() -> None:
        closed = select.poll()
        closed.register(sys.stdin, 0)  # wait only for the end, so that the input stays for its reader
        closed.poll()
        os._exit(1)

    Thread(target=wait, name="tta-parent", daemon=True).start()
