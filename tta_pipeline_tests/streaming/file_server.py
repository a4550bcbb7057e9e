"""A web server with range requests that can misbehave: `python file_server.py FOLDER LOG [FAULT TIMES]`.

It prints its port, notes in LOG each request for a shard, and commits FAULT on the first TIMES of them.
"""

import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

FOLDER, LOG = Path(sys.argv[1]), Path(sys.argv[2])
FAULT, TIMES = (sys.argv[3], int(sys.argv[4])) if len(sys.argv) > 3 else ("", 0)
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Serves files, whole or a range of them."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Serve a file, whole or a range of it, with the fault."""
        path = FOLDER / unquote(self.path).lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        fault = self.fault() if path.suffix == ".tar" else ""
        if fault == "503":
            self.send_error(503)
            return
        data = path.read_bytes()
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if span and fault != "no ranges":
            data = data[int(span[1]) : int(span[2]) + 1]
        if fault == "changed":
            data = bytes([data[0] ^ 1]) + data[1:]
        if fault == "short":
            data = data[:-1]
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if fault not in ("cut", "stall") else data[: len(data) // 2])
        if fault == "stall":
            time.sleep(60)
        self.close_connection = fault == "cut"

    def fault(self) -> str:
        """Note the request and return the fault to commit."""
        with LOCK, LOG.open("a+") as log:
            log.seek(0)
            num_requests = len(log.readlines())
            log.write(f"{self.path} {self.headers.get('Range')}\n")
        return FAULT if num_requests < TIMES else ""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
sys.stdout.write(f"{server.server_address[1]}\n")
sys.stdout.flush()
server.serve_forever()
