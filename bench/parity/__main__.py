"""Our methods compared with the code of their authors: `python -m bench.parity --help`."""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from bench.parity.cifar import BATCH_SIZE, SEVERITY, SHIFTS, scene
from bench.parity.clones import check_out, commit
from bench.parity.comparison import SEED, Agreement, Comparison, Scene, compare, unexplained_titles
from bench.parity.comparisons import COMMITS, COMPARISONS
from bench.parity.orders import table
from bench.parity.page import COLUMNS, data_rows, describe_seeds, document, headings, reason_of, row
from bench.result_pages import csv_text

DESCRIPTION = """Our methods compared with the code of their authors, on a continual stream of four shifts of CIFAR-10.

  python -m bench.parity tent --clone tent --cifar CIFAR --images 800

prints the rows of `tent` in docs/results/parity.md. A name is a method or the title of a row. Nothing is fetched:
without a clone of the authors' repository, the command prints how to clone it at the listed commit. Without a name it
makes the whole page from a folder with all clones. The exit status is 1 if predictions differ without a reason, or by
more than the reason explains, and 2 if nothing can be compared.
"""
STEP = BATCH_SIZE * len(SHIFTS)
_CANNOT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        _require_whole(options)
        chosen = choose(options.names)
        folders = find_clones(chosen, authors=options.authors, clone=options.clone)
    except ValueError as error:
        parser.error(str(error))
    missing = sorted({each.repository for each in chosen} - set(folders))
    left_out = [f"no clone of {each}: {check_out(each, COMMITS[each])}\n" for each in missing]
    if missing and (options.output or not folders):
        sys.stderr.write("".join(left_out))
        return _CANNOT
    torch.set_num_threads(1)
    of = scene(options.cifar, images_per_shift=options.images // len(SHIFTS))
    present = [each for each in chosen if each.repository in folders]
    if options.names:
        found = _write_rows(present, of, folders, num_seeds=options.seeds)
        sys.stdout.write("".join(f"- left out, {line}" for line in left_out))
    else:
        found = _write_page(present, of, folders, options)
    for title in (wrong := unexplained_titles(found, present)):
        sys.stderr.write(f"{title}: differs from the authors' code; expected equal predictions, or a reason\n")
    return 1 if wrong else 0


def _require_whole(options: argparse.Namespace) -> None:
    """Raise an error if the options would overwrite the page with a part of it, or compare a part of a batch."""
    if options.images < STEP or options.images % STEP:
        raise ValueError(f"--images is {options.images}; expected a multiple of {STEP}, a batch for each shift")
    if options.output and (options.names or options.clone):
        raise ValueError("--output is for the whole page; expected no NAME and no --clone with it")
    if options.seeds == 1:
        raise ValueError("--seeds is 1; expected at least 2, from which a standard deviation follows")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.parity", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a method, or the title of a row; none: the page")
    parser.add_argument("--clone", type=Path, metavar="PATH", help="clone of the authors' repository of the rows")
    parser.add_argument(
        "--authors", type=Path, metavar="FOLDER", help="folder of clones, each under its name, as `git clone` leaves it"
    )
    parser.add_argument(
        "--cifar", type=Path, required=True, help="test.tar.gz, train.tar.gz, resnet.py and resnet20-12fca82f.th"
    )
    parser.add_argument("--images", type=int, default=5 * STEP, metavar="N", help=f"a multiple of {STEP}")
    parser.add_argument(
        "--seeds", type=int, default=0, metavar="N", help="compare errors over N seeds where views are drawn otherwise"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="file for the whole page; default: print it")
    return parser


def choose(names: Sequence[str]) -> list[Comparison]:
    """Return the rows that *names* name, with the rows that show their reasons; all rows if there is no name.

    Raises:
        ValueError: a name is no method with a row, and no title.
    """
    if not names:
        return list(COMPARISONS)
    unknown = [name for name in names if not _named(name)]
    if unknown:
        raise ValueError(f"found {unknown[0]!r}; expected a method or title of docs/results/parity.md")
    titles = {each.title for name in names for each in _named(name)}
    titles |= {each.shown_by for each in COMPARISONS if each.title in titles}
    return [each for each in COMPARISONS if each.title in titles]


def _named(name: str) -> list[Comparison]:
    return [each for each in COMPARISONS if name == each.method] or [each for each in COMPARISONS if name == each.title]


def find_clones(chosen: Sequence[Comparison], *, authors: Path | None, clone: Path | None) -> dict[str, Path]:
    """Return the folder of each repository of *chosen* that exists, from the folder *authors* or at *clone*.

    A clone with the name of none of the repositories is the first row's.

    Raises:
        ValueError: *clone* is no folder.
    """
    folders = {each.repository: authors / each.clone for each in chosen} if authors else {}
    if clone is not None:
        if not clone.is_dir():
            raise ValueError(f"--clone is {clone}, which is no folder; expected a clone of {chosen[0].repository}")
        named = [each.repository for each in chosen if each.clone == clone.resolve().name]
        folders[(named or [chosen[0].repository])[0]] = clone
    return {repository: folder for repository, folder in folders.items() if folder.is_dir()}


def run(
    comparisons: Sequence[Comparison], of: Scene, folders: Mapping[str, Path], *, seed: int = SEED
) -> Iterator[tuple[str, Agreement]]:
    """Run *comparisons*, whose clones are in *folders* by repository, and yield title and agreement of each."""
    for each in comparisons:
        yield each.title, compare(each, of, folders[each.repository], seed=seed)


def _write_rows(
    chosen: Sequence[Comparison], of: Scene, folders: Mapping[str, Path], *, num_seeds: int
) -> dict[str, Agreement]:
    """Write a row for each comparison as soon as it is known, then reasons, errors over seeds, and other commits."""
    sys.stdout.write(f"{headings()}\n")
    found: dict[str, Agreement] = {}
    for each, (title, agreement) in zip(chosen, run(chosen, of, folders), strict=True):
        found[title] = agreement
        sys.stdout.write(f"{row(each, agreement)}\n")
        sys.stdout.flush()
    notes = [reason_of(each) for each in chosen if each.reason]
    notes += [describe_seeds(*each) for each in _run_seeds(chosen, of, folders, num_seeds=num_seeds)]
    for repository, folder in folders.items():
        if not (actual := commit(folder)).startswith(listed := COMMITS[repository]):
            notes.append(f"- {repository} is at {actual}; expected {listed}: git -C {folder} checkout {listed}")
    sys.stdout.write("".join(f"{line}\n" for line in ["", *notes]) if notes else "")
    return found


def _write_page(
    chosen: Sequence[Comparison], of: Scene, folders: Mapping[str, Path], options: argparse.Namespace
) -> dict[str, Agreement]:
    """Write the page to the file that *options* name, with its data next to it, or to the standard output."""
    found = dict(run(chosen, of, folders))
    commits = {repository: commit(folder) for repository, folder in folders.items()}
    data = csv_text(COLUMNS, data_rows(COMPARISONS, found, commits=commits))
    page = document(
        COMPARISONS,
        list(csv.DictReader(data.splitlines())),
        scene=describe_scene(options.images),
        over_seeds=[describe_seeds(*each) for each in _run_seeds(chosen, of, folders, num_seeds=options.seeds)],
        orders=table(folders)[0],
    )
    if options.output:
        options.output.write_text(page)
        options.output.with_suffix(".csv").write_text(data)
    else:
        sys.stdout.write(page)
    return found


def _run_seeds(
    chosen: Sequence[Comparison], of: Scene, folders: Mapping[str, Path], *, num_seeds: int
) -> Iterator[tuple[str, list[Agreement]]]:
    """Yield title and agreements over seeds of each comparison in which the authors' code draws views differently."""
    for each in chosen if num_seeds else ():
        if each.draws_differ:
            yield each.title, [found for seed in range(num_seeds) for _, found in run([each], of, folders, seed=seed)]


def describe_scene(num_images: int) -> str:
    """Return a sentence about network, stream and images."""
    shifts = ", ".join(SHIFTS)
    return (
        f"A ResNet-20 for CIFAR-10 and a continual stream of {shifts} at severity {SEVERITY}, "
        f"{num_images // len(SHIFTS):,} test images each, in batches of {BATCH_SIZE}, on the CPU."
    )


if __name__ == "__main__":
    sys.exit(main())
