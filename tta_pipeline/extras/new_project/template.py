"""The text of a benchmark file, in which every choice is made and explained."""

import json
import textwrap
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from tta_pipeline.benchmarks.model_specs import NetworkSection
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.data.images.images_section import Survey
from tta_pipeline.data.images.kinds import ArchiveSection, DigitsSection, ImagesSection, NpySection
from tta_pipeline.errors import ImagesError
from tta_pipeline.methods.catalogue import GROUP, METHODS
from tta_pipeline.methods.entry import PRESETS
from tta_pipeline.util.added import added
from tta_pipeline.util.plurals import count_of

_WIDTH = 116
ALL_METHODS = "digits_methods"
"""Name of the example that is complete: the digits of the embedded benchmark, under every method."""
_CIFAR_SIZE = 32
Channels = tuple[float, float, float]
_PLACEHOLDERS = ("These are placeholders; nothing was inspected. Put in your own paths.",)


class Draft(NamedTuple):
    """A benchmark file that is not written yet."""

    text: str
    commands: tuple[str, str]
    """The commands to run next: a part and all of it, or all of it and its comparison with the published table."""
    remarks: tuple[str, ...]
    """Remarks for the user on the images found; the text includes them."""


def _archives(dataset: str, *names: str, num_classes: int, image_size: int) -> Survey:
    archives = tuple(Path("/path/to") / name for name in names)
    return _example(ArchiveSection(kind="archive", archives=archives), dataset, num_classes, image_size)


def _arrays(dataset: str, name: str, *, num_classes: int) -> Survey:
    return _example(NpySection(kind="npy", root=Path("/path/to") / name), dataset, num_classes, 32)


def _example(source: ImagesSection, name: str, num_classes: int, image_size: int) -> Survey:
    dataset = shipped_sets()[name]
    return Survey(
        source=source,
        dataset=dataset,
        corruptions=dataset.in_mean,
        severities=dataset.severities,
        num_classes=num_classes,
        image_size=(image_size, image_size),
        remarks=_PLACEHOLDERS,
    )


EXAMPLES: Mapping[str, Survey] = {
    "imagenet_c": _archives(
        "imagenet_c", "noise.tar", "blur.tar", "weather.tar", "digital.tar", num_classes=1000, image_size=224
    ),
    "tiny_imagenet_c": _archives("tiny_imagenet_c", "Tiny-ImageNet-C.tar", num_classes=200, image_size=64),
    "cifar10_c": _arrays("cifar_10_c", "CIFAR-10-C", num_classes=10),
    "cifar100_c": _arrays("cifar_100_c", "CIFAR-100-C", num_classes=100),
    ALL_METHODS: _example(DigitsSection(kind="digits"), "imagenet_c", num_classes=10, image_size=32),
}
"""Contents of the published benchmarks, and of the digits, for a user who has no images on disk yet."""

PAPERS = ("eata_imagenet_c", "robustbench_imagenet_c")
"""Published tables with a file that repeats them; `report.published_figures` has their errors."""


def whole_text(name: str) -> str:
    """Return the benchmark file *name* that the project ships: `ALL_METHODS`, or one of `PAPERS`."""
    return (files(__package__) / "files" / f"{name}.yaml").read_text("utf-8")


def benchmark_text(name: str, found: Survey, model: tuple[str, NetworkSection] | None = None) -> str:
    """Return the benchmark file: the template `files/benchmark.yaml.j2` with what was *found*, and the *model*."""
    using_source = [method for method, entry in METHODS.items() if entry.source_data != "unused"]
    methods = [*METHODS, *(method for method in added(GROUP) if method not in METHODS)]
    fits_imagenet = found.num_labels == 1000 or found.has_several_outputs
    model_name, section = model or ("resnet50" if fits_imagenet else "my_model", None)
    mean, std = usual_normalisation(found.fitting_size)
    return load_template("benchmark.yaml.j2").render(
        name=name, found=found, using_source=using_source, methods=methods, presets=PRESETS, model=model_name,
        fits_imagenet=fits_imagenet, section=section and section.model_dump(mode="json", exclude_defaults=True),
        mean=list(mean), std=list(std),
    )  # fmt: skip


def usual_normalisation(image_size: int) -> tuple[Channels, Channels]:
    """Return the mean and standard deviation that most models use for *image_size*: CIFAR-10's or ImageNet's."""
    if image_size <= _CIFAR_SIZE:
        return (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def next_commands(name: str, found: Survey) -> tuple[str, str]:
    """Return two commands: one that tries one cell, and one that runs all."""
    first = f"{found.corruptions[0]}|{found.severities[0]}"
    return f"tta-pipeline run {name} --cell '{first}'", f"tta-pipeline run {name}"


@cache
def load_template(name: str) -> Template:
    """Return the template *name* of a benchmark file."""
    environment = Environment(  # noqa: S701 - YAML, not HTML
        loader=PackageLoader(__package__, "files"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": _quote, "value": _value, "wrap": _wrap, "count_of": count_of}
    return environment.get_template(name)


def _quote(path: Path | str) -> str:
    """Return *path* in quotes, so that YAML reads it back unchanged."""
    text = str(path)
    if not text.isprintable():
        raise ImagesError(f"{text!r} cannot be written in a benchmark file; expected printable characters: rename it")
    return json.dumps(text, ensure_ascii=False)


def _value(content: object) -> str:
    """Return *content*, a value of a model's section, as YAML on one line."""
    return json.dumps(content, ensure_ascii=False)


def _wrap(text: str, first: str, following: str) -> str:
    lines = textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=following, break_on_hyphens=False)
    return "\n".join(lines)
