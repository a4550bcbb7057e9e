"""Copies of files from servers and folders: hashed on the way, and resumed at the end of an earlier copy."""

import hashlib
import time
from collections.abc import Callable
from io import FileIO

from tta_pipeline.data.remote_files import (
    FileFacts,
    NoAnswerError,
    OtherAnswerError,
    naming_faults,
    request_same_file,
)

_PIECE_BYTES = 2**17
"""Bytes that are written at a time: few, since a reader of the growing file waits for them."""
_PAUSES_S = (0.1, 0.5, 2.0)
"""Pause after each response with other bytes than requested; after one more such response, the copy fails."""


def copy_file(
    origin: str, out: FileIO, facts: FileFacts, *, algorithm: str, report: Callable[[int], object] = lambda _: None
) -> str:
    """Append the missing rest of the file at *origin* to *out*, and return the hash of the whole file.

    After a dropped connection the copy goes on as long as each attempt brings new bytes. It starts again if the server
    returns other bytes than the rest.

    Args:
        origin: URL or path of the file.
        out: Unbuffered file, open for reading and writing; what it has is the beginning of the file.
        facts: Facts that the server must still report.
        algorithm: Name of the hash, as in hashlib.
        report: Called with the number of bytes of each block that has been written.

    Raises:
        NoSuchFileError: the server has no such file.
        StreamError: the server no longer responds, or the file has changed on it; or the file cannot be read.
        OSError: *out* cannot be written.
    """
    copy, pauses_s = _Copy(out, algorithm, facts.size_bytes), iter(_PAUSES_S)
    while copy.num_bytes < facts.size_bytes:
        before = copy.num_bytes
        try:
            with naming_faults(origin, f"{facts.size_bytes} bytes, and the rest from byte {before} on"):
                for piece in request_same_file(origin, facts, start=before).stream(min_chunk_size=_PIECE_BYTES):
                    copy.append(memoryview(piece))
                    report(len(piece))
        except OtherAnswerError:
            copy.restart()
            if (pause_s := next(pauses_s, None)) is None:
                raise
            time.sleep(pause_s)
        except NoAnswerError:
            if copy.num_bytes == before:
                raise
    return copy.hexdigest()


class _Copy:
    """The bytes of a file that have arrived."""

    def __init__(self, out: FileIO, algorithm: str, size_bytes: int) -> None:
        self._out = out
        self._algorithm = algorithm
        out.seek(0)
        self._digest = hashlib.file_digest(out, lambda: hashlib.new(algorithm, usedforsecurity=False))
        self.num_bytes = out.tell()
        if self.num_bytes > size_bytes:
            self.restart()

    def restart(self) -> None:
        """Discard what has arrived."""
        self._out.seek(0)
        self._out.truncate()
        self._digest = hashlib.new(self._algorithm, usedforsecurity=False)
        self.num_bytes = 0

    def append(self, data: memoryview) -> None:
        self._digest.update(data)
        while data:
            data = data[self._out.write(data) :]
        self.num_bytes = self._out.tell()

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
