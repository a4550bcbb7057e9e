"""The verb `download`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import LocalPath, plain_errors, with_reporter
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.json_values import JsonObject

if TYPE_CHECKING:
    from tta_pipeline.util.console import ConsoleReporter


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline download imagenet_c archives",
        "tta-pipeline download imagenet_c archives --archive blur.tar",
        "tta-pipeline download imagenet_c archives --shift fog --shift snow",
    ],
)
@click.argument("dataset", metavar="SET")
@click.argument("folder", metavar="OUT", type=LocalPath(file_okay=False))
@click.option("--archive", "archives", multiple=True, metavar="NAME", help="Only this archive; can be repeated.")
@click.option(
    "--shift", "shifts", multiple=True, metavar="NAME", help="Only archives with this shift; can be repeated."
)
@plain_errors
@with_reporter
def download(
    dataset: str, folder: Path, *, reporter: "ConsoleReporter", archives: tuple[str, ...], shifts: tuple[str, ...]
) -> None:
    """Download the archives of a dataset, such as ImageNet-C.

    The archives are saved in OUT as published, and their md5 is checked. Run the same command again after an
    interruption: it resumes. Incomplete files end in .unfinished; complete ones are not downloaded again. SET is a
    dataset that comes with the project, or a file <SET>.dataset.yaml next to your benchmark files.
    """
    from tta_pipeline.data.datasets import downloading
    from tta_pipeline.data.datasets.dataset_files import find_dataset
    from tta_pipeline.domain.locations import Locations

    found = find_dataset(dataset, Locations.from_environment().benchmark_files)
    chosen = downloading.select_archives(found, archives=archives, shifts=shifts)
    for step in downloading.download(chosen, folder, reporter, homepage=found.homepage):
        done = step.done
        was_downloaded = done.num_received_bytes > 0
        did = "downloaded" if was_downloaded else "there already"
        checked = "md5 compared" if done.is_checked else "its publisher gives no md5"
        facts: JsonObject = {
            "archive": done.path.name,
            "path": str(done.path),
            "size_bytes": done.size_bytes,
            "md5": done.md5,
            "is_checked": done.is_checked,
            "was_downloaded": was_downloaded,
            "num_received_bytes": done.num_received_bytes,
        }
        line = f"{done.path}: {done.size_bytes / 1e6:,.1f} MB {did}, {checked}"
        reporter.report_finished(line, facts, number=step.number, total=step.total, what="archives")
