"""Order of the simulated device's work: streams, events, and the work that the host knows to be done.

Each stream, and the host, knows how much work of each other stream comes before its own next work; it learns this from
events. Copies are delayed until later work needs them. All other work is done at once, since it comes after the work
that it needs.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tta_pipeline_tests.simulated.waits import WAITS


class Known:
    """How much work of each stream is known to come before something."""

    def __init__(self, positions: "dict[Stream, int] | None" = None) -> None:
        self._positions = dict(positions or {})

    def covers(self, stream: "Stream", position: int) -> bool:
        """Return whether the work of *stream* up to *position* comes before."""
        return self._positions.get(stream, 0) >= position

    def learn(self, other: "Known") -> None:
        """Add the knowledge of *other*."""
        for stream, position in other._positions.items():
            self._positions[stream] = max(position, self._positions.get(stream, 0))

    def copy(self) -> "Known":
        """Return an independent copy."""
        return Known(self._positions)

    def plus(self, stream: "Stream", position: int) -> "Known":
        """Return a copy that also covers *stream* up to *position*."""
        return Known({**self._positions, stream: position})


class Stream:
    """A queue of work, done in the order of submission."""

    def __init__(self, _device: object = None) -> None:
        self.position = 0
        """Number of submitted work items."""
        self.known = Known()
        """Work of other streams that comes before the next work here."""
        self._put_off = deque[tuple[int, Callable[[], object]]]()
        _STREAMS.append(self)

    def submit(self, put_off: Callable[[], object] | None = None) -> int:
        """Submit work, done at once or *put_off*, and return its position."""
        self.position += 1
        if put_off is not None:
            self._put_off.append((self.position, put_off))
        return self.position

    def do(self, position: int | None = None) -> None:
        """Do the delayed work up to *position*; None: all of it."""
        while self._put_off and (position is None or self._put_off[0][0] <= position):
            self._put_off.popleft()[1]()

    def comes_after(self, stream: "Stream", position: int) -> bool:
        """Return whether the next work here comes after that of *stream* up to *position*."""
        return stream is self or self.known.covers(stream, position) or HOST.covers(stream, position)

    def wait_event(self, event: "Event") -> None:
        """Let work that is submitted from now on come after *event*."""
        self.known.learn(event.known)
        self._put_off.append((self.position + 1, event.do))

    def wait_stream(self, stream: "Stream") -> None:
        """Let work that is submitted from now on come after all work of *stream*."""
        self.wait_event(stream.record_event())

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record *event*, by default a new one, as the moment when all work up to now is done, and return it."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Have the host wait until all work is done."""
        WAITS.note("synchronize")
        self.finish()

    def finish(self) -> None:
        """Do all work, and let the host know."""
        self.do()
        HOST.learn(self.known.plus(self, self.position))


class Event:
    """A moment in the work of a stream."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.known = Known()
        self._is_timed = enable_timing
        self._place: tuple[Stream, int] | None = None
        self._recorded_s = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Set the event to the moment when the work submitted to *stream*, by default the current one, is done."""
        stream = stream or current_stream()
        stream.known.learn(HOST)
        self._place = stream, stream.submit()
        self.known = stream.known.plus(*self._place)
        self._recorded_s = time.perf_counter()

    def do(self) -> None:
        """Do the work that comes before."""
        if self._place:
            stream, position = self._place
            stream.do(position)

    def wait(self, stream: Stream | None = None) -> None:
        """Let work of *stream*, by default the current one, come after this moment."""
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        """Return whether the host knows that the moment has come."""
        return self._place is None or HOST.covers(*self._place)

    def synchronize(self) -> None:
        """Have the host wait for the moment."""
        if not self.query():
            WAITS.note("event")
        self.do()
        HOST.learn(self.known)

    def elapsed_time(self, end: "Event") -> float:
        """Return the milliseconds to *end*, by the clock of the host, the only one.

        Raises:
            RuntimeError: the host does not know that both have come, or one of them is not timed.
        """
        if not (self._is_timed and end._is_timed and self.query() and end.query()):
            raise RuntimeError("found an event that is not timed or has not come; expected a wait for both")
        return (end._recorded_s - self._recorded_s) * 1000


HOST = Known()
"""Work that the host knows to be done."""
_STREAMS: list[Stream] = []
_CURRENT = [Stream()]


def current_stream(_device: object = None) -> Stream:
    """Return the stream to which work goes, for any thread: decoding threads use no device."""
    return _CURRENT[-1]


@contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    """Send work to *stream* inside the block."""
    _CURRENT.append(stream)
    try:
        yield
    finally:
        _CURRENT.pop()


def finish_all() -> None:
    """Do all work of all streams, and let the host know."""
    for stream in _STREAMS:
        stream.finish()
