"""The text of a benchmark file, in which every choice is made and explained."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tta_pipeline.data.shifts.shift_set_files import shipped_sets
from tta_pipeline.data.sources.choose_shift_set import OWN_SET_NAME
from tta_pipeline.data.sources.kinds import ArchiveSource, NpySource, SourceSection
from tta_pipeline.data.sources.source_section import Survey
from tta_pipeline.methods.catalogue import METHODS, PRESETS

_WIDTH = 116
_PLACEHOLDERS = ("These are placeholders; nothing was inspected. Put in your own paths.",)
_CIFAR_STATISTICS = ("[0.4914, 0.4822, 0.4465]", "[0.2470, 0.2435, 0.2616]")
_IMAGENET_STATISTICS = ("[0.485, 0.456, 0.406]", "[0.229, 0.224, 0.225]")


def _archives(shift_set: str, *names: str, num_classes: int, image_size: int) -> Survey:
    archives = tuple(Path("/path/to") / name for name in names)
    return _example(ArchiveSource(kind="archive", archives=archives), shift_set, num_classes, image_size)


def _arrays(shift_set: str, name: str, *, num_classes: int) -> Survey:
    return _example(NpySource(kind="npy", root=Path("/path/to") / name), shift_set, num_classes, 32)


def _example(source: SourceSection, name: str, num_classes: int, image_size: int) -> Survey:
    shift_set = shipped_sets()[name]
    return Survey(
        source=source,
        shift_set=shift_set,
        corruptions=shift_set.in_mean,
        severities=shift_set.severities,
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
}
"""Contents of the published benchmarks, for a user who has no images on disk yet."""


def benchmark_text(name: str, found: Survey) -> str:
    """Return the benchmark file."""
    sections = (_head(name, found), _source(found), _cells(found), _images(found), _models(found), _experiments(found))
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def next_commands(name: str, found: Survey) -> tuple[str, str]:
    """Return two commands: one that tries one cell, and one that runs all."""
    first = f"{found.corruptions[0]}|{found.severities[0]}"
    last = f"{found.corruptions[-1]}|{found.severities[-1]}"
    start = f"dg launch --assets 'group:{name}'"
    return f"{start} --partition '{first}'", f"{start} --partition-range '{first}...{last}'"


def _head(name: str, found: Survey) -> Iterator[str]:
    cells = f"{len(found.corruptions)} corruptions x {len(found.severities)} severities"
    size = f", images of {found.image_size[0]}x{found.image_size[1]} pixels" if found.image_size else ""
    yield f"# Benchmark {name}: {cells}, {found.num_classes:,} classes{size}."
    for remark in found.remarks:
        yield from _wrap_comment(f"- {remark}", "# ", "#   ")
    yield "# Written by `tta-pipeline new-benchmark`. Change what you like: an error names field and choices."
    yield f"title: {name}  # as reports show it"


def _source(found: Survey) -> Iterator[str]:
    yield "# Where the images lie. The kinds are folder, archive, npy, shards and generated, among others."
    yield "source:"
    yield from found.source.yaml_lines(found)
    using = ", ".join(name for name, entry in METHODS.items() if entry.source_data != "unused")
    if found.source.clean_layout:
        yield f"  # The uncorrupted images: {found.source.clean_layout}."
        yield from _wrap_comment(f"They give the clean error, and these methods use them: {using}.", "  # ", "  # ")
        yield "  # clean: /path/to/val"
    yield f"  # The images to train source models on: {found.source.train_layout}."
    yield "  # train: /path/to/train"


def _cells(found: Survey) -> Iterator[str]:
    yield from _shift_set(found)
    yield "# Corruptions and severities, in the order in which they are run; each pair is a cell and a partition."
    left = [name for name in found.shift_set.names if name not in found.corruptions]
    if left:
        yield from _wrap_comment(f"Others: {', '.join(left)}.", "# ", "# ")
    yield from textwrap.wrap(f"corruptions: [{', '.join(found.corruptions)}]", _WIDTH, subsequent_indent="  ")
    if any(found.severities):
        yield f"severities: {list(found.severities)}"
    yield ""
    yield "# The label of a class is its place among the sorted class folders of the whole source, pinned at the first"
    yield "# use; or in a list that comes with the project, such as imagenet, in a JSON list of names, or the devkit's"
    yield "# meta.mat: then archives need not be read for the classes."
    yield f"class_map: {found.shift_set.classes or 'folders'}"


def _shift_set(found: Survey) -> Iterator[str]:
    """Yield the field that names the shift set, unless it is the default."""
    if found.shift_set.name == OWN_SET_NAME:
        yield "# A shift set of one's own: the names in order, and the severities if there are any."
        yield "own:"
        names = f"  names: [{', '.join(found.shift_set.names)}]"
        yield from textwrap.wrap(names, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        if found.shift_set.severities:
            yield f"  severities: {list(found.shift_set.severities)}"
        yield ""
    elif found.shift_set.name != "imagenet_c":
        yield f"shift_set: {found.shift_set.name}  # names, severities and classes, as the data set has them"
        yield ""


def _images(found: Survey) -> Iterator[str]:
    yield (
        f"image_size: {_size(found)}  # height and width of every image that is evaluated, in pixels"
        if found.image_size
        else f"image_size: {_size(found)}  # no image was read: put in the height and width of yours, in pixels"
    )
    yield ""
    if found.source.has_shards:
        if _needs_resizing(found):
            yield "# The first image is not square, so a second shard set is made, resized and cropped, and evaluated."
            yield "transforms:"
            yield f"  fitted: {{resize: {_size(found) * 8 // 7}, center_crop: {_size(found)}}}"
        else:
            yield "# These shards are not written again, so there is no section `shards`; `transforms` can make others."
        return
    yield "# How shards are written. The bytes of the images stay as they are, unless they are resized or cropped."
    yield "shards:"
    if _needs_resizing(found):
        yield "  samples_per_shard: 10000  # or num_shards; the bytes are not known before images are resized"
        yield f"  resize: {_size(found) * 8 // 7}  # the first image is not square: shorter side, in pixels, and then"
        yield f"  center_crop: {_size(found)}"
    else:
        yield "  max_shard_bytes: 1000000000  # or num_shards, or samples_per_shard"
    yield "  order: permuted  # as i.i.d. streams need it; by_class or dirichlet for correlated ones; source: as listed"
    yield "  seed: 0  # of the order"
    yield "  # damaged: skip  # leave damaged images out and name them; else the run stops at the first"
    yield "  # foreign_classes: skip  # leave out class folders that the class map lacks; else the run stops"
    if not _needs_resizing(found):
        yield "  # resize: 256  # the shorter side, in pixels (then give num_shards or samples_per_shard above)"
        yield "  # center_crop: 224"


def _models(found: Survey) -> Iterator[str]:
    yield f"# Models by name. The classes must be those of the class map, of which {found.num_classes:,} were found."
    yield "models:"
    if found.num_classes == 1000:
        yield "  resnet50:"
        yield "    kind: torchvision  # downloaded at the first use; or timm, with the extra of that name"
        yield "    architecture: resnet50"
        yield "    weights: IMAGENET1K_V1  # those of most papers; IMAGENET1K_V2 is better and compares with few"
        return
    mean, std = _CIFAR_STATISTICS if _size(found) <= 32 else _IMAGENET_STATISTICS
    yield "  my_model:"
    yield "    kind: checkpoint  # weights of your own; nothing in the file is run as code"
    yield "    library: torchvision  # or timm, with the extra of that name"
    yield "    architecture: resnet18  # FILL IN: its name in that library"
    yield "    path: /path/to/weights.safetensors  # FILL IN: safetensors or a saved state dict"
    yield f"    sha256: '{64 * '0'}'  # FILL IN: what `sha256sum` says of it"
    yield f"    mean: {mean}  # FILL IN: what the model was trained with;"
    yield f"    std: {std}  # wrong ones give wrong results without an error"
    if found.num_classes < 1000:
        yield "  # For a part of ImageNet's classes, an ImageNet model with the other outputs left out:"
        yield "  # resnet50: {kind: torchvision, architecture: resnet50, weights: IMAGENET1K_V1, classes: wnids.json}"


def _experiments(found: Survey) -> Iterator[str]:
    model = "resnet50" if found.num_classes == 1000 else "my_model"
    preset = "cifar" if _size(found) <= 32 else "imagenet"
    shards = "\n    shards: fitted" if found.source.has_shards and _needs_resizing(found) else ""
    yield "# Each experiment is a model with a method, and an asset of its own. Methods:"
    yield from _wrap_comment(", ".join(METHODS) + ".", "# ", "# ")
    yield "experiments:"
    yield f"  source:  # the model as it is\n    model: {model}\n    method: source{shards}"
    yield f"  norm:  # batch statistics of the stream\n    model: {model}\n    method: norm{shards}"
    yield f"  tent:  # entropy minimisation\n    model: {model}\n    method: tent{shards}"
    yield f"    preset: {preset}  # settings that the authors published: {', '.join(PRESETS)}"
    yield "    batch_size: 64  # it changes the results of methods that adapt"
    yield "    # hyperparameters: {lr: 0.00025}  # in place of the preset's"
    yield "    # protocol: continual  # one stream of all corruptions of a severity; without it each cell starts over"
    yield "    # seeds: [0, 1, 2]  # a stream in its own order for each"


def _size(found: Survey) -> int:
    """Return the height and width of the images to evaluate, in pixels."""
    return found.image_size[0] if found.image_size and found.is_square else 224


def _needs_resizing(found: Survey) -> bool:
    """Return whether images must be resized and cropped to form a batch; generated images already fit."""
    return not found.is_square and not found.source.is_generated


def _wrap_comment(text: str, first: str, following: str) -> Sequence[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=following, break_on_hyphens=False)
