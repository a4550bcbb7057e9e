"""Copies of files from servers: hashed on the way, and resumed where an earlier copy ended."""

import hashlib
from collections.abc import Callable
from io import FileIO

from tta_pipeline.data.remote_files import (
    FileFacts,
    NoAnswerError,
    OtherRangeError,
    facts_of,
    naming_faults,
    request_from,
    require_same_file,
)

_PIECE_BYTES = 2**17
"""Bytes that are written at a time: few, since a reader of the growing file waits for them."""


def copy_file(
    url: str, out: FileIO, facts: FileFacts, *, algorithm: str, report: Callable[[int], object] = lambda _: None
) -> str:
    """Append to *out* what it lacks of the file at *url*, and return the hash of the whole file.

    After a dropped connection the copy goes on as long as each attempt brings new bytes. It begins
    anew if the server does not give the rest of a file alone.

    Args:
        url: Address of the file.
        out: Unbuffered file, open for reading and writing; what it has is the beginning of the file.
        facts: Facts that the server must still report.
        algorithm: Name of the hash, as in hashlib.
        report: Called with the number of bytes of each piece that has been written.

    Raises:
        NoSuchFileError: the server has no such file.
        StreamError: the server does not answer any more, or has another file now.
        OSError: *out* cannot be written.
    """
    copy = _Copy(out, algorithm, facts.size_bytes)
    while copy.num_bytes < facts.size_bytes:
        before = copy.num_bytes
        try:
            _receive(url, copy, facts, report)
        except OtherRangeError:
            copy.restart()
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


def _receive(url: str, copy: _Copy, facts: FileFacts, report: Callable[[int], object]) -> None:
    """Append bytes as long as a single answer brings them."""
    with naming_faults(url, f"{facts.size_bytes} bytes, and the rest from byte {copy.num_bytes} on"):
        answer = request_from(url, copy.num_bytes)
        require_same_file(url, facts_of(answer.meta), facts)
        for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
            copy.append(memoryview(piece))
            report(len(piece))
