"""The verb `results add`."""

from pathlib import Path

import click

from tta_pipeline.cli.common import plain_errors, say
from tta_pipeline.cli.verbs import Verb


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline results add published --as alice",
        "tta-pipeline results add https://example.org/published.tar.gz --as alice",
    ],
)
@click.argument("origin", metavar="FOLDER|URL")
@click.option("--as", "name", required=True, metavar="NAME", help="Name of these results in your leaderboard.")
@plain_errors
def add_results(*, origin: str, name: str) -> None:
    """Add other people's published results to your leaderboard.

    FOLDER is what `results publish` wrote, or a tar or zip archive of it, local or at a URL. Every file is read and
    hashed first. The leaderboard then shows the experiments as NAME:experiment, and `compare` pairs them with yours
    on cells with equal manifests. To remove them, delete added/NAME in the data root.
    """
    from tta_pipeline.data.remote_files import scheme_of
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.extras.reproduction.addition import add_published, downloaded
    from tta_pipeline.results.database.publication import publish_metrics

    locations = Locations.from_environment()
    if scheme_of(origin):
        with downloaded(origin) as path:
            names = add_published(path, name, locations)
    else:
        names = add_published(Path(origin), name, locations)
    for note in publish_metrics(locations).notes:
        say(note)
    click.echo(f"added {', '.join(f'{name}:{each}' for each in names)}")
