"""Our methods compared with the code of their authors: `python -m bench.parity --help`."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from bench.parity.cifar import BATCH_SIZE, SEVERITY, SHIFTS, scene
from bench.parity.clones import commit
from bench.parity.comparison import Agreement, Comparison, Scene, compare, unexplained_titles
from bench.parity.comparisons import COMPARISONS
from bench.parity.page import document

DESCRIPTION = """Our methods compared with the code of their authors, on a continual stream of four shifts of CIFAR-10.

Nothing is fetched: CLONES must have the authors' repositories, each under its name, as `git clone` leaves it. Missing
ones are listed and left out. The exit status is 1 if predictions differ without a reason, or if a reason does not
explain the whole difference.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    chosen = [each for each in COMPARISONS if not options.only or each.method in options.only]
    found = run(chosen, scene(options.cifar, images_per_shift=options.images_per_shift), options.authors)
    commits = {each.repository: commit(options.authors / each.clone) for each in chosen if each.title in found}
    page = document(chosen, found, commits=commits, scene=_describe_scene(options.images_per_shift))
    if options.output:
        options.output.write_text(page)
    else:
        sys.stdout.write(page)
    for title in (wrong := unexplained_titles(found, chosen)):
        sys.stderr.write(f"{title}: differs from the authors' code; expected equal predictions, or a reason\n")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.parity", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--authors", type=Path, required=True, metavar="CLONES", help="folder of the clones")
    parser.add_argument(
        "--cifar", type=Path, required=True, help="test.tar.gz, train.tar.gz, resnet.py and resnet20-12fca82f.th"
    )
    parser.add_argument("--images-per-shift", type=int, default=1000, metavar="N", help="a multiple of 200")
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="methods by their names in the catalogue")
    parser.add_argument("--output", type=Path, metavar="FILE", help="file for the page; default: print it")
    return parser


def run(comparisons: Sequence[Comparison], of: Scene, authors: Path) -> dict[str, Agreement]:
    """Run the comparisons whose clone lies in *authors*, report each, and return the agreements by title."""
    console, found = Console(stderr=True, width=160), {}
    for each in comparisons:
        if not (authors / each.clone).is_dir():
            console.print(f"{each.title}: left out, {authors / each.clone} is no folder")
            continue
        started = time.perf_counter()
        found[each.title] = agreement = compare(each, of, authors / each.clone)
        console.print(f"{each.title}: {agreement}, {time.perf_counter() - started:.0f} s")
    return found


def _describe_scene(images_per_shift: int) -> str:
    shifts = ", ".join(SHIFTS)
    return (
        f"A ResNet-20 for CIFAR-10 and a continual stream of {shifts} at severity {SEVERITY}, {images_per_shift:,} "
        f"test images each, in batches of {BATCH_SIZE}, on the CPU."
    )


if __name__ == "__main__":
    sys.exit(main())
