"""Member names that plain webdataset reads as one sample each, and their conversion back to the source's names.

webdataset cuts a member's name at the first dot of its last part, lower-cases the extension, skips names without an
extension or like `__this__/`, and merges names that are then equal. So class and stem are escaped: every byte except
ASCII letters, digits, `_` and `-` becomes `%XX`. Different names stay different, and `unescape` reverses this.
"""

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

_SAFE = re.compile(r"(?!__)[A-Za-z0-9_\-]+")
_PLAIN = re.compile(r"(?!__)[A-Za-z0-9_\-]+\.[A-Za-z0-9]{1,8}")
_UNSAFE = re.compile(rb"[^A-Za-z0-9_\-]|^_(?=_)")
_EXTENSION = re.compile(r"\.[A-Za-z0-9]{1,8}$")
_NO_EXTENSION = "%.jpg"
"""End of the member name of a file without an extension; no escaped stem ends in `%`."""


def make_member_name(class_name: str, file_name: str) -> str:
    """Return the name of the tar member for a file of a class, `<class>/<stem>.<extension>`."""
    if _PLAIN.fullmatch(file_name):  # nearly all names
        return f"{escape(class_name)}/{file_name}"
    extension = _EXTENSION.search(file_name)
    if extension is None:
        return f"{escape(class_name)}/{escape(file_name)}{_NO_EXTENSION}"
    return f"{escape(class_name)}/{escape(file_name[: extension.start()])}{extension.group()}"


def sample_key(member: str) -> str:
    """Return the key that webdataset gives to *member*: its name up to the first dot in the last part."""
    folder, _, name = member.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}" if folder else name.partition(".")[0]


def source_name(member: str) -> str:
    """Return the `<class>/<file>` that *member* was made from."""
    folder, _, name = member.rpartition("/")
    if name.endswith(_NO_EXTENSION):
        return f"{unescape(folder)}/{unescape(name.removesuffix(_NO_EXTENSION))}"
    stem, _, extension = name.partition(".")
    return f"{unescape(folder)}/{unescape(stem)}.{extension}"


@lru_cache(maxsize=4096)  # more than the classes of any dataset in this field
def escape(name: str) -> str:
    """Return *name* with every byte that webdataset could cut, merge or skip written as `%XX`."""
    if _SAFE.fullmatch(name):
        return name
    data = name.encode("utf-8", "surrogateescape")
    return _UNSAFE.sub(lambda match: b"%%%02X" % match.group()[0], data).decode("ascii")


def unescape(name: str) -> str:
    """Reverse `escape`."""
    if "%" not in name:
        return name
    return unquote_to_bytes(name).decode("utf-8", "surrogateescape")
