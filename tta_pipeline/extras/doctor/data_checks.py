"""Checks of what lies in the data root: left-overs of killed runs, checksums of shards, and results."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tta_pipeline.domain.locations import Locations
from tta_pipeline.extras.doctor.finding import Finding, fault, note, ok
from tta_pipeline.results.database.changes import find_changes
from tta_pipeline.results.database.listing import list_files
from tta_pipeline.results.verification import find_problems
from tta_pipeline.shards.checksums import CHECKSUMS_FILE
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.util.files import is_abandoned
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list

_SETTLED_AFTER_S = 60.0  # writing such a file takes far less
_UNPUBLISHED = ".unpublished-*"
_WRITTEN_FOLDERS = (
    ".", "*", "*/*", "*/*/clean", "*/source/*", "*/source/*/*", "*/shards/*", "*/shards/*/*", "*/shards/*/*/*",
    "*/states/*/*", "*/states/*/*/*", "*/states/*/*/*/*", "results/*/*", "results/*/*/*", "results/*/*/*/*",
)  # fmt: skip
"""Folders below the data root in which runs write temporary files; those of a benchmark with several shift sets, or of
trials, lie a level deeper."""
_NUM_NAMED = 20


def check_left_overs(locations: Locations) -> Iterator[Finding]:
    """Look for temporary files of killed runs, as distinct from those that active runs are writing."""
    subject, root = "left-overs", locations.root
    globs = (root.glob(f"{folder}/{_UNPUBLISHED}") for folder in _WRITTEN_FOLDERS)
    found = list(dict.fromkeys(path for paths in globs for path in sorted(paths)))
    folders = [path for path in found if path.is_dir()]
    abandoned = [path for path in folders if is_abandoned(path)]
    files = [path for path in found if not path.is_dir() and _is_settled(path)]
    if abandoned:
        yield note(
            subject,
            f"{count_of(len(abandoned), 'folder')} of killed runs, {_size(abandoned)}: {abbreviate_list(abandoned)}",
            "the next run that writes there removes them; or remove them now, with rm -r",
        )
    if files:
        yield note(
            subject,
            f"{count_of(len(files), 'file')} of killed runs, {_size(files)}: {abbreviate_list(files)}",
            "remove them, with rm",
        )
    if not abandoned and not files:
        busy = len(folders) - len(abandoned)
        yield ok(subject, f"none; active runs hold {count_of(busy, 'temporary folder')}" if busy else "none")


_SETS = ("*/shards/*/*", "*/shards/*/*/*")
"""Folders of shard sets; those of a benchmark with several shift sets lie one level deeper."""


def check_shard_checksums(locations: Locations) -> Iterator[Finding]:
    """Look for shard sets whose file of checksums is gone."""
    subject = "checksums"
    folders = [path.parent for pattern in _SETS for path in sorted(locations.root.glob(f"{pattern}/{MANIFEST_FILE}"))]
    missing = [folder for folder in folders if not (folder / CHECKSUMS_FILE).is_file()]
    if missing:
        yield note(
            subject,
            f"{len(missing):,} of {len(folders):,} shard sets have no fast checksums of their samples, so that reading "
            f"them compares each sample's sha256, which takes longer: {abbreviate_list(missing)}",
            f"tta-pipeline shards verify {locations.root}",
        )
    else:
        sets = count_of(len(folders), "shard set")
        yield ok(subject, f"{sets}, all with checksums" if folders else "no shard sets yet")


def check_results(locations: Locations) -> Iterator[Finding]:
    """Read every result whole, and bring the database up to date, which compares its rows with what was inserted."""
    subject = "results"
    for log in sorted(locations.root.glob("metrics.duckdb.wal*")):
        yield note(
            subject,
            f"{log} was left by a program outside this project that wrote to the database",
            "its changes are in no result; remove it when it is not needed",
        )
    listing, num_faults = list_files(locations.root), 0
    for problem in find_problems(locations.root, listing):
        num_faults += 1
        if num_faults <= _NUM_NAMED:
            yield fault(subject, problem, "until then it is set aside, and counts nowhere")
    if num_faults > _NUM_NAMED:
        yield fault(
            subject,
            f"damaged or foreign: {count_of(num_faults - _NUM_NAMED, 'more file')}",
            "list them: tta-pipeline results verify",
        )
    for change in find_changes(locations, listing):
        yield note(subject, change, "the next command that reads the database brings it up to date")
    if not num_faults:
        yield ok(subject, f"{count_of(len(listing.results), 'result')}, each as its name says")


def _is_settled(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _SETTLED_AFTER_S


def _size(paths: Iterable[Path]) -> str:
    files = (file for path in paths for file in (path, *path.rglob("*")))
    return f"{sum(file.lstat().st_size for file in files if not file.is_dir()) / 1e9:,.1f} GB"
