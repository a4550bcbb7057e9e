"""The verb `results verify`."""

import sys

import click

from tta_pipeline.cli.common import plain_errors, say
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.plurals import count_of


@click.command(cls=Verb, examples=["tta-pipeline results verify"])
@plain_errors
def verify_results() -> None:
    """Read and hash every result and its predictions.

    The leaderboard trusts what it has read once; this command finds files that were damaged later. It prints a line
    per problem, and the exit status is then 1.
    """
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.results.database.listing import list_files
    from tta_pipeline.results.verification import find_problems
    from tta_pipeline.util.progress import log_reporter

    locations = Locations.from_environment()
    listing = list_files(locations.root)
    reading = log_reporter(say)("verifying", len(listing.results), unit="results")
    num_problems = 0
    for problem in find_problems(locations.root, listing, advance=reading.advance):
        num_problems += 1
        click.echo(problem)
    click.echo(f"{count_of(len(listing.results), 'result')}, {count_of(num_problems, 'problem')}")
    sys.exit(1 if num_problems else 0)
