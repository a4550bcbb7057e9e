"""Reader of published splits: which files of a dataset are its test images, and their classes in label order.

CoOp's files `split_zhou_*.json` (Zhou et al. 2022, https://github.com/KaiyangZhou/CoOp) hold
`{"train": [["path", label, "class name"], ...], "val": [...], "test": [...]}`. FGVC-Aircraft has lines of an image's
name and its class, and a second file with the classes in label order.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tta_pipeline.data.labels.label_files import read_json, read_list, require_label_order
from tta_pipeline.errors import ClassMapError
from tta_pipeline.util.short_lists import short_repr

_PART = "test"
_SUFFIX = ".jpg"
"""Suffix of images that a text file names without one."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """The test images of a dataset."""

    path: Path
    """The file with the split."""
    classes: tuple[str, ...]
    """Class names in label order; they may have spaces and slashes, as in `F/A-18`."""
    class_by_path: Mapping[str, str]
    """Class of each test image by its path, which begins at a folder that the split does not name."""


def read_split(path: Path, class_list: Path | None = None) -> Split:
    """Return the split in *path*.

    Args:
        path: CoOp's JSON, or a text file with an image's name and its class in each line.
        class_list: File with a class in each line, in label order, for a text file; None: JSON has the classes itself.
    """
    if path.suffix.lower() == ".json":
        return _read_json_split(path)
    if class_list is None:
        raise ClassMapError(
            f"{path} is not JSON; expected one of CoOp's files split_zhou_*.json, or a dataset whose field "
            "`split_classes` names the file with the classes: correct `split`"
        )
    return _read_text_split(path, class_list)


class _Entry(NamedTuple):
    image: str
    label: int
    class_name: str


def _read_json_split(path: Path) -> Split:
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get(_PART), list) or not content[_PART]:
        raise ClassMapError(
            f"{path} contains {short_repr(content)}; expected an object whose {_PART!r} lists [path, label, class "
            "name]: restore the published file"
        )
    parts = {part: [_entry(each, path, part) for each in content[part]] for part in content}
    names: dict[int, str] = {}
    for entry in (entry for entries in parts.values() for entry in entries):
        if (name := names.setdefault(entry.label, entry.class_name)) != entry.class_name:
            raise ClassMapError(
                f"{path} gives the label {entry.label} to both {name!r} and {entry.class_name!r}; expected one class "
                "per label: use the published file"
            )
    classes = require_label_order(names.items(), path)
    by_path = _by_path(((entry.image, entry.class_name) for entry in parts[_PART]), path)
    return Split(path=path, classes=classes, class_by_path=by_path)


def _entry(found: Any, path: Path, part: str) -> _Entry:
    if (
        not isinstance(found, list)
        or [type(value) for value in found] != [str, int, str]
        or not found[0].strip("/")
        or found[1] < 0
    ):
        raise ClassMapError(f"{path} contains {short_repr(found)} in {part!r}; expected [path, label, class name]")
    return _Entry(*found)


def _read_text_split(path: Path, class_list: Path) -> Split:
    names = [line.strip() for line in read_list(class_list).rstrip().splitlines()]
    classes = require_label_order(enumerate(names), class_list)
    by_path = _by_path(_lines(path, frozenset(classes), class_list), path)
    return Split(path=path, classes=classes, class_by_path=by_path)


def _lines(path: Path, classes: frozenset[str], class_list: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_list(path).rstrip().splitlines(), start=1):
        image, _, class_name = line.strip().partition(" ")
        if class_name not in classes:
            raise ClassMapError(
                f"{path}, line {number}, is {line!r}; expected an image and one of the {len(classes)} classes in "
                f"{class_list}: use two files from the same release"
            )
        yield image if PurePosixPath(image).suffix else f"{image}{_SUFFIX}", class_name


def _by_path(pairs: Iterable[tuple[str, str]], path: Path) -> dict[str, str]:
    """Return the class of each image by its path, without a slash in front."""
    found: dict[str, str] = {}
    for image, class_name in pairs:
        parts = [part for part in image.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ClassMapError(f"{path} lists the image {image!r}; expected a path without '..'")
        place = "/".join(parts)
        if place in found:
            raise ClassMapError(f"{path} lists {place} twice; expected unique images: use the published file")
        found[place] = class_name
    if not found:
        raise ClassMapError(f"{path} lists no images; expected one line per image: restore it")
    return found
