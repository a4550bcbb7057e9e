"""The processes of `run --processes`: each does one part of a benchmark's evaluations."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from tta_pipeline.cli.common import say

_ENDS_WITHIN_S = 1.0
"""Seconds that all processes have to end by themselves after Ctrl-C; the command ends soon after."""


def run_parts(benchmark_name: str, options: Sequence[str], num_parts: int) -> int:
    """Evaluate each part in a separate process, and return how many failed; Ctrl-C and SIGTERM end all of them.

    Args:
        benchmark_name: Name of the benchmark.
        options: Options of `run` for all processes.
        num_parts: Number of parts and of processes.
    """
    command = [sys.executable, "-m", "tta_pipeline", "run", benchmark_name, *options]
    started: list[subprocess.Popen[str]] = []
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for name in [f"{number}/{num_parts}" for number in range(1, num_parts + 1)]:
            started += [_start([*command, f"--part={name}"], name, num_parts)]
        return sum(process.wait() != 0 for process in started)
    finally:
        signal.signal(signal.SIGTERM, previous)
        _end(started)


def _start(command: Sequence[str], name: str, num_processes: int) -> "subprocess.Popen[str]":
    """Start one of *num_processes* processes; each line that it prints is printed after its *name*."""
    environment = {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // num_processes)),
        **os.environ,
        "LOCAL_WORLD_SIZE": str(num_processes),  # the decoding threads share the cores, too
    }
    process = subprocess.Popen(  # noqa: S603 - our own command, and nothing else
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    threading.Thread(target=_pass_on, args=(process, name), daemon=True).start()
    return process


def _pass_on(process: "subprocess.Popen[str]", name: str) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            say(f"{name}: {line.rstrip()}")


def _end(processes: "Sequence[subprocess.Popen[str]]") -> None:
    """End the running *processes*: every file is published by a rename, so none is half-written."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGINT)
    deadline_s = time.monotonic() + _ENDS_WITHIN_S
    for process in running:
        try:
            process.wait(max(0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
