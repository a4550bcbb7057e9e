"""The pages of docs/reference/benchmark/, one per section of a benchmark file; `make_reference.py` writes them."""

import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import FIRST_FILE
from tta_pipeline.benchmarks.protocol import Protocol
from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.util.config_model import IfMissing
from tta_pipeline.util.field_texts import describe_field

INTRODUCTIONS = {
    "images": "Where the images come from. `kind` decides which other fields there are. "
    "[How to use your images](../../guides/own-images.md).",
    "dataset": "Most files only name the set, such as `dataset: imagenet_c`: [all sets](../../guides/datasets.md). "
    "To define another one, write these fields under `custom:` in the benchmark file, or in a file "
    "`<name>.dataset.yaml` next to it.",
    "shards": "Size, order and format of the tar files for images. The defaults keep each image's bytes. "
    "`train_shards` has the same fields. [How to store shards](../../guides/storage.md).",
    "models": "The networks, by name. `kind` decides which other fields there are. "
    "[How to use your model](../../guides/own-model.md).",
    "protocol": "How cells become streams. The name is usually enough: `protocol: continual`. "
    "[What each protocol does](../protocols.md).",
    "experiments": "What is evaluated, by name. Each experiment is one row of the leaderboard. "
    "What you can set under `hyperparameters` depends on the method: [hyperparameters](hyperparameters.md).",
    "matrix": "Many experiments in a few lines. You can skip this if you have only a handful.",
    "tuning": "Hyperparameters chosen on held-out shifts. [How to tune](../../guides/tuning.md).",
}
"""What each page begins with, in the order of the pages."""
NOT_IN_FILES = {(Benchmark, "name"), (Dataset, "name")}
"""Fields whose values are names of files."""
TYPES = {(Benchmark, "dataset"): "text; [its fields](dataset.md)"}
"""Types of fields that have another form in a file."""
_SHORT_FORMS = """A file may have these fields, too:

- `custom: {names: [dusk], severities: [1, 2]}` instead of `dataset`: [your own set](dataset.md).
- `classes` instead of `class_map`; both mean the same.
- `sets: {imagenet_r: {images: ...}, imagenet_sketch: {images: ...}}` for several datasets with the same models and
  experiments. Each has its own `images`, and may have its own shifts, severities, class map, image size and shards."""


def index() -> str:
    """Return the page of the whole file, with a link to the page of each section."""
    lines = FIRST_FILE.read_text("utf-8").splitlines()
    example = "\n".join(line for line in lines if not line.startswith("#"))
    text = """# Benchmark file

One YAML file per benchmark, in `benchmarks/` of the data root. The file's name is the benchmark's name. `tta-pipeline
new-benchmark` writes one for you to edit; unknown fields are an error. This one runs as it is:"""
    parts = [
        text,
        f"```yaml\n{example.strip()}\n```",
        "You need `title`, `images`, `image_size`, `shards`, `models` and `experiments`. Skip the rest at first.",
        fields_table(Benchmark, link=_link_from("index")),
        _SHORT_FORMS,
        "A longer example with comments: [digits_c.yaml](../../../tta_pipeline/benchmarks/digits_c.yaml).",
    ]
    return "\n\n".join(parts) + "\n"


def section(name: str) -> str:
    """Return the page of the section *name*."""
    kinds = kinds_by_page()[name]
    link = _link_from(name)
    parts = [f"# {name}", INTRODUCTIONS[name]]
    for kind in kinds:
        heading = [] if len(_roots(name)) == 1 and kind is kinds[0] else [f"## {_heading(kind)}"]
        parts += [*heading, inspect.cleandoc(kind.__doc__ or ""), fields_table(kind, link=link)]
    return "\n\n".join(parts) + "\n"


def pages() -> Mapping[str, Callable[[], str]]:
    """Return what makes each page, by its path below docs/reference."""
    return {
        "benchmark/index.md": index,
        **{f"benchmark/{name}.md": partial(section, name) for name in INTRODUCTIONS},
    }


def fields_table(
    kind: type[BaseModel],
    names: Sequence[str] | None = None,
    *,
    required: str = "required",
    link: Callable[[type[BaseModel]], str] | None = None,
) -> str:
    """Return the table of *kind* with the fields *names*, by default all; required fields come first."""
    rows = [
        (
            f"`{name}`",
            TYPES.get((kind, name)) or type_in_words(info.annotation, link),
            default_in_words(info, required),
            describe_field(kind, name),
        )
        for name, info in kind.model_fields.items()
        if (kind, name) not in NOT_IN_FILES and (names is None or name in names)
    ]
    rows.sort(key=lambda row: (row[2] != required, row[0] != "`kind`"))
    return table(("field", "type", "default", ""), rows)


def table(head: Sequence[str], rows: typing.Iterable[Sequence[str | None]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *([_line(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def default_in_words(info: FieldInfo, required: str = "required") -> str:
    """Return what a field is if the file lacks it; *required* if the file must have it."""
    for each in info.metadata:
        if isinstance(each, IfMissing):
            return each.words
    if info.is_required():
        return required
    value = info.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return ""
    return f"`{json_text(value.model_dump(mode='json') if isinstance(value, BaseModel) else value)}`"


def type_in_words(annotation: object, link: Callable[[type[BaseModel]], str] | None = None) -> str:
    """Return a type in words that a user who writes YAML knows."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    words = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}
    if origin is typing.Annotated:
        found = type_in_words(arguments[0], link)
    elif origin is typing.Literal:
        found = ("one of " if len(arguments) > 1 else "") + ", ".join(f"`{value}`" for value in arguments)
    elif origin is tuple:
        found = f"list of {type_in_words(arguments[0], link)}"
    elif inspect.isclass(origin) and issubclass(origin, Mapping):
        found = f"name: {type_in_words(arguments[1], link)}"
    elif arguments:
        found = " or ".join(type_in_words(argument, link) for argument in arguments if argument is not type(None))
    elif inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        found = link(annotation) if link else f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    else:
        found = words.get(annotation, "anything")  # type: ignore[call-overload]
    return found


def json_text(value: object) -> str:
    """Return *value* as JSON."""
    return json.dumps(value, default=str)


def _line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _roots(page: str) -> list[type[BaseModel]]:
    if page == "protocol":
        return [Protocol]
    return list(dict.fromkeys(_inner(Benchmark.model_fields[page].annotation)))


def kinds_by_page() -> Mapping[str, list[type[BaseModel]]]:
    """Return the kinds of section on each page: those that its fields name, and what only these need."""
    placed = {kind: page for page in INTRODUCTIONS for kind in _roots(page)}
    found = {page: _roots(page) for page in INTRODUCTIONS}
    for page, kinds in found.items():
        to_come = [*kinds]
        while to_come:
            for info in to_come.pop(0).model_fields.values():
                for each in _inner(info.annotation):
                    if each not in placed:
                        placed[each] = page
                        kinds.append(each)
                        to_come.append(each)
    return found


def _inner(annotation: object) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _inner(argument)


def _heading(kind: type[BaseModel]) -> str:
    """Return the heading of a section: its `kind`, or its name in words."""
    if "kind" in kind.model_fields:
        (word,) = typing.get_args(kind.model_fields["kind"].annotation)
        return f"kind: {word}"
    if (kind.__doc__ or "").startswith(f"`{kind.__name__}`"):
        return kind.__name__  # a name that readers know from elsewhere
    return " ".join(re.findall("[A-Z][a-z]*", kind.__name__)).capitalize()


def _link_from(page: str) -> Callable[[type[BaseModel]], str]:
    """Return what links a kind of section, on the page *page*."""
    homes = {kind: home for home, kinds in kinds_by_page().items() for kind in kinds}

    def link(kind: type[BaseModel]) -> str:
        home, heading = homes[kind], _heading(kind)
        file = "" if home == page else f"{home}.md"
        anchor = "" if _roots(home) == [kind] else "#" + heading.replace(":", "").replace(" ", "-").lower()
        word = heading if heading == kind.__name__ else heading.lower()
        text = f"`{heading.removeprefix('kind: ')}`" if heading.startswith("kind: ") else word
        return f"[{text}]({file}{anchor})"

    return link
