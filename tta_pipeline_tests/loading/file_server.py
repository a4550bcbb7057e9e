"""Web servers with range requests that can misbehave, in one process, which ends with its input.

For each line `[FOLDER, LOG, FAULT, TIMES]` it begins to serve a folder, and prints the port; for a line with a port it
ends that server, and prints the port when nothing listens there any more.

A server notes each request for a shard in LOG, and commits FAULT on the first TIMES of them. If a file LOG.fault has
`FAULT,TIMES,BEFORE`, it commits that fault on TIMES requests after the first BEFORE. If a file LOG.to has the beginning
of a URL, every request is redirected there. LOG.all has the headers of all requests. Folders are web pages with links,
and `/resolve/main/` and `/resolve/v2/` in a URL stand for `/`, as on the Hub.
"""

import json
import re
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class Server(ThreadingHTTPServer):
    """Serves a folder, until it is ended."""

    daemon_threads = True

    def __init__(self, folder: str, log: str, fault: str, times: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.log, self.fault, self.times = Path(folder), Path(log), fault, times
        self.has_links = not (self.folder / "no-links").exists()
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def end(self) -> None:
        """Listen no more."""
        self.socket.shutdown(socket.SHUT_RDWR)  # wakes the loop, which would sleep for half a second
        self.shutdown()
        self.server_close()


def tag_of(path: Path) -> str:
    """Return the ETag of a file."""
    return f'"{path.stat().st_mtime_ns}-{path.stat().st_size}"'


class Handler(BaseHTTPRequestHandler):
    """Serves files, whole or a range of them."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Say how large a file is, and its tag."""
        path = self.path_of_file()
        if not path.is_file():
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("ETag", tag_of(path))
        self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()

    def path_of_file(self) -> Path:
        """Return the path of what is asked for."""
        return self.server.folder / re.sub("/resolve/(main|v2)/", "/", unquote(self.path)).lstrip("/")

    def do_GET(self) -> None:
        """Serve a file, whole or a range of it, with the fault."""
        with self.server.lock, self.beside_the_log("all").open("a") as log:
            log.write(f"{self.path}\n{self.headers}")
        elsewhere = self.beside_the_log("to")
        if elsewhere.exists():
            self.send_response(302)
            self.send_header("Location", f"{elsewhere.read_text()}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = self.path_of_file()
        if path.is_dir() and any(path.glob("*.tar")) and self.server.has_links:
            self.answer("".join(f"<a href='{each.name}'>{each.name}</a>" for each in path.iterdir()).encode())
            return
        if not path.is_file():
            self.send_error(404)
            return
        fault = self.fault() if path.suffix == ".tar" else ""
        if fault == "503":
            self.send_error(503)
            return
        self.send(path, fault)

    def send(self, path: Path, fault: str) -> None:
        """Send a file, whole or a range of it, with *fault*."""
        data = whole = path.read_bytes()
        tag = tag_of(path)
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if self.headers.get("If-Range", tag) != tag:
            span = None
        if span and int(span[1]) >= len(whole):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(whole)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if span and fault not in ("no ranges", "ignores ranges"):
            data = data[int(span[1]) : int(span[2] or len(data)) + 1]
        if fault == "changed":
            data = bytes([data[0] ^ 1]) + data[1:]
        if fault == "short":
            data = data[:-1]
        self.send_response(200 if fault == "ignores ranges" or not span else 206)
        if span and fault != "ignores ranges":
            self.send_header("Content-Range", f"bytes {span[1]}-{int(span[1]) + len(data) - 1}/{len(whole)}")
        self.send_header("ETag", '"another"' if fault == "tag" else tag)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(data if fault not in ("cut", "stall") else data[: len(data) // 2])
        if fault == "stall":
            time.sleep(60)
        self.close_connection = fault == "cut"

    def beside_the_log(self, ending: str) -> Path:
        """Return the path of the log with one more *ending*."""
        return self.server.log.with_name(f"{self.server.log.name}.{ending}")

    def fault(self) -> str:
        """Note the request and return the fault to commit."""
        with self.server.lock, self.server.log.open("a+") as log:
            log.seek(0)
            num_requests = len(log.readlines())
            log.write(f"{self.path} {self.headers.get('Range')}\n")
        path, server = self.beside_the_log("fault"), self.server
        name, times, before = path.read_text().split(",") if path.exists() else (server.fault, server.times, 0)
        return str(name) if int(before) <= num_requests < int(before) + int(times) else ""

    def answer(self, data: bytes) -> None:
        """Send a web page."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


servers: dict[int, Server] = {}
for line in sys.stdin:
    request = json.loads(line)
    if isinstance(request, int):
        port = request
        servers.pop(port).end()
    else:
        server = Server(*request)
        port = server.server_address[1]
        servers[port] = server
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
