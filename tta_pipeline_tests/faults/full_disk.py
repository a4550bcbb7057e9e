"""A disk that is full, for one process alone."""

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


def run_limited(num_bytes: int, *command: str, **options: Any) -> tuple[int, str]:
    """Run a verb that can make no file larger than *num_bytes*, and return exit status and errors."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_python(_LIMITED, num_bytes, *command, **pipes, **options) as process:
        _, errors = process.communicate()
    return process.returncode, errors
