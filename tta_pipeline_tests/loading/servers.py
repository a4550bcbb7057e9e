"""Real servers of shard sets, in other processes than that of the tests."""

import atexit
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import pytest

from tta_pipeline.data import remote_files
from tta_pipeline_tests.interrupts import interruptible


@dataclass(frozen=True, kw_only=True)
class Web:
    """A running web server of a folder."""

    url: str
    log: Path

    def requests(self) -> list[str]:
        """Return the requests for shards so far."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def headers(self) -> str:
        """Return every request so far, with its headers."""
        path = self.log.with_name(f"{self.log.name}.all")
        return path.read_text() if path.exists() else ""

    def send_to(self, beginning: str) -> None:
        """Redirect every request to *beginning* followed by its path."""
        self.log.with_name(f"{self.log.name}.to").write_text(beginning)

    def commit(self, fault: str, times: int = 1000) -> None:
        """Let the server commit *fault* on the next *times* requests for shards."""
        self.log.with_name(f"{self.log.name}.fault").write_text(f"{fault},{times},{len(self.requests())}")


@contextmanager
def web_server(folder: Path, fault: str = "", times: int = 1000) -> Iterator[Web]:
    """Serve *folder* by HTTP, with *fault* on the first *times* requests for shards."""
    log = folder.parent / f"requests-{fault}.log"
    port = _asked((str(folder), str(log), fault, times))
    try:
        yield Web(url=f"http://127.0.0.1:{port}", log=log)
    finally:
        _asked(port)


def _asked(request: object) -> int:
    """Return the answer of the process that has all web servers."""
    process = _file_servers()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{json.dumps(request)}\n")
    process.stdin.flush()
    return int(process.stdout.readline())


@cache
def _file_servers() -> subprocess.Popen[str]:
    """Return the process that has all web servers; it ends with the tests."""
    stack = ExitStack()
    atexit.register(stack.close)
    command = (sys.executable, Path(__file__).with_name("file_server.py"))
    return stack.enter_context(running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))


@contextmanager
def s3_bucket(name: str, folder: Path) -> Iterator[Any]:
    """Make a bucket on a server with the S3 protocol, with its key and address in a profile; yield boto's bucket.

    The profile is in *folder*, and named by the environment until the block ends. All tests of a process share the
    server, so that each names its own bucket.
    """
    import boto3

    address = _s3_server()
    with pytest.MonkeyPatch.context() as patch:
        profile = (
            f"[far]\naws_access_key_id=me\naws_secret_access_key=secret\nregion=eu-west-1\nendpoint_url={address}\n"
        )
        (folder / "aws").write_text(profile)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "aws"))
        patch.setenv("AWS_CONFIG_FILE", str(folder / "aws"))
        patch.setenv("AWS_PROFILE", "far")
        patch.setattr(remote_files, "_bucket", cache(remote_files._bucket.__wrapped__))
        bucket = boto3.session.Session().resource("s3").Bucket(name)
        bucket.create(CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        yield bucket


@cache
def _s3_server() -> str:
    """Return the URL of a server with the S3 protocol; it ends with the tests."""
    stack = ExitStack()
    atexit.register(stack.close)
    command: tuple[str | Path, ...] = (Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", "0")
    with TemporaryFile("w+") as log:  # a pipe that nobody reads would be full one day
        process = stack.enter_context(running(command, stderr=log))
        number = os.dup(log.fileno())
    stack.callback(os.close, number)
    while process.poll() is None:
        if match := re.search(r"http://127\.0\.0\.1:\d+", os.pread(number, 10_000, 0).decode()):
            return match[0]
        time.sleep(0.02)
    raise AssertionError("the server did not say where it is")


@contextmanager
def running(
    command: Sequence[str | Path],
    *,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | IO[str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Run *command*, which receives SIGINT, and kill it at the end."""
    with interruptible():
        started = subprocess.Popen(command, text=True, stdin=stdin, stdout=stdout, stderr=stderr)
    with killed_at_the_end(started):
        yield started


@contextmanager
def killed_at_the_end(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Yield *process*, and kill it at the end."""
    with process:
        try:
            yield process
        finally:
            process.kill()
