"""The process of one section: writes a line for each figure as soon as it is measured."""

import faulthandler
import importlib
import sys
from dataclasses import asdict
from pathlib import Path

from bench.gpu_day.lines import Line, append_line
from bench.gpu_day.plan import plan_of


def main() -> None:
    """Run the section that the arguments name; see `running`."""
    name, function, out, day, rehearsed_on, folder = sys.argv[1:]
    faulthandler.enable()  # shows where a section crashed, or hung: SIGABRT ends it at its time limit
    module, _, attribute = function.partition(":")
    figures = getattr(importlib.import_module(module), attribute)
    for figure in figures(plan_of(rehearsed_on=rehearsed_on, folder=Path(folder))):
        append_line(Path(out), Line(section=name, day=day, is_rehearsal=bool(rehearsed_on), **asdict(figure)))


if __name__ == "__main__":
    main()
