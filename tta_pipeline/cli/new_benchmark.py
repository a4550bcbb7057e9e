"""The verb `new-benchmark`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import LocalPath, plain_errors, say
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations

if TYPE_CHECKING:
    from collections.abc import Callable

    from tta_pipeline.benchmarks.model_specs import NetworkSection
    from tta_pipeline.data.images.images_section import Survey


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline new-benchmark imagenet_c noise.tar blur.tar weather.tar digital.tar",
        "tta-pipeline new-benchmark tiny Tiny-ImageNet-C",
        "tta-pipeline new-benchmark cifar CIFAR-10-C --output -",
        "tta-pipeline new-benchmark mine my-images --model my_model:MyNet --weights w.pth",
        "tta-pipeline new-benchmark later --like cifar100_c",
        "tta-pipeline new-benchmark digits_methods --like digits_methods",
        "tta-pipeline new-benchmark eata --like eata_imagenet_c",
        "tta-pipeline new-benchmark ttabc /data/clip --like ttabc",
    ],
)
@click.argument("name")
@click.argument("sources", metavar="[DIR | ARCHIVE...]", nargs=-1, type=LocalPath(is_read=True))
@click.option(
    "--like",
    type=click.Choice([
        "imagenet_c", "tiny_imagenet_c", "cifar10_c", "cifar100_c", "digits_methods", "eata_imagenet_c",
        "robustbench_imagenet_c", "ttabc",
    ]),
    metavar="EXAMPLE",
    help="Without a source: the example to imitate, with placeholders: imagenet_c (default), tiny_imagenet_c, "
              "cifar10_c or cifar100_c; eata_imagenet_c or robustbench_imagenet_c, which repeat a published table; or "
              "digits_methods, which is complete: the embedded digits with every method. ttabc needs a folder: methods "
              "for CLIP on all datasets in it.",
)  # fmt: skip
@click.option("--model", help="torchvision:<architecture>, timm:<architecture>, hf:<org>/<name>@<commit>, or "
              "<module>:<name> for your network. Default: a placeholder.")  # fmt: skip
@click.option("--weights", help="With --model: a file, whose sha256 is added; none for random weights; or a name "
              "of torchvision's weights.")  # fmt: skip
@click.option(
    "--output",
    type=LocalPath(path_type=str),
    metavar="FILE",
    help="File to write; - prints to the terminal. Default: benchmarks/NAME.yaml in the data root.",
)
@plain_errors
def new_benchmark(
    *,
    name: str,
    sources: tuple[Path, ...],
    like: str | None,
    model: str | None,
    weights: str | None,
    output: str | None,
) -> None:
    """Write a benchmark file for your own images.

    The images are in a folder or in archives, which are inspected but not unpacked. The file has comments and lists
    the corruptions and severities found, the number of classes, the image size, and models that fit. Existing files
    are not overwritten.
    """
    from tta_pipeline.extras.new_project.draft_benchmark import OF_SETS, draft_benchmark, write_new_file

    if weights and not model:
        raise click.UsageError(
            "--weights is given without --model; expected the model that has these weights: add --model"
        )
    if like == OF_SETS and (len(sources) != 1 or not sources[0].is_dir() or model):
        raise click.UsageError(
            f"--like {OF_SETS} is given with --model or without exactly one folder; expected one folder, and no --model"
        )
    if sources and like not in (None, OF_SETS):
        raise click.UsageError(
            f"--like {like} is given with a folder or archives; expected one or the other, since only {OF_SETS} takes "
            "both"
        )
    folder = Path(output).parent if output not in (None, "-") else Locations.from_environment().benchmark_files
    draft = draft_benchmark(
        name, sources, like=like or "imagenet_c", own_folder=folder, draft_model=_model_of(model, weights)
    )
    if output == "-":
        click.echo(draft.text, nl=False)
    else:
        path = Path(output) if output else Locations.from_environment().benchmark_files / f"{name}.yaml"
        write_new_file(path, draft.text)
        click.echo(f"{path}\nNext:")
    for command in draft.commands:
        click.echo(f"  {command}", err=output == "-")
    for remark in draft.remarks:
        say(f"note: {remark}")


def _model_of(model: str | None, weights: str | None) -> "Callable[[Survey], tuple[str, NetworkSection]] | None":
    """Return the function that describes *model* for the images found; None without a model."""
    if model is None:
        return None
    from tta_pipeline.extras.new_project.draft_model import draft_model  # imports torch

    return partial(draft_model, model=model, weights=weights)
