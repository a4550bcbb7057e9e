"""Checks of the data root's contents: left-overs of killed runs, and results."""

from collections.abc import Iterator

from tta_pipeline.domain.locations import Locations
from tta_pipeline.extras.doctor.finding import Finding, fault, note, ok
from tta_pipeline.results.database.changes import find_changes
from tta_pipeline.results.database.listing import list_files
from tta_pipeline.results.verification import find_problems
from tta_pipeline.util.files import find_abandoned
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list


def check_left_overs(locations: Locations) -> Iterator[Finding]:
    """Look for temporary files of killed runs, except files that active runs are writing."""
    if found := list(find_abandoned(locations.root)):
        said = f"{count_of(len(found), 'left-over')} of killed runs: {abbreviate_list(found)}"
        yield note("left-overs", said, "remove what it names: tta-pipeline prune unfinished")
    else:
        yield ok("left-overs", "none")


def check_results(locations: Locations) -> Iterator[Finding]:
    """Read every result whole, and compare the database with what was inserted."""
    subject = "results"
    for log in sorted(locations.root.glob("metrics.duckdb.wal*")):
        yield note(
            subject,
            f"{log} was left by a program outside this project that wrote to the database",
            "its changes are in no result; remove it when it is not needed",
        )
    listing = list_files(locations.root)
    problems = list(find_problems(locations.root, listing))
    for problem in problems:
        yield fault(subject, problem, "until then it is set aside, and counts nowhere")
    for change in find_changes(locations, listing):
        yield note(subject, change, "the next command that reads the database brings it up to date")
    if not problems:
        yield ok(subject, f"{count_of(len(listing.results), 'result')}, each matching the hash in its name")
