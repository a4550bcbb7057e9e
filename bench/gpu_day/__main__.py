"""Measurements that need a GPU: `python -m bench.gpu_day --help`."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.gpu_day.lines import Line, append_line, exit_status
from bench.gpu_day.report import ReportError, show, write_csv
from bench.gpu_day.run_sections import run_sections
from bench.gpu_day.sections import MOST_S, SECTIONS

DESCRIPTION = """Measurements that need a GPU, in less than nine minutes.

The sections run one after the other, each in its own process with a time limit in seconds. Each appends lines of
JSON to a file as soon as it has them, so that no measurement is lost. At the end, all figures are printed next to their
requirements. The exit status is 0 only if nothing failed and every measured figure meets its requirement.
"""
EPILOG = """sections:
{sections}

packages: a machine without network that has Python 3.12, torch 2.11, torchvision, numpy, pillow, pyarrow, pyyaml,
rich, click, safetensors, scipy, threadpoolctl and xxhash still lacks these wheels, 3.2 MB for cp312. Fetch them before
(`pip download --no-deps --python-version 3.12 --only-binary=:all:`), and install them there with `--no-deps --target`:
  simplejpeg==1.9.0 pydantic==2.14.3 pydantic_core==2.50.4 annotated-types typing-inspection typing_extensions

examples:
  python -m bench.gpu_day --rehearse                    tiny, on the CPU: does every section work?
  python -m bench.gpu_day                               all sections
  python -m bench.gpu_day --section speed               one section again (it needs the section images once)
  python -m bench.gpu_day --write docs/results/gpu-day.csv gpu_day.jsonl
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    options = _parser().parse_args(arguments)
    if options.write:
        target, lines = options.write
        try:
            write_csv(target, lines)
        except ReportError as error:
            sys.exit(str(error))
        return 0
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    sections = "\n".join(f"  {each.name:10} {each.limit_s:4} s  {each.summary}" for each in SECTIONS)
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_day",
        description=DESCRIPTION,
        epilog=EPILOG.format(sections=sections),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rehearse",
        nargs="?",
        const="cpu",
        default="",
        metavar="DEVICE",
        help="run everything with tiny sizes, on a kind of device (cpu): figures of speed are meaningless",
    )
    parser.add_argument("--section", choices=[each.name for each in SECTIONS], help="run only this section")
    parser.add_argument("--out", type=Path, default=Path("gpu_day.jsonl"), help="file of the lines (gpu_day.jsonl)")
    parser.add_argument(
        "--write", nargs=2, type=Path, metavar=("CSV", "LINES"), help="write the figures as CSV, and exit"
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    day, started = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    chosen = [each for each in SECTIONS if options.section in (None, each.name)]
    data = Path(os.environ.get("TTA_DATA_ROOT", "data")).absolute() / "bench"
    folder = data / (f"gpu_day_rehearsal_{options.rehearse}" if options.rehearse else "gpu_day")
    lines = run_sections(
        chosen, options.out.absolute(), day=day, rehearsed_on=options.rehearse, folder=folder, tell=_tell
    )
    if options.section is None:
        whole = Line(
            section="verdicts", day=day, is_rehearsal=bool(options.rehearse), what="seconds of the day", unit="s",
            found=time.perf_counter() - started, asked=f"< {MOST_S}", is_speed=True,
        )  # fmt: skip
        append_line(options.out, whole)
        lines.append(whole)
    show(lines)
    return exit_status(lines)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress of a program


if __name__ == "__main__":
    sys.exit(main())
