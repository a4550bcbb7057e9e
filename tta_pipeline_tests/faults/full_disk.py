"""Disks that are full or only read, for one process alone."""

import subprocess
from typing import Any

from tta_pipeline_tests.conftest import start_python

_LIMITED = """
import resource, signal, sys
from tta_pipeline.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error in place of a signal
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
main(sys.argv[2:])
"""

MOUNTING = """
import ctypes, subprocess
assert 0 == ctypes.CDLL(None).unshare(0x20000)  # CLONE_NEWNS: what this process mounts, no other sees
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)
"""
"""The beginning of code that mounts file systems for its own process."""


def run_limited(num_bytes: int, *command: str, **options: Any) -> tuple[int, str]:
    """Run a verb that can make no file larger than *num_bytes*, and return exit status and errors."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_python(_LIMITED, num_bytes, *command, **pipes, **options) as process:
        _, errors = process.communicate()
    return process.returncode, errors


def can_mount() -> bool:
    """Return whether code may begin with `MOUNTING`."""
    return not subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode
