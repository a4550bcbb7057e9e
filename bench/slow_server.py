"""A web server of files behind one slow link: `python -m bench.slow_server FOLDER LATENCY_S BYTES_PER_S`.

All connections share BYTES_PER_S; each new connection and each request waits LATENCY_S. The server prints its port. It
handles GET and HEAD like a file server, or like S3 for public objects.
"""

import re
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

FOLDER, LATENCY_S, BYTES_PER_S = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
_CHUNK_BYTES = 2**15
_QUEUE_S = 0.05
"""Delay that the link can catch up, as a queue does; otherwise threads that wake up late would reduce its rate."""


class Link:
    """The link that all connections share: chunks leave it one after another, at its rate."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, num_bytes: int) -> None:
        """Wait until the last of *num_bytes* has left."""
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic() - _QUEUE_S) + num_bytes / BYTES_PER_S
            until = self._free_at
        time.sleep(max(until - time.monotonic(), 0))


class Handler(BaseHTTPRequestHandler):
    """Serves files, whole or a range of them."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    link = Link()

    def setup(self) -> None:
        """Delay a new connection by the latency."""
        super().setup()
        time.sleep(LATENCY_S)

    def do_GET(self) -> None:
        """Send a file, or a range of it."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Send the headers of a file."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        time.sleep(LATENCY_S)
        path = FOLDER / unquote(urlsplit(self.path).path).lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = (int(span[1]), min(int(span[2] or size), size - 1) + 1) if span else (0, size)
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("ETag", f'"{size}-{path.stat().st_mtime_ns}"')
        self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if with_body:
            self._send(path, start, end)

    def _send(self, path: Path, start: int, end: int) -> None:
        with path.open("rb") as file:
            file.seek(start)
            while start < end:
                data = file.read(min(_CHUNK_BYTES, end - start))
                self.link.wait(len(data))
                try:
                    self.wfile.write(data)
                except ConnectionError:
                    self.close_connection = True
                    return
                start += len(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until the process is killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
