"""Sections of a GPU day, one for each way to end; they import no torch, so that their processes start quickly."""

import os
import signal
import time
from collections.abc import Iterator

from bench.gpu_day.lines import Figure
from bench.gpu_day.plan import Plan


def measures(plan: Plan) -> Iterator[Figure]:
    """Run a section that measures something."""
    yield Figure(what="is rehearsal", found=plan.is_rehearsal)


def crashes(_: Plan) -> Iterator[Figure]:
    """Run a section that fails after its first figure."""
    yield Figure(what="before", found=1)
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def hangs(_: Plan) -> Iterator[Figure]:
    """Run a section that does not end."""
    yield Figure(what="before", found=2)
    time.sleep(600)


def dies(_: Plan) -> Iterator[Figure]:
    """Run a section that is killed, as for lack of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield Figure(what="never")
