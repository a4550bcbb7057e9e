"""Members of third-party shards: the image of each sample, the members that state its class, and all others.

As in webdataset, a member's key is its name up to the first dot of the last part, and the rest is its extension. The
last part of the extension is its type: `a.jpg` and `a.input.jpg` are both images of the sample `a`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from tta_pipeline.data.images.shard_layouts import (
    CLASS_TYPES,
    IMAGE_TYPES,
    LABEL_FIELDS,
    MAIN_NAMES,
    NAME_FIELDS,
    OBJECT_TYPES,
    REFUSED_TYPES,
)
from tta_pipeline.data.labels.label_text import decode_label, parse_label
from tta_pipeline.errors import PipelineError

_COMPRESSED = frozenset({"gz", "bz2", "xz", "zst"})
_MAX_JSON_BYTES = 2**20
MAX_LABEL_BYTES = _MAX_JSON_BYTES + 1
"""Bytes of a label member that are worth reading: one more than are accepted."""

Role = Literal["image", "class", "json", "left out", "hidden", "refused"]
M = TypeVar("M")
T = TypeVar("T")


class MemberName(NamedTuple):
    """The parts of a member's name, and the member's role."""

    key: str
    extension: str
    """Everything after the first dot, in lower case."""
    role: Role


class LabelContent(NamedTuple):
    """The class of a sample as stated by its label members."""

    label: int | None = None
    text: str = ""


@dataclass(kw_only=True, slots=True)
class Members(Generic[T]):
    """The members of one sample; *T* is the caller's representation of an image."""

    images: list[tuple[str, T]] = field(default_factory=list)
    """Extension of each image, and the image."""
    texts: list[tuple[str, bytes]] = field(default_factory=list)
    """Extension and content of each `.cls` member."""
    jsons: list[tuple[str, bytes]] = field(default_factory=list)
    """Extension and content of each `.json` member."""
    others: list[str] = field(default_factory=list)
    """Extensions of all other members."""

    def main_image(self) -> T:
        """Return the image of the sample.

        Raises:
            ValueError: there is no image, or several without a main one.
        """
        if not self.images:
            found = [extension for extension, _ in (*self.texts, *self.jsons)] + self.others
            raise ValueError(f"has no image, only {', '.join('.' + name for name in found[:3])}")
        return _choose_main(self.images, "images")[1]

    def parse_label(self) -> LabelContent:
        """Return the class stated by the `.cls` member or, without one, by the `.json` members.

        Raises:
            ValueError: the members contradict each other, or one of them is damaged or contains anything but one class.
        """
        if self.texts:
            return _label_content(parse_label(decode_label(_choose_main(self.texts, ".cls members")[1])))
        return parse_json_label([content for _, content in self.jsons])

    def ignored_extensions(self) -> list[str]:
        """Return the extensions of the ignored members: neither the image nor a label member."""
        if len(self.images) < 2 and len(self.texts) < 2:
            return self.others
        chosen = [_choose_main(found, "")[0] for found in (self.images, self.texts) if found]
        return [name for name in (*_extensions(self.images), *_extensions(self.texts)) if name not in chosen] + [
            *self.others
        ]


class GatheredMembers(Generic[M, T]):
    """The members of a shard, gathered into samples in any order.

    Args:
        keep: Returns the caller's representation of an image.
        read: Returns the bytes of a label member.
    """

    def __init__(self, *, keep: Callable[[M], T], read: Callable[[M], bytes]) -> None:
        self._keep, self._read = keep, read
        self._by_key: defaultdict[str, Members[T]] = defaultdict(Members)
        self.num_hidden = 0

    def add(self, name: MemberName, member: M) -> None:
        """Add one *member*, whose name was parsed to *name*."""
        if name.role == "hidden":
            self.num_hidden += 1
            return
        members = self._by_key[name.key]
        if name.role == "image":
            members.images.append((name.extension, self._keep(member)))
        elif name.role == "class":
            members.texts.append((name.extension, self._read(member)))
        elif name.role == "json":
            members.jsons.append((name.extension, self._read(member)))
        else:
            members.others.append(name.extension)

    def samples(
        self, *, where: object, error: type[PipelineError], is_whole: bool = True
    ) -> Iterator[tuple[str, T, LabelContent]]:
        """Yield key, image and stated class of each sample, in the order of their first members.

        Args:
            where: The shard, for errors.
            error: Kind of the error.
            is_whole: Whether all members of the shard were added; if not, samples without an image are left out.
        """
        for key, members in self._by_key.items():
            if not members.images and not is_whole:
                continue
            try:
                yield key, members.main_image(), members.parse_label()
            except ValueError as problem:
                raise error(
                    f"{where}: the sample {key} {problem}; expected one image ({', '.join(sorted(IMAGE_TYPES))}) and "
                    "one class per key: repack it"
                ) from None

    def count_left_out(self) -> Counter[str]:
        """Return the number of members by extension that are neither a sample's image nor its class."""
        return Counter(name for members in self._by_key.values() for name in members.ignored_extensions())


def parse_member_name(name: str) -> MemberName:
    """Parse the *name* of a member into key, extension and role."""
    folder, _, last = name.rpartition("/")
    stem, dot, extension = last.partition(".")
    extension = extension.lower()
    key = f"{folder}/{stem}" if folder else stem
    if not stem or not dot:  # webdataset skips names without an extension; macOS adds `._a.jpg`
        return MemberName(key, extension, "hidden")
    return MemberName(key, extension, _role(extension))


@lru_cache(maxsize=256)  # there are few extensions, but millions of members
def _role(extension: str) -> Role:
    *others, kind = extension.split(".")
    if kind in IMAGE_TYPES:
        return "image"
    if kind in CLASS_TYPES:
        return "class"
    if kind in OBJECT_TYPES:
        return "json"
    is_refused = kind in REFUSED_TYPES or (kind in _COMPRESSED and others[-1:] and others[-1] in REFUSED_TYPES)
    return "refused" if is_refused else "left out"


def parse_json_label(contents: Sequence[bytes]) -> LabelContent:
    """Return the label in one of the `LABEL_FIELDS` of JSON objects, otherwise the name in one of the `NAME_FIELDS`.

    JSON that is only a number, or a list of numbers, counts as the first of these fields.

    Raises:
        ValueError: a content is not JSON, or the objects hold several labels or, without a label, several names; or
            the only labels are fractions or several numbers, such as a one-hot vector.
    """
    labels: dict[int, str] = {}
    names: dict[str, str] = {}
    problems: list[ValueError] = []
    for content in contents:
        fields = _object(content)
        for name in (*LABEL_FIELDS, *NAME_FIELDS):
            try:
                said = parse_label(_text(fields.get(name)))
            except ValueError as problem:
                problems.append(problem)
                continue
            if isinstance(said, int):
                if name in LABEL_FIELDS:
                    labels.setdefault(said, name)
            elif said and name in NAME_FIELDS:
                names.setdefault(said, name)
    if labels:
        return LabelContent(_only(labels, "labels"))
    if names:
        return LabelContent(None, _only(names, "class names"))
    if problems:
        raise problems[0]
    return LabelContent()


def _only(found: Mapping[T, str], what: str) -> T:
    """Return the only key of *found*, labels or names by the fields that hold them."""
    if len(found) > 1:
        fields_found = ", ".join(f"{name} {value!r}" for value, name in found.items())
        raise ValueError(f"has several {what} in its .json member: {fields_found}")
    return next(iter(found))


def _label_content(said: int | str) -> LabelContent:
    return LabelContent(said) if isinstance(said, int) else LabelContent(None, said)


def _text(value: Any) -> str:
    """Return the text of a field that may state a class: text, or a number, also as the only item of lists.

    Other values are not about the class, and give no text.

    Raises:
        ValueError: the field holds a fraction or several numbers.
    """
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list) and value and all(isinstance(each, int | float | list) for each in value):
        raise ValueError(f"has {len(value):,} numbers instead of one class in its .json member")
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"has the class {value} in its .json member, which is no whole number")
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _object(content: bytes) -> dict[str, Any]:
    if len(content) > _MAX_JSON_BYTES:
        raise ValueError(f"has a .json member of {len(content):,} bytes")
    try:
        found = json.loads(content)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"has a .json member that is not JSON ({error})") from None
    if isinstance(found, int | float | list):
        return {LABEL_FIELDS[0]: found}
    return found if isinstance(found, dict) else {}


def _choose_main(found: Sequence[tuple[str, T]], what: str) -> tuple[str, T]:
    """Return the only member, the only one with a plain extension, or the only one with a name such as `input`."""
    if len(found) == 1:
        return found[0]
    extensions = _extensions(found)
    num_times = max(Counter(extensions).values())
    if num_times > 1:
        raise ValueError(f"appears {num_times} times; expected once")
    plain = [pair for pair in found if "." not in pair[0]]
    named = [pair for pair in found if pair[0].partition(".")[0] in MAIN_NAMES]
    for chosen in (plain, named):
        if len(chosen) == 1:
            return chosen[0]
    raise ValueError(f"has {len(found)} {what}: {', '.join('.' + name for name in extensions[:3])}")


def _extensions(found: Sequence[tuple[str, Any]]) -> list[str]:
    return [extension for extension, _ in found]
