"""The verb `shards make`."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.common import (
    LocalPath,
    exit_with_error,
    parse_settings,
    plain_errors,
    shard_set_facts,
    with_reporter,
)
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.processes import MAX_PROCESSES

if TYPE_CHECKING:
    from pydantic import ValidationError

    from tta_pipeline.benchmarks.shard_settings import ShardSettings
    from tta_pipeline.data.images.images_section import ConvertedSection
    from tta_pipeline.util.console import ConsoleReporter


_PATTERN_LIMIT_S = 2.0
_ABOUT_SOURCE = (
    "sources",
    "class_dir_depth",
    "class_pattern",
    "layout",
    "ground_truth",
    "ground_truth_name",
    "function",
)

_PROBES = ("n01440764/", "a", "0", "_", "n0144_", "A.")

_TRY_PATTERN = """
import re, sys
pattern = re.compile(sys.argv[1])
for probe in sys.argv[2:]:
    pattern.search(probe * (200 // len(probe)) + "!")
"""


def _load_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Use the values in the YAML file at *path* as defaults of the options."""
    if path is None:
        return
    from tta_pipeline.errors import BenchmarkFileError
    from tta_pipeline.util.yaml_document import read_document

    names = {
        flag.removeprefix("--").replace("-", "_"): str(option.name)
        for option in context.command.params
        if option is not parameter
        for flag in option.opts
        if flag.startswith("--") or isinstance(option, click.Argument)
    }
    try:
        content = read_document(path)
    except BenchmarkFileError as error:
        exit_with_error(f"BenchmarkFileError: {error}")
    if unknown := sorted(set(content) - set(names)):
        choices = name_choices(unknown, sorted(names), listed_in="`tta-pipeline shards make --help`")
        raise click.UsageError(f"{path} has the unknown field {', '.join(unknown)}; expected any of {choices}")
    context.default_map = {names[name]: value for name, value in content.items()}


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline shards make ImageNet-C shards --num-shards 16",
        "tta-pipeline shards make noise.tar blur.tar shards --max-shard-bytes 1000000000",
        (
            "tta-pipeline shards make Tiny-ImageNet-C shards --num-shards 4 --only frost "
            "--class-map wnids.json --skip-extra-classes"
        ),
        "tta-pipeline shards make imagenet/val shards/clean/0 --class-dir-depth 0 --num-shards 16",
        "tta-pipeline shards make --function my_images:images --argument root=/data shards/fog/5 --num-shards 1",
    ],
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, type=LocalPath(is_read=True))
@click.argument("output", metavar="OUT", required=False, type=LocalPath())
@click.option("--config", type=LocalPath(is_read=True), is_eager=True, expose_value=False, callback=_load_config,
              help="YAML file with these options by name, sources and output; options on the command line "
              "win.")  # fmt: skip
@click.option("--function", help="module:name of a Python function that yields the images, instead of SOURCE. OUT "
              "names the cell, such as shards/fog/5.")  # fmt: skip
@click.option("--argument", "arguments", multiple=True, metavar="NAME=VALUE", help="Argument of --function; VALUE "
              "is JSON, otherwise text.")  # fmt: skip
@click.option("--class-dir-depth", type=click.IntRange(0, 3), default=2, show_default=True, help="Levels of folders "
              "above the class folders: 0 a single set, 2 corruption/severity, 3 "
              "archive/corruption/severity.")  # fmt: skip
@click.option("--only", "prefixes", multiple=True, help="Only groups with this prefix: fog, or fog/5.")
@click.option("--num-shards", type=click.IntRange(1), help="Exact number of shards per cell.")
@click.option("--samples-per-shard", type=click.IntRange(1), help="Maximum number of samples per shard.")
@click.option("--max-shard-bytes", type=click.IntRange(10240), help="Maximum size of a shard in bytes; can be "
              "combined with --samples-per-shard.")  # fmt: skip
@click.option("--shard-name", help="Pattern of shard names with a number of fixed width, such as validation-%06d.tar.")
@click.option(
    "--suffix", type=click.Choice(["jpg"]), help="Name JPEG files .jpg, for readers that look only for jpg;png."
)
@click.option("--dataset", default="imagenet_c", show_default=True, help="Dataset, for the names of shifts, "
              "severities and published folders.")  # fmt: skip
@click.option("--class-map", type=LocalPath(is_read=True), help="JSON file, meta.mat, or a list that comes with "
              "the project, such as imagenet. Default: the class folders, sorted.")  # fmt: skip
@click.option("--order", type=click.Choice(["permuted", "by_class", "dirichlet", "source"]), default="permuted",
              show_default=True)  # fmt: skip
@click.option("--delta", type=float, default=0.1, show_default=True, help="Concentration of the Dirichlet order.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order.")
@click.option("--storage", type=click.Choice(["raw", "tensor"]), default="raw", show_default=True)
@click.option(
    "--resize", type=click.IntRange(1), help="Length of the shorter side in pixels; the images are encoded again."
)
@click.option("--interpolation", type=click.Choice(["bilinear", "bicubic"]), default="bilinear", show_default=True,
              help="Filter of --resize.")  # fmt: skip
@click.option("--center-crop", type=click.IntRange(1), help="Height and width of the crop in pixels.")
@click.option("--quality", type=click.IntRange(1, 100), default=95, show_default=True,
              help="JPEG quality of images encoded again.")  # fmt: skip
@click.option("--labels", is_flag=True, help="Add a .cls and a .json member to each sample.")
@click.option("--skip-corrupt-images", is_flag=True, help="Leave out damaged images, and list them in the manifest.")
@click.option(
    "--skip-extra-classes",
    is_flag=True,
    help="Leave out class folders that are not in the class map.",
)
@click.option("--decode-all", is_flag=True, help="Decode every image while sharding.")
@click.option(
    "--expect-md5",
    "md5s",
    multiple=True,
    metavar="NAME=MD5",
    help="MD5 of an archive, checked while it is read. published stands for the known MD5 of an archive of "
    "ILSVRC2012 or of a dataset.",
)
@click.option("--layout", type=click.Choice(["corruptions", "classes", "nested", "flat"]), default="corruptions",
              show_default=True, help="Layout of archives: nested has a tar per class, flat has no "
              "folders.")  # fmt: skip
@click.option("--ground-truth", type=LocalPath(is_read=True), help="File that maps image names to classes (text or "
              "JSON).")  # fmt: skip
@click.option("--ground-truth-name", default="ILSVRC2012_val_%08d.JPEG", show_default=True, help="Pattern of the "
              "image names if --ground-truth is text; the number is the line number.")  # fmt: skip
@click.option("--class-pattern", help="Regular expression on <folder>/<file>; its first group is the class.")
@click.option("--jobs", type=click.IntRange(1, MAX_PROCESSES), default=len(os.sched_getaffinity(0)),
              show_default="one for each core", help="Number of processes that write and read shards.")  # fmt: skip
@plain_errors
@with_reporter
def make_shards(
    *, reporter: "ConsoleReporter", md5s: tuple[str, ...], arguments: tuple[str, ...], **options: Any
) -> None:
    """Turn images into verified shards, without unpacking anything.

    SOURCE is a folder tree, one or more tar or zip archives, or a folder of .npy files like CIFAR-10-C. To read
    images with your Python code, use --function instead.
    """
    from tta_pipeline.cli.shard_everything import ShardRequest, shard_everything

    if bool(options["sources"]) == bool(options["function"]):
        raise click.UsageError(
            "SOURCE and --function are both given or both missing; expected exactly one of them, on the command line "
            "or as sources or function in the file of --config"
        )
    if options["output"] is None:
        raise click.UsageError(
            "OUT is missing; expected a folder for the shards, on the command line or as output in the file of --config"
        )
    _require_quick_pattern(options["class_pattern"])
    from tta_pipeline.data.datasets.dataset_files import find_dataset
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.shards.verification import describe_missing_classes, find_missing_classes

    own_folder = Locations.from_environment().benchmark_files
    about = {name: options.pop(name) for name in _ABOUT_SOURCE}
    dataset = options.pop("dataset")
    rest = {name: options.pop(name) for name in ("output", "prefixes", "class_map", "jobs")}
    settings = _shard_settings(options)
    order = ShardRequest(
        images=_section({**about, "class_map": rest["class_map"]}, md5s, arguments),
        dataset=find_dataset(dataset, own_folder),
        settings=settings,
        **rest,
    )
    for number, total, published in shard_everything(order, reporter):
        manifest = published.shard_set.manifest
        missing = find_missing_classes(published.shard_set)
        classes = (
            f" of {count_of(len(manifest.classes), 'class')}{describe_missing_classes(missing)}" if missing else ""
        )
        size = f"{count_of(manifest.num_samples, 'sample')}{classes} in {count_of(len(manifest.shards), 'shard')}"
        left_out = f"; left out: {manifest.source.left_out}" if manifest.source.left_out else ""
        line = f"{manifest.cell.key}: {size}, {manifest.shard_bytes / 1e6:,.1f} MB, manifest {manifest.sha256[:12]}"
        facts = {**shard_set_facts(published.shard_set), "left_out": manifest.source.left_out}
        facts["missing_classes"] = missing
        reporter.report_finished(line + left_out, facts, number=number, total=total)


def _section(options: dict[str, Any], md5s: Sequence[str], arguments: Sequence[str]) -> "ConvertedSection":
    """Return the section `images` of a benchmark file for *options*."""
    from pydantic import ValidationError

    from tta_pipeline.data.images.image_options import ImageOptions
    from tta_pipeline.data.images.kinds import section_from_options

    class_map: Path | None = options["class_map"]
    has_devkit = class_map is not None and class_map.suffix == ".mat" and options["ground_truth"] is not None
    about = {name: options[name] for name in _ABOUT_SOURCE}
    try:
        return section_from_options(
            ImageOptions(
                **about,
                devkit=class_map if has_devkit else None,
                expect_md5=_parse_md5s(md5s),
                arguments=parse_settings("--argument", arguments, example="root=/data"),
            )
        )
    except ValidationError as error:
        raise click.UsageError(_first_problem(error)) from None


def _parse_md5s(md5s: Sequence[str]) -> dict[str, str]:
    """Return the MD5 of each archive by its name."""
    sums = {}
    for md5 in md5s:
        name, _, digest = md5.rpartition("=")
        found = _published_md5(name) if digest == "published" else digest
        if not name or not re.fullmatch(r"[0-9a-fA-F]{32}", found):
            raise click.UsageError(
                f"--expect-md5 is {md5!r}; expected NAME=MD5 with 32 hexadecimal digits, or NAME=published for an "
                "archive whose MD5 is known, such as ILSVRC2012_img_val.tar or noise.tar"
            )
        sums[name] = found.lower()
    return sums


def _published_md5(name: str) -> str:
    """Return the MD5 of the published archive *name*; empty if none is known."""
    from tta_pipeline.data.datasets.dataset_files import shipped_sets
    from tta_pipeline.data.images.kinds.clean_images import MD5_BY_ARCHIVE

    of_sets = {each: facts.md5 or "" for known in shipped_sets().values() for each, facts in known.archives.items()}
    return MD5_BY_ARCHIVE.get(name) or of_sets.get(name, "")


def _require_quick_pattern(pattern: str | None) -> None:
    """Refuse a regular expression, such as (a+)+$, whose match on a name of 200 characters could take years."""
    if pattern is None:
        return
    try:
        command = [sys.executable, "-I", "-S", "-c", _TRY_PATTERN, pattern, *_PROBES]
        subprocess.run(command, timeout=_PATTERN_LIMIT_S, check=False, stderr=subprocess.DEVNULL)  # noqa: S603 - our own
    except subprocess.TimeoutExpired:
        raise click.UsageError(
            f"--class-pattern is {pattern!r}, which takes more than {_PATTERN_LIMIT_S:.0f} s to match a name of 200 "
            "characters; expected a pattern without nested repetitions"
        ) from None


def _shard_settings(options: dict[str, Any]) -> "ShardSettings":
    from pydantic import ValidationError

    from tta_pipeline.benchmarks.shard_settings import ShardSettings

    skips = {
        "on_corrupt_image": "skip" if options.pop("skip_corrupt_images") else "error",
        "extra_classes": "skip" if options.pop("skip_extra_classes") else "error",
        "format": options.pop("storage"),
    }
    try:
        return ShardSettings.model_validate({**options, **skips})
    except ValidationError as error:
        raise click.UsageError(_first_problem(error)) from None


def _first_problem(error: "ValidationError") -> str:
    """Return the message for the first faulty option."""
    problem = error.errors()[0]
    message = problem["msg"].removeprefix("Value error, ").replace("_", "-")
    where = f"--{problem['loc'][0]} is {problem['input']!r}: ".replace("_", "-") if problem["loc"] else ""
    return f"{where}{message}"
