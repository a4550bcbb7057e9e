"""Runs sections one after the other, each in its own process, which is killed at the section's time limit."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.gpu_day.lines import Figure, Line, append_line, read_lines

_MOST_OUTPUT = 4000
_ABORT_S = 2
_SLOWER_REHEARSAL = 8
"""Factor on a section's time limit in a rehearsal, to suffice on any processor."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the day."""

    name: str
    function: str
    """`<module>:<function>`; the function takes a `Plan`, and yields figures."""
    limit_s: int
    summary: str


def run_sections(
    sections: Sequence[Section], out: Path, *, day: str, rehearsed_on: str, folder: Path, tell: Callable[[str], None]
) -> list[Line]:
    """Run *sections*, also after failures, and return their lines, which are also added to the file *out*.

    Args:
        sections: Sections to run.
        out: File to which each line is added as soon as it is known.
        day: Time at which the command was started.
        rehearsed_on: Kind of device for a rehearsal with tiny sizes; empty: no rehearsal.
        folder: Folder for images, shards and records.
        tell: Called with a message for each section.
    """
    for section in sections:
        limit_s = section.limit_s * (_SLOWER_REHEARSAL if rehearsed_on else 1)
        tell(f"{section.name}: {section.summary} (at most {limit_s} s)")
        command = [
            sys.executable, "-m", "bench.gpu_day.section_process", section.name, section.function,
            str(out), day, rehearsed_on, str(folder),
        ]  # fmt: skip
        for figure in _run(command, limit_s, tell):
            append_line(out, Line(section=section.name, day=day, is_rehearsal=bool(rehearsed_on), **asdict(figure)))
    return [line for line in read_lines(out) if line.day == day]


def _run(command: Sequence[str], limit_s: int, tell: Callable[[str], None]) -> list[Figure]:
    """Run the process of a section, which writes its own lines; return the figures that only the parent knows."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stderr=errors, start_new_session=True)
        try:
            status: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            status = None
            process.send_signal(signal.SIGABRT)  # it writes where it was
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_ABORT_S)
        finally:
            _kill(process)
        errors.seek(0)
        output = errors.read().decode(errors="replace").strip()
    took = Figure(what="seconds of the section", found=time.perf_counter() - started, unit="s")
    if status == 0:
        return [took]
    tell(output[-_MOST_OUTPUT:])
    if status is None:
        reason = f"ran longer than {limit_s} s and was killed; its other lines are what it had measured"
    else:
        reason = f"ended with status {status}: {output.splitlines()[-1] if output else 'no output'}"
    return [took, Figure(what="the section", why_not=reason[:300], is_failure=True)]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill *process* and all its children."""
    with suppress(ProcessLookupError):  # they have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
