"""Memory of the simulated device: live bytes by storage, a limit, and detection of memory that is freed too early."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self
from weakref import WeakValueDictionary

import torch

from tta_pipeline_tests.simulated.streams import Stream, current_stream


class RaceError(RuntimeError):
    """Work that uses memory on a stream that does not wait for the work before."""


class Memory:
    """Allocated memory; a storage counts as long as any view of it lives."""

    def __init__(self) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self.limit_bytes: int | None = None
        self.faults: list[str] = []
        """Faults that were found in places where no error can be raised."""
        self._put_off: list[RuntimeError] | None = None
        """Errors of the present backward pass; None: there is none."""

    def fail(self, error: RuntimeError) -> None:
        """Raise *error* at once, or at the end of the present backward pass."""
        if self._put_off is None:
            raise error
        self._put_off.append(error)

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Raise the first error of a backward pass at its end.

        The threads of autograd cannot raise it for a device in Python: while an error is on its way, PyTorch asks the
        device's guard for its stream, in Python, which is not allowed there, and ends the process. A device in C++,
        such as CUDA, raises at once.
        """
        before, self._put_off = self._put_off, []
        try:
            yield
        finally:
            errors, self._put_off = self._put_off, before
        if errors:
            self.fail(errors[0])

    def allocate(self, num_bytes: int) -> None:
        """Count *num_bytes*.

        Raises:
            torch.OutOfMemoryError: the limit does not allow them.
        """
        if self.limit_bytes is not None and self.live_bytes + num_bytes > self.limit_bytes:
            self.fail(
                torch.OutOfMemoryError(
                    f"the simulated device is out of memory: {self.live_bytes} bytes are allocated, {num_bytes} were "
                    f"asked for, the limit is {self.limit_bytes}"
                )
            )
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def free(self, num_bytes: int) -> None:
        """Subtract *num_bytes*."""
        self.live_bytes -= num_bytes


MEMORY = Memory()


class Block:
    """The memory of one storage; it belongs to the stream on which it was allocated, and returns to it when freed."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._num_bytes = 0
        self._owner = current_stream()
        self._last_use: dict[Stream, int] = {}
        self._is_recorded_for = set[Stream]()
        self._storage = storage  # so that no other storage gets its address
        self.resize()

    @classmethod
    def of(cls, raw: torch.Tensor) -> Self:
        """Return the block of the storage of *raw*, the same for all views of it."""
        storage = raw.untyped_storage()
        block = _BLOCKS.get(storage._cdata)
        if block is None:
            _BLOCKS[storage._cdata] = block = cls(storage)
        return block  # type: ignore[return-value] # a dict does not know the class

    def resize(self) -> None:
        """Update the count to the present size of the storage.

        Raises:
            torch.OutOfMemoryError: the limit does not allow them.
        """
        MEMORY.allocate(self._storage.nbytes() - self._num_bytes)
        self._num_bytes = self._storage.nbytes()

    def use(self, stream: Stream, position: int) -> None:
        """Note that the work at *position* of *stream* uses the memory.

        Raises:
            RaceError: the work does not come after the last use on another stream.
        """
        for other, at in self._last_use.items():
            if not stream.comes_after(other, at):
                MEMORY.fail(RaceError("found memory that is used on a stream that does not wait for the stream before"))
        self._last_use = {stream: position, **{s: p for s, p in self._last_use.items() if s is not stream}}

    def record_stream(self, stream: Stream) -> None:
        """Keep the memory, after it is freed, until *stream* has done the work submitted before."""
        self._is_recorded_for.add(stream)

    def __del__(self) -> None:
        MEMORY.free(self._num_bytes)
        for stream, position in self._last_use.items():
            if not self._owner.comes_after(stream, position) and stream not in self._is_recorded_for:
                MEMORY.faults.append("found memory that is freed while another stream uses it; expected record_stream")


_BLOCKS: WeakValueDictionary[int, Block] = WeakValueDictionary()
