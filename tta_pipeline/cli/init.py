"""The verb `init`."""

import os
from pathlib import Path

import click

from tta_pipeline.cli.common import LocalPath, plain_errors
from tta_pipeline.cli.verbs import Verb


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline init my-project",
        "cd my-project && tta-pipeline run first",
    ],
)
@click.argument("folder", metavar="DIR", type=LocalPath())
@plain_errors
def init(*, folder: Path) -> None:
    """Create your own project in a new folder.

    The project is named after the folder and has a first benchmark of digits that runs in a few minutes, files for
    Dagster and its web UI, a Makefile, a README and .gitignore. You need an installation, not a clone. If
    TTA_DATA_ROOT is set, the benchmark is written there.
    """
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.extras.new_project import create_project

    Locations.from_environment()  # raises if the data root cannot exist
    for path in create_project(folder, data_root=os.environ.get("TTA_DATA_ROOT") or "data"):
        click.echo(path)
    click.echo(f"Next:\n  cd {folder}\n  tta-pipeline run first")
