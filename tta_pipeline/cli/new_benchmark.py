"""The verb `new-benchmark`."""

from pathlib import Path

import click

from tta_pipeline.cli.common import plain_errors
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.locations import Locations


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline new-benchmark imagenet_c noise.tar blur.tar weather.tar digital.tar",
        "tta-pipeline new-benchmark tiny Tiny-ImageNet-C",
        "tta-pipeline new-benchmark cifar CIFAR-10-C --output -",
        "tta-pipeline new-benchmark later --like cifar100_c",
        "tta-pipeline new-benchmark digits_methods --like digits_methods",
    ],
)
@click.argument("name")
@click.argument("sources", metavar="[DIR | ARCHIVE...]", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--like", type=click.Choice(["imagenet_c", "tiny_imagenet_c", "cifar10_c", "cifar100_c", "digits_methods"]),
    help="Without a source: the benchmark to imitate, with placeholders; else imagenet_c. digits_methods is complete: "
    "the embedded digits under every method.",
)  # fmt: skip
@click.option(
    "--output", metavar="FILE", help="File to write; - prints. Default: benchmarks/NAME.yaml in the data root."
)
@plain_errors
def new_benchmark(*, name: str, sources: tuple[Path, ...], like: str | None, output: str | None) -> None:
    r"""Write a benchmark file that describes your own images.

    They are in a folder or in archives. Archives are inspected, not unpacked; nothing is overwritten. The file has
    comments, and states the corruptions and severities that were found, the number of classes, the size of the images,
    and which models fit.
    """
    from tta_pipeline.extras.new_project.draft_benchmark import draft_benchmark as made
    from tta_pipeline.extras.new_project.draft_benchmark import write_new_file

    if sources and like:
        raise click.UsageError("expected either a folder or archives, or --like")
    folder = Path(output).parent if output not in (None, "-") else Locations.from_environment().benchmark_files
    text, commands = made(name, sources, like=like or "imagenet_c", own_folder=folder)
    if output == "-":
        click.echo(text, nl=False)
    else:
        path = Path(output) if output else Locations.from_environment().benchmark_files / f"{name}.yaml"
        write_new_file(path, text)
        click.echo(f"{path}\nNext, one cell and then all of them:")
    for command in commands:
        click.echo(f"  {command}", err=output == "-")
