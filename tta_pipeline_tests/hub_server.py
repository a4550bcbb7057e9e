"""A stand-in for the Hugging Face Hub that takes uploads: huggingface_hub is real, and the server is ours.

It answers as the Hub does where files are small: they come in the commit itself. The Hub's road for large files (git
LFS, Xet) is not tried.
"""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Uploads(BaseHTTPRequestHandler):
    """Answers requests that create a repository, ask how files are sent, and commit them."""

    def __init__(self, root: Path, *arguments: object) -> None:
        self.root = root
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_POST(self) -> None:
        """Answer a request."""
        data = self.rfile.read(int(self.headers["Content-Length"]))
        place = f"http://{self.headers['Host']}"
        if self.path == "/api/repos/create":
            answer: object = {"url": f"{place}/datasets/{json.loads(data)['organization']}/{json.loads(data)['name']}"}
        elif self.path.endswith("/preupload/main"):
            files = [{**each, "uploadMode": "regular", "shouldIgnore": False} for each in json.loads(data)["files"]]
            answer = {"files": files}
        elif self.path.endswith("/commit/main"):
            lines = [json.loads(line) for line in data.splitlines()]
            self._keep([line["value"] for line in lines if line["key"] == "file"])
            answer = {"commitUrl": f"{place}{self.path.removeprefix('/api').removesuffix('main')}1", "commitOid": "1"}
        else:
            raise NotImplementedError(self.path)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
        """Say nothing."""

    def _keep(self, files: list[dict[str, str]]) -> None:
        """Write each file below `<root>/<owner>/<name>`."""
        owner, name = self.path.split("/")[3:5]
        for each in files:
            target = self.root / owner / name / each["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(base64.b64decode(each["content"]))


@contextmanager
def hub_server(root: Path) -> Iterator[str]:
    """Serve, and yield the address; repositories arrive below *root*."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Uploads, root)) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
