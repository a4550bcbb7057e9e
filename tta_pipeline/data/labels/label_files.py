"""Readers of the label files of datasets: class names in label order, and the class of each image file.

There are two orders of the ImageNet classes. Labels count the sorted WordNet ids, as in every pretrained model. The
`ILSVRC2012_ID` of the development kit counts in another order and only serves to look up a WordNet id.
"""

import csv
import io
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from tta_pipeline.data.labels.class_map import require_plain_order
from tta_pipeline.data.labels.label_text import name_or_digits
from tta_pipeline.data.labels.output_map import OutputMap, parse_output_map
from tta_pipeline.data.labels.shipped_lists import shipped_classes, shipped_list_names, shipped_output_map
from tta_pipeline.errors import ClassMapError
from tta_pipeline.util.identifiers import find_duplicates
from tta_pipeline.util.short_lists import short_repr

VALIDATION_FILE = "ILSVRC2012_val_%08d.JPEG"
"""File name of a validation image, given its line number in the ground truth."""

_ARCHIVE_SUFFIXES = frozenset({".tar", ".gz", ".tgz", ".zip"})
_FILE_AND_LABEL = re.compile(
    r"""["']?(?P<file>[^\t,;"']+?\.(?:jpe?g|png|bmp|webp))["']?(?:\s*[,;]\s*|\s+)"""
    r"""["']?(?P<label>[\w.]*[(\[][^\t]*[)\]]|[^\t,;"']+?)["']?\s*(?:[\t,;].*)?""",
    re.IGNORECASE,
)
"""Line with a file name and a label; further columns, as in Tiny ImageNet's val_annotations.txt, are skipped."""
_FILE_HEADING = re.compile(r"image|file|path", re.IGNORECASE)
_LABEL_HEADING = re.compile(r"label|class|categor|target|prediction|wnid|synset", re.IGNORECASE)
_HEADING = re.compile(
    r"#.*|(?:\w*[ _])?(?:labels?|class(?:es)?|category|target|wnid|synset)(?:[ _](?:id|name|index))?", re.IGNORECASE
)
"""Line above a list of classes alone."""
_IMAGE_NAME = re.compile(r"\.(?:jpe?g|png|bmp|webp)\b", re.IGNORECASE)
_COLUMNS = re.compile(r"\S*\d\S*?(?:\s*[,;|:=]\s*|\s+)\S.*")
"""Line with a number, or a name with one, before the class."""
_BOXES_HEADING = "PredictionString"
"""Heading of Kaggle's LOC_val_solution.csv, whose column has the class and the place of each object."""


def is_shipped_list(path: Path) -> bool:
    """Return whether *path* names a list of classes that comes with the project, and no file of this name exists."""
    return str(path) in shipped_list_names() and not path.exists()


def read_classes(path: Path) -> tuple[str, ...]:
    """Return the class names in *path* in label order.

    *path* is a JSON file, the devkit's `meta.mat`, or the name of a list that comes with the project, such as
    `imagenet`.
    """
    if is_shipped_list(path):
        return shipped_classes(str(path))
    _refuse_archive(path)
    readers = {".json": classes_from_json, ".mat": classes_from_devkit}
    if path.suffix.lower() not in readers:
        raise ClassMapError(
            f"{path} ends in {path.suffix!r}; expected {' or '.join(readers)}: convert it to JSON, a list of class "
            "names in label order"
        )
    return readers[path.suffix.lower()](path)


def read_output_map(path: Path) -> OutputMap | None:
    """Return the outputs of each class in *path*, named as for `read_classes`; None if each class is one output."""
    if is_shipped_list(path):
        return shipped_output_map(str(path))
    return parse_output_map(read_json(path), where=path) if path.suffix.lower() == ".json" else None


def classes_from_json(path: Path) -> tuple[str, ...]:
    """Return the class names in the JSON file *path*, in label order.

    The file may hold `["name", ...]`, `{"name": 0, ...}`, `{"0": "name", ...}` or, as in torchvision's examples,
    `{"0": ["name", "common name"], ...}`; or classes with several outputs, see `parse_output_map`.
    """
    content = read_json(path)
    if mapped := parse_output_map(content, where=path):
        pairs = list(enumerate(mapped.classes))
    elif isinstance(content, list):
        pairs = list(enumerate(content))
    elif isinstance(content, dict):
        pairs = [_label_and_name(key, value, path=path) for key, value in content.items()]
    else:
        raise ClassMapError(
            f"{path} contains {short_repr(content)}; expected a list of class names, or an object: rewrite it"
        )
    return require_label_order(pairs, path)


def classes_from_devkit(path: Path) -> tuple[str, ...]:
    """Return the sorted WordNet ids in the devkit's `meta.mat`: the order of labels, unlike the devkit's numbers."""
    return tuple(sorted(read_devkit_ids(path).values()))


def read_devkit_ids(path: Path) -> dict[int, str]:
    """Return the WordNet id for each `ILSVRC2012_ID` in the devkit's `meta.mat`; synsets with children are left out."""
    names = require_label_order([(number - 1, wnid) for number, wnid in _leaf_synsets(path)], path, first=1)
    return dict(enumerate(names, start=1))


def read_ground_truth(
    path: Path,
    ids: Mapping[int, str] | None = None,
    file_names: str = VALIDATION_FILE,
    *,
    classes: Sequence[str] = (),
) -> dict[str, str]:
    """Return the class name of each file listed in *path*, a text file, a table or JSON.

    In a text file, either every line is the class of the image with this line number, or every line is a file name and
    its class, with spaces, a tab, a comma or a semicolon between. A table has a first line of headings, such as
    `image,label`. JSON holds an object, `{"file name": "class", ...}`. Folders before a file name are left out.

    Args:
        path: the ground truth, such as the devkit's `ILSVRC2012_validation_ground_truth.txt`.
        ids: the class name of each number, if the classes are numbers: `read_devkit_ids` for the devkit's numbers. If
            None, the classes are names, or labels.
        classes: the names in the class map. Other numbers are labels if one is 0, since the devkit's
            numbers begin with 1.
        file_names: pattern from a line number, from 1, to the image's file name, such as `ILSVRC2012_val_%08d.JPEG`.
    """
    found: dict[str, str] = {}
    written = (
        _files_in_json(path)
        if path.suffix.lower() == ".json"
        else _files_and_labels(path, file_names, is_mapped=ids is not None or bool(classes))
    )
    pairs = [(file, _name_or_digits(label, where=f"{path}, entry {at}")) for at, (file, label) in enumerate(written, 1)]
    if ids is None and not classes:
        _require_order({label for _, label in pairs}, path=path)
    if ids is None and _are_labels({label for _, label in pairs}, classes):
        ids = dict(enumerate(classes))
    for number, (file, label) in enumerate(pairs, start=1):
        file_name = re.split(r"[/\\]", file)[-1]
        if file_name in found:
            raise ClassMapError(
                f"{path}, entry {number}: {file_name} is already listed above; expected one line per file: remove one "
                "of the two"
            )
        found[file_name] = label if ids is None else _class_by_id(label, ids, where=f"{path}, entry {number}")
    if not found:
        raise ClassMapError(f"{path} is empty; expected one line per image: restore it")
    return found


def _require_order(labels: AbstractSet[str], *, path: Path) -> None:
    """Refuse *labels* whose order is unknown, or numbers with a gap, after which each would have too small a label."""
    require_plain_order(labels, where=path)
    numbers = sorted(int(label) for label in labels if _is_digits(label))
    if len(numbers) == len(labels) > 0 and numbers[0] < 2 and numbers[-1] - numbers[0] >= len(numbers):
        gap = next(number + 1 for number in numbers if number + 1 not in numbers)
        raise ClassMapError(
            f"{path} contains the numbers {numbers[0]} to {numbers[-1]} without {gap}; expected consecutive numbers, "
            "so that they can be labels: name a class map"
        )


def _are_labels(found: AbstractSet[str], classes: Sequence[str]) -> bool:
    """Return whether the classes *found* in a list are positions in *classes*."""
    return bool(classes) and "0" in found and all(map(_is_digits, found)) and not found & set(classes)


def class_by_file(classes: Mapping[str, str], file_name: str, *, where: str | Path) -> str:
    """Return the class of the file *file_name* in the ground truth *classes*, which may name it without its suffix."""
    name = file_name if file_name in classes else file_name.rpartition(".")[0]
    if name not in classes:
        raise ClassMapError(
            f"{where} has no class for {file_name}; expected one of the {len(classes)} files in the ground truth: use "
            "the list that belongs to these images"
        )
    return classes[name]


def class_by_pattern(pattern: str, relative_path: str) -> str:
    """Return the class name in *relative_path*: the match of the first group of *pattern*."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ClassMapError(
            f"The pattern {pattern!r} is not a regular expression: {error}; expected one with a group for the class "
            "name"
        ) from error
    if not compiled.groups:
        raise ClassMapError(
            f"The pattern {pattern!r} has no group; expected parentheses around the class name: add them"
        )
    match = compiled.search(relative_path)
    if match is None or not match[1]:
        raise ClassMapError(
            f"The pattern {pattern!r} finds the class {match and match[1]!r} in {relative_path!r}; expected its first "
            "group to match a class name: correct the pattern, or remove the file"
        )
    return _name_or_digits(match[1], where=relative_path)


def read_json(path: Path) -> Any:
    """Return the content of the JSON file *path*."""
    try:
        return json.loads(_bytes(path), object_pairs_hook=lambda pairs: _object(pairs, path))
    except ValueError as error:
        raise ClassMapError(
            f"{path} is not JSON ({error}); expected class names with their labels: restore it"
        ) from error


def _object(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    # In JSON itself, the last of two equal keys wins.
    _refuse_repeated((key for key, _ in pairs), "key", path=path)
    return dict(pairs)


def _label_and_name(key: str, value: Any, *, path: Path) -> tuple[int, Any]:
    """Return label and name of one entry of a JSON object, which may map either to the other."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, key
    label = _number(key)
    if label is None:
        raise ClassMapError(
            f'{path} maps {key!r} to {short_repr(value)}; expected "name": label or "label": name: correct the entry'
        )
    return label, value[0] if isinstance(value, list) and value else value


def require_label_order(pairs: Iterable[tuple[int, Any]], path: Path, *, first: int = 0) -> tuple[str, ...]:
    """Return the names of (label, name) pairs, after checking that the labels have no gap and the names differ.

    Args:
        pairs: labels from 0 on.
        path: the file that the pairs are from.
        first: the file's own number for label 0, used in messages.
    """
    pairs = sorted(pairs, key=lambda pair: pair[0])
    for _, name in pairs:
        if not isinstance(name, str) or not name:
            raise ClassMapError(f"{path} contains the class name {short_repr(name)}; expected text that is not empty")
    _refuse_repeated((name for _, name in pairs), "class name", path=path)
    _refuse_repeated((label + first for label, _ in pairs), "label", path=path)
    for expected, (label, name) in enumerate(pairs):
        if label != expected:
            raise ClassMapError(
                f"{path} gives {name!r} the label {label + first}, but label {expected + first} is missing; expected "
                f"each of {first} to {len(pairs) - 1 + first} once: complete the file"
            )
    if not pairs:
        raise ClassMapError(f"{path} contains no class; expected class names: restore it")
    return tuple(name for _, name in pairs)


def _refuse_repeated(values: Iterable[Hashable], kind: str, *, path: Path) -> None:
    if twice := find_duplicates(values):
        raise ClassMapError(
            f"{path} contains the {kind} {twice[0]!r} more than once ({len(twice)} such duplicates); expected each "
            f"{kind} once: remove the duplicates"
        )


def _leaf_synsets(path: Path) -> list[tuple[int, str]]:
    """Return the number and the WordNet id of each synset without children."""
    from scipy.io import loadmat

    _refuse_archive(path)
    data = _bytes(path)
    try:
        stream: Any = io.BytesIO(data)  # `loadmat` accepts a stream, but its annotations do not say so
        content = loadmat(stream, squeeze_me=True, variable_names=["synsets"], appendmat=False)
        synsets = content["synsets"].reshape(-1)
        rows = zip(synsets["ILSVRC2012_ID"], synsets["WNID"], synsets["num_children"], strict=True)
        return [(int(number), str(wnid)) for number, wnid, num_children in rows if int(num_children) == 0]
    except Exception as error:  # a damaged file makes the reader raise ten kinds of errors
        raise ClassMapError(
            f"{path} is not the meta.mat of the ILSVRC development kit ({error!r}); expected its array `synsets` with "
            "ILSVRC2012_ID, WNID and num_children: restore it"
        ) from error


def _files_in_json(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the file name and the class of each entry of a JSON object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise ClassMapError(
            f"{path} contains {short_repr(content)}; expected an object that maps file names to classes: rewrite it"
        )
    for file_name, label in content.items():
        if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
            raise ClassMapError(f"{path} gives {file_name} the class {short_repr(label)}; expected a name or a number")
        yield file_name, str(label)


def _files_and_labels(path: Path, file_names: str, *, is_mapped: bool) -> Iterator[tuple[str, str]]:
    """Yield the file name and the class, as written, of each line."""
    lines = read_list(path).rstrip().splitlines()
    if lines and (columns := _columns_by_heading(lines[0])):
        yield from _rows_of_table(lines, *columns, path=path)
        return
    with_files = bool(lines) and _FILE_AND_LABEL.fullmatch(lines[0].strip()) is not None
    has_heading = lines[:1] != lines[1:2] and bool(lines) and _HEADING.fullmatch(lines[0].strip()) is not None
    is_in_columns = all(_COLUMNS.fullmatch(line.strip()) for line in lines) and len(set(lines)) == len(lines) > 1
    if is_in_columns and not with_files and not is_mapped:
        raise ClassMapError(
            f"{path} has a different class in each of its {len(lines):,} lines, such as {short_repr(lines[0])} and "
            f"{short_repr(lines[1])}; expected classes that repeat, or a file name and its class in each line: "
            "correct the lines, or name a class map"
        )
    for number, line in enumerate(lines, start=1):
        match = _FILE_AND_LABEL.fullmatch(line.strip())
        names_file = match is None and _IMAGE_NAME.search(line) is not None
        if not line.strip() or with_files != bool(match) or names_file or has_heading:
            expected = "a file name and its class" if with_files or names_file else "only a class"
            raise ClassMapError(
                f"{path}, line {number}, is {line!r}; expected {expected}, in the same form in each line: correct the "
                "line"
            )
        yield (match["file"], match["label"].strip()) if match else (file_names % number, line.strip())


def _columns_by_heading(heading: str) -> tuple[str, int, list[int]] | None:
    """Return the separator of a table, its file column and its class columns; None if *heading* is no heading."""
    if _FILE_AND_LABEL.fullmatch(heading.strip()):
        return None
    separator = next((each for each in ",;\t" if each in heading), ",")
    names = next(csv.reader([heading], delimiter=separator))
    files = [at for at, name in enumerate(names) if _FILE_HEADING.search(name)]
    labels = [at for at, name in enumerate(names) if _LABEL_HEADING.search(name) and at not in files]
    if files and len(labels) > 1 and any("pred" in names[at].lower() for at in labels):
        labels = [at for at in labels if "pred" not in names[at].lower()]
    return (separator, files[0], labels) if files and labels else None


def _rows_of_table(
    lines: Sequence[str], separator: str, file_column: int, label_columns: Sequence[int], *, path: Path
) -> Iterator[tuple[str, str]]:
    """Yield the file name and the class of each row below the heading; further columns may have names of the class."""
    heading, *rows = csv.reader(lines, delimiter=separator)
    label_column = label_columns[0]
    names: dict[str, list[str]] = {}
    for number, row in enumerate(rows, start=2):
        if len(row) != len(heading) or not row[file_column].strip() or not row[label_column].strip():
            raise ClassMapError(
                f"{path}, line {number}, is {separator.join(row)!r}; expected {len(heading)} columns, like the "
                f"heading {separator.join(heading)!r}: correct the line"
            )
        label = row[label_column].strip()
        if names.setdefault(label, others := [row[at] for at in label_columns[1:]]) != others:
            raise ClassMapError(
                f"{path}, line {number}, is {separator.join(row)!r}, whose columns {heading[label_column]!r} and "
                f"{heading[label_columns[1]]!r} disagree; expected one class: remove the wrong column"
            )
        yield row[file_column].strip(), label.split()[0] if heading[label_column] == _BOXES_HEADING else label


def _name_or_digits(label: str, *, where: str) -> str:
    try:
        return name_or_digits(label)
    except ValueError as error:
        raise ClassMapError(f"{where} {error}; expected the name or the number of a class") from None


def _class_by_id(label: str, ids: Mapping[int, str], *, where: str) -> str:
    number = _number(label)
    if number is None or number not in ids:
        raise ClassMapError(
            f"{where}: {label!r} is not a known class number; expected {min(ids, default=None)} to "
            f"{max(ids, default=None)}: use the class numbers that belong to this ground truth"
        )
    return ids[number]


def _number(text: str) -> int | None:
    return int(text) if _is_digits(text) else None


def _is_digits(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,18}", text) is not None


def read_list(path: Path) -> str:
    """Return the content of the UTF-8 file *path*."""
    _refuse_archive(path)
    try:
        return _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ClassMapError(
            f"{path} is not text ({error}); expected UTF-8 with one line per image: convert it"
        ) from error


def _refuse_archive(path: Path) -> None:
    """Refuse an archive instead of the file in it, such as the downloaded development kit."""
    if path.suffix.lower() in _ARCHIVE_SUFFIXES and path.is_file():
        raise ClassMapError(
            f"{path} is an archive; expected the file inside it: unpack it, and name the file. "
            "In the ILSVRC development kit, data/ILSVRC2012_validation_ground_truth.txt has the classes of the "
            "images, and data/meta.mat is the class map (--devkit)"
        )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ClassMapError(
            f"{path} cannot be read ({error.strerror}); expected a file: check the path and your permissions"
        ) from error
