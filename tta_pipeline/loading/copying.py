"""The process that copies shards at URLs to local disk: a request is a line of JSON, and so is its answer.

It ends with its input. It may be killed at any time: the next one goes on with its copies.
"""

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from tta_pipeline.data.copied_file import copy_file
from tta_pipeline.data.remote_files import FileFacts
from tta_pipeline.errors import PipelineError, StreamError
from tta_pipeline.loading.local_cache import RESUMED, LocalCache

_NUM_TRIES = 2
"""Number of attempts to copy a shard, since it may be replaced during a copy."""


@dataclass(frozen=True, kw_only=True)
class CopyRequest:
    """A shard to copy: what the reader writes to the copying process, as a line of JSON."""

    url: str
    size_bytes: int
    tag: str
    sha256: str
    folder: str
    """Folder of the cache."""
    limit_bytes: int
    remedy: str
    """What a user can set if the folder is of no use."""

    @property
    def name(self) -> str:
        """Name of the copy in the cache."""
        return f"{self.sha256}{RESUMED}"

    @property
    def facts(self) -> FileFacts:
        """Facts that the server must still report."""
        return FileFacts(self.size_bytes, self.tag)


def copy_shard(request: CopyRequest, files: LocalCache) -> None:
    """Copy a shard into the cache, unless it is there; a copy that another process began is gone on with.

    Raises:
        StreamError: the server does not have this shard any more, or there is no room for it.
        OSError: the cache cannot be written.
    """
    with ExitStack() as stack:
        draft = files.begin(request.name, request.size_bytes, stack, waits=True, resumes=True)
        if draft is None:
            if files.has(request.name):
                return
            raise StreamError(
                f"{request.url}: found no room for {request.size_bytes} bytes in {files.folder} beside the shards in "
                f"use; expected at most {files.limit_bytes} bytes of them, and less on a full disk: raise "
                "remote_limit_gib, make room, or stream in stored order"
            )
        with FileIO(draft.descriptor, "r+b", closefd=False) as out:
            for _ in range(_NUM_TRIES):
                found = copy_file(request.url, out, request.facts, algorithm="sha256")
                if found == request.sha256:
                    draft.publish()
                    return
                out.truncate(0)
    raise StreamError(
        f"{request.url}: found sha256 {found}; expected {request.sha256}, as in the manifest, so the shard was damaged "
        "or replaced: put the shard there that the manifest describes"
    )


def main() -> None:
    """Copy one shard after another until the input ends."""
    requests = SimpleQueue[str]()
    Thread(target=_copy_requested, args=(requests,), daemon=True).start()
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _copy_requested(requests: "SimpleQueue[str]") -> None:
    while True:
        shard, fields = json.loads(requests.get())
        request = CopyRequest(**fields)
        files = LocalCache(folder=Path(request.folder), limit_bytes=request.limit_bytes, remedy=request.remedy)
        problem = ""
        try:
            with files.naming_faults(f"{request.url} was copied", request.size_bytes):
                copy_shard(request, files)
        except PipelineError as error:
            problem = str(error)
        sys.stdout.write(f"{json.dumps([shard, problem])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
