"""A server of a model on this machine, in a thread, that answers as docs/how-to/deployed.md says, or misbehaves."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch

LATE_S = 0.8
VERSION = "7"
Rows = list[list[Any]]


@dataclass
class ModelServer:
    """What the server computes, how it misbehaves, and what it was asked."""

    compute: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    """Returns logits and features of images in [0, 1]."""
    url: str = ""
    faults: deque[str] = field(default_factory=deque)
    """What is wrong with the next answers, one each; then they are right."""
    requests: list[dict[str, str]] = field(default_factory=list)
    """Headers of each request."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, images: torch.Tensor, fault: str) -> dict[str, Any]:
        """Return the answer for *images*, with *fault*."""
        with self.lock, torch.inference_mode():
            logits, features = self.compute(images)
        rows: Rows = logits.double().softmax(1).tolist()
        wrong: dict[str, Callable[[], Rows]] = {
            "few": lambda: rows[:-1],
            "twice each": lambda: rows + rows,
            "few classes": lambda: [row[:-1] for row in rows],
            "nan": lambda: [[float("nan")] * len(rows[0]), *rows[1:]],
            "sum": lambda: [[value * 0.5 for value in row] for row in rows],
            "huge": lambda: [[10**400] * len(row) for row in rows],
            "words": lambda: [["high", "low", "low"] for _ in rows],
            "reversed": lambda: rows[::-1],
        }
        version = "8" if fault == "version" else VERSION
        return {"version": version, "probabilities": wrong.get(fault, lambda: rows)(), "features": features.tolist()}


def _images_of(body: bytes, headers: dict[str, str]) -> torch.Tensor:
    if headers["Content-Type"] == "application/json":
        pixels = np.array(json.loads(body)["images"])
    else:
        shape = [int(size) for size in headers["X-Image-Shape"].split(",")]
        pixels = np.frombuffer(body, dtype={"uint8": "u1", "float32": "<f4"}[headers["X-Dtype"]]).reshape(-1, *shape)
    images = torch.tensor(pixels, dtype=torch.float32)
    return images / 255 if headers["X-Dtype"] == "uint8" else images


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: ModelServer

    def do_POST(self) -> None:
        body, headers = self.rfile.read(int(self.headers["Content-Length"])), dict(self.headers)
        with self.model.lock:
            self.model.requests.append(headers)
            fault = self.model.faults.popleft() if self.model.faults else ""
        if fault == "silent":
            self.close_connection = True
            return
        if fault == "late":
            time.sleep(LATE_S)
        if fault in ("500", "400", "302"):
            self.send_response(int(fault))
            self.send_header("Location", "http://localhost:9/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = json.dumps(self.model.answer(_images_of(body, headers), fault)).encode()
        data = {"no json": b"<html>", "two bodies": data + data, "cut": data[:-9]}.get(fault, data)
        for _ in range(2 if fault == "two answers" else 1):
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that were gone."""


@contextmanager
def serving(compute: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Iterator[ModelServer]:
    """Serve a model until the block ends."""
    model = ModelServer(compute)
    server = _Quiet(("127.0.0.1", 0), type("Handler", (_Handler,), {"model": model}))
    model.url = f"http://127.0.0.1:{server.server_address[1]}/predict"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
