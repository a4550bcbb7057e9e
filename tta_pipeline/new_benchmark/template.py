"""The text of a benchmark file: every choice made and explained."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tta_pipeline.adaptation.catalogue import METHODS
from tta_pipeline.errors import SourceError
from tta_pipeline.new_benchmark.found import Survey
from tta_pipeline.partitions import COMMON_CORRUPTIONS, CORRUPTIONS, SEVERITIES

_WIDTH = 116
_PLACEHOLDERS = ("These are placeholders; nothing was inspected. Put in your own paths.",)
_CIFAR_STATISTICS = ("[0.4914, 0.4822, 0.4465]", "[0.2470, 0.2435, 0.2616]")
_IMAGENET_STATISTICS = ("[0.485, 0.456, 0.406]", "[0.229, 0.224, 0.225]")


def _example(*paths: str, kind: str, num_classes: int, image_size: int) -> Survey:
    return Survey(
        kind=kind,  # type: ignore[arg-type] # written below
        paths=tuple(Path("/path/to") / path for path in paths),
        corruptions=COMMON_CORRUPTIONS,
        severities=SEVERITIES,
        num_classes=num_classes,
        image_size=(image_size, image_size),
        remarks=_PLACEHOLDERS,
    )


EXAMPLES: Mapping[str, Survey] = {
    "imagenet_c": _example(
        "noise.tar", "blur.tar", "weather.tar", "digital.tar", kind="archive", num_classes=1000, image_size=224
    ),
    "tiny_imagenet_c": _example("Tiny-ImageNet-C.tar", kind="archive", num_classes=200, image_size=64),
    "cifar10_c": _example("CIFAR-10-C", kind="npy", num_classes=10, image_size=32),
    "cifar100_c": _example("CIFAR-100-C", kind="npy", num_classes=100, image_size=32),
}
"""What the published benchmarks hold, for a user who has nothing on disk yet."""


def benchmark_text(name: str, found: Survey) -> str:
    """Return the benchmark file."""
    sections = (_head(name, found), _source(found), _cells(found), _images(found), _models(found), _experiments(found))
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def next_commands(name: str, found: Survey) -> tuple[str, str]:
    """Return the commands that try one cell, and then run them all."""
    first = f"{found.corruptions[0]}|{found.severities[0]}"
    last = f"{found.corruptions[-1]}|{found.severities[-1]}"
    start = f"dg launch --assets 'group:{name}'"
    return f"{start} --partition '{first}'", f"{start} --partition-range '{first}...{last}'"


def _head(name: str, found: Survey) -> Iterator[str]:
    cells = f"{len(found.corruptions)} corruptions x {len(found.severities)} severities"
    size = f", images of {found.image_size[0]}x{found.image_size[1]} pixels" if found.image_size else ""
    yield f"# Benchmark {name}: {cells}, {found.num_classes:,} classes{size}."
    for remark in found.remarks:
        yield from _comment(f"- {remark}", "# ", "#   ")
    yield "# Written by `tta-pipeline new-benchmark`. Change what you like: an error names field and choices."
    yield f"title: {name}  # as reports show it"


def _source(found: Survey) -> Iterator[str]:
    yield "# Where the images lie. The kinds are folder, archive, npy, shards and generated."
    yield "source:"
    yield from _source_of_kind(found)
    using = ", ".join(name for name, entry in METHODS.items() if entry.source_data != "unused")
    if found.kind != "generated":
        yield "  # The uncorrupted images: " + (
            "a folder of shards." if found.kind == "shards" else "a folder of class folders, or a tar."
        )
        yield from _comment(f"They give the clean error, and these methods use them: {using}.", "  # ", "  # ")
        yield "  # clean: /path/to/val"


def _source_of_kind(found: Survey) -> Iterator[str]:
    path = _quoted(found.paths[0])
    if found.kind == "archive":
        yield "  kind: archive  # tar or tar.gz as downloaded, never unpacked"
        yield "  archives:  # each cell in one of them"
        yield from (f"    - {_quoted(archive)}" for archive in found.paths)
        if found.published:
            yield f"  # The names are those of the published {found.published}. If these are its archives, say so, and"
            yield "  # the md5 of each is checked while it is read:"
            yield f"  # published: {found.published}"
    elif found.kind == "folder":
        yield "  kind: folder"
        yield f"  root: {path}"
        layout = "<corruption>/<severity>/<class>/<image>"
        yield (
            f"  group_depth: 2  # {layout}; 3 if a folder for each archive is around them"
            if found.group_depth == 2
            else f"  group_depth: 3  # <archive>/{layout}; 2 without the folders around them"
        )
    elif found.kind == "npy":
        yield "  kind: npy  # <corruption>.npy, severity 1 first, and labels.npy"
        yield f"  root: {path}"
    elif found.kind == "shards":
        yield "  kind: shards  # <corruption>/<severity>/*.tar made by others: linked to and adopted, never copied"
        yield f"  root: {path}"
    else:
        yield "  kind: generated  # corrupted here; results compare with no published table"
        yield f"  clean: {path}  # folder of class folders, or tar"
        yield f"  severity_table: {_table(found)}  # imagenet_c (224 pixels), tiny_imagenet_c (64) or cifar_c (32)"
        yield "  # encoding: lossless  # or jpeg, with jpeg_quality; by default as the table's authors did"
        yield "  seed: 0"
        yield "  jobs: 1  # processes that generate"


def _cells(found: Survey) -> Iterator[str]:
    yield "# Corruptions and severities, in the order in which they are run; each pair is a cell and a partition."
    left = [name for name in CORRUPTIONS if name not in found.corruptions]
    if left:
        yield from _comment(f"Others: {', '.join(left)}.", "# ", "# ")
    yield from textwrap.wrap(f"corruptions: [{', '.join(found.corruptions)}]", _WIDTH, subsequent_indent="  ")
    yield f"severities: {list(found.severities)}"
    yield ""
    yield "# The label of a class is its place among the sorted class folders of the whole source, pinned at the first"
    yield "# use; or in a JSON list of names, or the devkit's meta.mat: then archives need not be read for the classes."
    yield "class_map: folders"


def _images(found: Survey) -> Iterator[str]:
    yield (
        f"image_size: {_size(found)}  # height and width of every image that is evaluated, in pixels"
        if found.image_size
        else f"image_size: {_size(found)}  # no image was read: put in the height and width of yours, in pixels"
    )
    yield ""
    if found.kind == "shards":
        if _is_fitted(found):
            yield "# The first image is not square, so a second shard set is made, resized and cropped, and evaluated."
            yield "transforms:"
            yield f"  fitted: {{resize: {_size(found) * 8 // 7}, center_crop: {_size(found)}}}"
        else:
            yield "# These shards are not written again, so there is no section `shards`; `transforms` can make others."
        return
    yield "# How shards are written. The bytes of the images stay as they are, unless they are resized or cropped."
    yield "shards:"
    if _is_fitted(found):
        yield "  samples_per_shard: 10000  # or num_shards; the bytes are not known before images are resized"
        yield f"  resize: {_size(found) * 8 // 7}  # the first image is not square: shorter side, in pixels, and then"
        yield f"  center_crop: {_size(found)}"
    else:
        yield "  max_shard_bytes: 1000000000  # or num_shards, or samples_per_shard"
    yield "  order: permuted  # as i.i.d. streams need it; by_class or dirichlet for correlated ones; source: as listed"
    yield "  seed: 0  # of the order"
    yield "  # damaged: skip  # leave damaged images out and name them; else the run stops at the first"
    yield "  # foreign_classes: skip  # leave out class folders that the class map lacks; else the run stops"
    if not _is_fitted(found):
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
    shards = "\n    shards: fitted" if found.kind == "shards" and _is_fitted(found) else ""
    yield "# Each experiment is a model with a method, and an asset of its own. Methods:"
    yield from _comment(", ".join(METHODS) + ".", "# ", "# ")
    yield "experiments:"
    yield f"  source:  # the model as it is\n    model: {model}\n    method: source{shards}"
    yield f"  norm:  # batch statistics of the stream\n    model: {model}\n    method: norm{shards}"
    yield f"  tent:  # entropy minimisation\n    model: {model}\n    method: tent{shards}"
    yield f"    preset: {preset}  # settings that the authors published: imagenet or cifar"
    yield "    batch_size: 64  # it changes the results of methods that adapt"
    yield "    # hyperparameters: {lr: 0.00025}  # in place of the preset's"
    yield "    # protocol: continual  # one stream of all corruptions of a severity; without it each cell starts over"
    yield "    # seeds: [0, 1, 2]  # a stream in its own order for each"


def _size(found: Survey) -> int:
    """Return height and width of the images to evaluate."""
    return found.image_size[0] if found.image_size and found.is_square else 224


def _is_fitted(found: Survey) -> bool:
    """Return whether images must be resized and cropped before they can make a batch; generating does so by itself."""
    return not found.is_square and found.kind != "generated"


def _table(found: Survey) -> str:
    size = _size(found)
    return "cifar_c" if size <= 48 else "tiny_imagenet_c" if size <= 128 else "imagenet_c"


def _quoted(path: Path) -> str:
    """Return *path* as YAML reads it back, whatever characters it has."""
    text = str(path)
    if not text.isprintable():
        raise SourceError(f"{text!r} has characters that no benchmark file can hold; expected others: rename it")
    return json.dumps(text, ensure_ascii=False)


def _comment(text: str, first: str, following: str) -> Sequence[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=following, break_on_hyphens=False)
