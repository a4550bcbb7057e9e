"""Class names and their labels, pinned once per benchmark so that all cells agree on them."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

from tta_pipeline.data.labels.label_text import parse_label
from tta_pipeline.errors import ClassMapError
from tta_pipeline.util.files import advice, write_once
from tta_pipeline.util.identifiers import natural_order
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.short_lists import abbreviate_list


@dataclass(frozen=True, kw_only=True)
class ClassMap:
    """Class names in the order of their labels: the label of a class is its position."""

    classes: tuple[str, ...]

    @cached_property
    def labels(self) -> dict[str, int]:
        """The label of each class name."""
        return {name: label for label, name in enumerate(self.classes)}

    @cached_property
    def sha256(self) -> str:
        """Hash of the names in their order."""
        return hashlib.sha256(json.dumps(self.classes).encode()).hexdigest()

    def require_known(self, class_names: Iterable[str], *, where: Path) -> None:
        """Refuse *class_names*, found at *where*, that the map lacks."""
        unknown = sorted(set(class_names) - self.labels.keys())
        if unknown:
            raise ClassMapError(
                f"{where} has {count_of(len(unknown), 'class folder')} that the class map does not contain: "
                f"{abbreviate_list(unknown)}; expected only its {len(self.classes)} classes "
                f"({abbreviate_list(self.classes)}): remove these folders, or pin a new class map"
            )

    def require_same(self, classes: tuple[str, ...], *, where: object, pinned_at: Path) -> None:
        """Refuse *classes* of the file or dataset *where* that differ from the classes pinned at *pinned_at*."""
        if classes == self.classes:
            return
        pairs = enumerate(zip_longest(self.classes, classes))
        label, (pinned, found) = next((label, pair) for label, pair in pairs if pair[0] != pair[1])
        raise ClassMapError(
            f"{where} gives label {label} to {found!r}, but the class map pinned at {pinned_at} gives it to "
            f"{pinned!r}; expected the {len(self.classes)} pinned classes: use the same classes, write to another "
            "folder, or remove the pinned class map and every shard set made with it"
        )


def label_order(class_names: Iterable[str]) -> tuple[str, ...]:
    """Return *class_names* in the order of their labels: sorted, numerically if all of them are numbers in any form."""
    names = sorted(class_names)
    try:
        numbers = {name: number for name in names if isinstance(number := parse_label(name), int)}
    except ValueError:  # such as a version, 3.5
        return tuple(names)
    return tuple(sorted(names, key=numbers.__getitem__) if len(numbers) == len(names) else names)


def require_plain_order(names: Collection[str], *, where: object) -> None:
    """Refuse class names that are numbers with text around them, such as `class_10`, if they sort otherwise as text.

    Every tool sorts folders as text; lists and label members have no fixed order.
    """
    parts = [re.fullmatch(r"(\D*)\d.*", name, re.DOTALL) for name in names]
    is_numbered = all(parts) and len({part[1] for part in parts if part}) == 1
    in_order = sorted(names, key=natural_order)
    if is_numbered and in_order != [*label_order(names)]:
        raise ClassMapError(
            f"{where} has classes that are in one order as text and in another as numbers: "
            f"{abbreviate_list(in_order)}; expected an unambiguous order: name a class map with these names in label "
            "order"
        )


def pin_class_map(path: Path, find_classes: Callable[[], tuple[str, ...]]) -> ClassMap:
    """Return the class map pinned at *path*; if there is none yet, pin the classes from *find_classes*."""
    if not path.exists():
        proposed = class_map_of_found(find_classes(), where=path)
        content = {"classes": proposed.classes, "sha256": proposed.sha256}
        try:
            write_once(path, json.dumps(content, indent=1).encode())
        except OSError as error:
            raise ClassMapError(
                f"{path} cannot be written ({error.strerror}); expected a folder in which the class map can be "
                f"pinned: {advice(error)}"
            ) from error
    return _read_pinned(path)


def require_zero_based_labels(labels: Collection[int], *, where: object, otherwise: str) -> None:
    """Refuse the *labels* of a source without class names if none is 0: they may count from 1.

    Labels that count from 1 give each image the label of the next class, in a class map with one class too many.

    Args:
        labels: All labels of the source.
        where: The file or folder with the labels.
        otherwise: Advice for labels that count from 1.
    """
    if labels and 0 not in labels:
        raise ClassMapError(
            f"{where} has the labels {min(labels)} to {max(labels)}, without 0; expected labels that count from 0, "
            f"like a model's outputs: {otherwise}; if they do, and only class 0 has no images here, name a class map"
        )


def class_map_of_found(classes: tuple[str, ...], *, where: Path) -> ClassMap:
    """Return the class map of *classes*, found in a source, for the file or folder *where*."""
    if not classes:
        raise ClassMapError(
            f"There is no class folder to pin in {where}; expected the class folders of the images: check the path"
        )
    return ClassMap(classes=classes)


def read_pinned_class_map(path: Path) -> ClassMap | None:
    """Return the class map pinned at *path*, or None if there is none."""
    return _read_pinned(path) if path.exists() else None


def _read_pinned(path: Path) -> ClassMap:
    try:
        content = json.loads(path.read_bytes())
        pinned = ClassMap(classes=tuple(content["classes"]))
        intact = content["sha256"] == pinned.sha256
    except OSError as error:
        raise ClassMapError(
            f"{path} cannot be read ({error.strerror}); expected a class map with its sha256: restore it"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ClassMapError(
            f"{path} is not a class map ({error!r}); expected a list of classes and its sha256: restore it"
        ) from error
    if not intact:
        raise ClassMapError(
            f"{path} was edited: its classes have the sha256 {pinned.sha256}, but the file says {content['sha256']}; "
            "expected the pinned classes: restore it, or remove it and every shard set made with it"
        )
    return pinned
