"""The verb `results void`."""

from pathlib import Path

import click

from tta_pipeline.cli.common import plain_errors, say
from tta_pipeline.cli.verbs import Verb


@click.command(
    cls=Verb,
    examples=["tta-pipeline results void 3f2a9c1b7d5e8a04-91bc33de --because 'the GPU overheated'"],
)
@click.argument("name", metavar="RESULT")
@click.option("--because", required=True, metavar="TEXT", help="The reason.")
@plain_errors
def void_result(*, name: str, because: str) -> None:
    """Exclude a wrong result everywhere, with a reason.

    RESULT is the path of a result file, its name, or the beginning of its name, as in the column `file` of the
    table `results`. The reason is written next to it, as <name>.void; the result itself stays. To undo, delete the
    .void file. The next run evaluates what is then missing.
    """
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.results.database.listing import list_files
    from tta_pipeline.results.database.publication import publish_metrics
    from tta_pipeline.results.result_files import void_result as write_void

    locations = Locations.from_environment()
    files = list_files(locations.root).results
    found = [file for file in files if locations.root / file == Path(name).absolute()]
    found = found or [file for file in files if name and Path(file).name.startswith(name)]
    if len(found) != 1:
        is_what = f"which is the beginning of {len(found)} results" if found else "which matches no result"
        raise click.UsageError(
            f"RESULT is {name!r}, {is_what}; expected the name of one result: list the names with "
            "`tta-pipeline query 'FROM results'`"
        )
    note = write_void(locations.root / found[0], because)
    for line in publish_metrics(locations).notes:
        say(line)
    click.echo(f"{found[0]} counts nowhere now; the reason is in {note}")
