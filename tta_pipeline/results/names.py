"""Names of files among results: results, plans, notes that void a result. Reading them needs no library."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.domain.locations import RESULTS

RESULT_NAME = re.compile(r"([0-9a-f]{16}|[0-9]{8}T[0-9]{6})-([0-9a-f]{8})\.json")
VOID_SUFFIX = ".void"
PLANS = "plans"
"""Folder of the plans among a benchmark's results."""
HELD_OUT = "held_out"
"""Folder of the evaluations of trials, which count in no table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Void:
    """Why a result counts nowhere."""

    because: str
    voided_at: str


def void_name(name: str) -> str:
    """Return the name of the note that voids the result called *name*."""
    return f"{name.removesuffix('.json')}{VOID_SUFFIX}"


def read_void(path: Path) -> Void | None:
    """Return why the result in *path* is void; None if it is not. A damaged note still makes it void."""
    try:
        found = json.loads(path.with_name(void_name(path.name)).read_bytes())
        return Void(because=str(found["because"]), voided_at=str(found["voided_at"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return Void(because="the note that voids it cannot be read", voided_at="")


def find_results(folder: Path, fingerprint: str | None = None) -> Iterator[Path]:
    """Yield the paths of the results of *fingerprint*, or all, in *folder* that are not void, sorted by name.

    Files are found by their names; *folder* need not exist.
    """
    try:
        names = {path.name for path in folder.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return
    first = "" if fingerprint is None else f"{fingerprint[:16]}-"
    for name in sorted(names):
        if name.startswith(first) and RESULT_NAME.fullmatch(name) and void_name(name) not in names:
            yield folder / name


def problem_of_place(path: Path, benchmark: str, key: str) -> str:
    """Return why *path* is wrong for a file of *benchmark* in its folder *key*; empty if it is right.

    All files of a folder that was copied to the place of another benchmark have the same problem.
    """
    place, inner = (RESULTS, *benchmark.split("/")), tuple(key.split("/"))
    outer, folder = path.parent.parts[: -len(inner)], path.parent.parts[-len(inner) :]
    if folder != inner:
        expected = "/".join((*place, *inner))
        return f"is in the wrong folder: it belongs to {key} of {benchmark}; expected the folder {expected}"
    if outer[-len(place) :] != place:
        return f"is in the wrong folder: it belongs to {benchmark}; expected the folder {'/'.join(place)}"
    return ""


def plan_files(results_root: Path) -> Iterator[Path]:
    """Yield the paths of all plans under *results_root*, in order."""
    for pattern in (f"*/{PLANS}/*.json", f"*/*/{PLANS}/*.json"):
        yield from sorted(results_root.glob(pattern))
