"""Members of third-party shards: the image of each sample, the members that state its class, and all others.

As in webdataset, a member's key is its name up to the first dot of the last part, and the rest is its extension. The
last part of the extension is its type: `a.jpg` and `a.input.jpg` are both images of the sample `a`.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Literal, NamedTuple, TypeVar

IMAGE_TYPES = frozenset({"jpg", "jpeg", "png", "bmp", "webp", "npy", "img", "pth"})
"""Types of images: `img` is any of the formats, and `pth` a uint8 tensor (3, H, W) written by torch.save."""
CLASS_TYPE, JSON_TYPE = "cls", "json"
REFUSED_TYPES = frozenset({"pyd", "pkl", "pickle", "exe"})
"""Types that a careless reader would execute."""
LABEL_FIELDS = ("label", "cls", "class", "class_id", "class_idx", "class_index", "label_id", "target")
"""Fields of a `.json` member that hold a label if they hold an integer."""
NAME_FIELDS = ("label", "cls", "class", "class_name", "label_name", "wnid", "synset")
"""Fields of a `.json` member that hold the name of a class if they hold text and no field holds a label."""
_MAIN_NAMES = frozenset({"input", "image", "img", "output", "label", "target"})
"""First parts of extensions such as `input.jpg` that mark the image, or the class, among several members."""
_COMPRESSED = frozenset({"gz", "bz2", "xz", "zst"})
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_MAX_JSON_BYTES = 2**20

Role = Literal["image", "class", "json", "left out", "hidden", "refused"]
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
            ValueError: the members contradict each other, or a `.json` member is damaged.
        """
        if self.texts:
            return parse_text_label(_choose_main(self.texts, ".cls members")[1].decode("utf-8", "replace").strip())
        return parse_json_label([content for _, content in self.jsons])

    def ignored_extensions(self) -> list[str]:
        """Return the extensions of the ignored members: neither the image nor a label member."""
        if len(self.images) < 2 and len(self.texts) < 2:
            return self.others
        chosen = [_choose_main(found, "")[0] for found in (self.images, self.texts) if found]
        return [name for name in (*_extensions(self.images), *_extensions(self.texts)) if name not in chosen] + [
            *self.others
        ]


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
    if kind == CLASS_TYPE:
        return "class"
    if kind == JSON_TYPE:
        return "json"
    is_refused = kind in REFUSED_TYPES or (kind in _COMPRESSED and others[-1:] and others[-1] in REFUSED_TYPES)
    return "refused" if is_refused else "left out"


def parse_json_label(contents: Sequence[bytes]) -> LabelContent:
    """Return the label in one of the `LABEL_FIELDS` of JSON objects, or else the name in one of the `NAME_FIELDS`.

    Raises:
        ValueError: a content is not JSON, or the objects hold several labels or, without a label, several names.
    """
    labels: dict[int, str] = {}
    names: dict[str, str] = {}
    for content in contents:
        fields = _object(content)
        for name in (*LABEL_FIELDS, *NAME_FIELDS):
            value = fields.get(name)
            if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
                continue
            said = parse_text_label(str(value))
            if said.label is not None:
                if name in LABEL_FIELDS:
                    labels.setdefault(said.label, name)
            elif name in NAME_FIELDS:
                names.setdefault(said.text, name)
    for found, what in ((labels, "labels"), (names, "class names")):
        if len(found) > 1:
            fields_found = ", ".join(f"{name} {value!r}" for value, name in found.items())
            raise ValueError(f"has several {what} in its .json member: {fields_found}")
        if found:
            break
    return LabelContent(next(iter(labels), None), "" if labels else next(iter(names), ""))


def parse_text_label(text: str) -> LabelContent:
    """Return *text* as a label if it is an integer, otherwise as text."""
    return LabelContent(int(text)) if _INTEGER.fullmatch(text) else LabelContent(None, text)


def _object(content: bytes) -> dict[str, Any]:
    if len(content) > _MAX_JSON_BYTES:
        raise ValueError(f"has a .json member of {len(content):,} bytes")
    try:
        found = json.loads(content)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"has a .json member that is not JSON ({error})") from None
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
    named = [pair for pair in found if pair[0].partition(".")[0] in _MAIN_NAMES]
    for chosen in (plain, named):
        if len(chosen) == 1:
            return chosen[0]
    raise ValueError(f"has {len(found)} {what}: {', '.join('.' + name for name in extensions[:3])}")


def _extensions(found: Sequence[tuple[str, Any]]) -> list[str]:
    return [extension for extension, _ in found]
