"""Strict reader of tar headers: POSIX ustar, PAX (POSIX.1-2001) and GNU long names."""

import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

BLOCK_BYTES = 512
_EMPTY = bytes(BLOCK_BYTES)
FILE_KINDS = frozenset({b"0", b"\0", b"7"})
HARD_LINK, SYMBOLIC_LINK, FOLDER = b"1", b"2", b"5"
PAX, PAX_GLOBAL, GNU_LONG_NAME, GNU_LONG_LINK = b"x", b"g", b"L", b"K"
_WITHOUT_DATA = frozenset({HARD_LINK, SYMBOLIC_LINK, FOLDER})
EXTENSION_KINDS = frozenset({PAX, PAX_GLOBAL, GNU_LONG_NAME, GNU_LONG_LINK})
_ADLER_MODULUS = 65521
MAX_EXTENSION_BYTES = 2**20
"""Largest extension header that is accepted; a path has a few thousand bytes at most."""
_PAX_FIELD = re.compile(rb"(\d{1,20}) ")
_PAX_SIZE = re.compile(r"[0-9]{1,20}")
_OCTAL = re.compile(rb"[0-7]*")
_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\3\4": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
}
"""First bytes of compressed files."""


class Header(NamedTuple):
    """The fields of one header block."""

    name: str
    kind: bytes
    size_bytes: int
    link: str


def find_compression(start: bytes) -> str:
    """Return the compression of a file that begins with the block *start*; empty if none is known, or it is a tar.

    File names do not show it.
    """
    found = next((name for magic, name in _COMPRESSIONS.items() if start.startswith(magic)), "")
    return "" if found and is_tar(start) else found  # the first bytes of a tar are a name


def read_compression(path: Path) -> str:
    """Return the compression of the file *path* by its first bytes; empty if none is known.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return find_compression(file.read(BLOCK_BYTES))


def is_tar(block: bytes) -> bool:
    """Return whether a file that begins with the 512 bytes of *block* is a plain tar."""
    try:
        return len(block) == BLOCK_BYTES and read_header(block) is not None
    except ValueError:
        return False


def read_header(block: bytes) -> Header | None:
    """Return the header in the 512 bytes of *block*; None for the empty block that ends an archive.

    Raises:
        ValueError: the block is damaged.
    """
    if block == _EMPTY:
        return None
    expected = _number(block[148:156])
    # The low half of Adler-32 is one more than the sum of the bytes, and is computed in C.
    if (zlib.adler32(block) & 0xFFFF) != (1 + expected + sum(block[148:156]) - 8 * 32) % _ADLER_MODULUS:
        raise ValueError(f"a damaged header; expected a checksum of {expected}")
    kind = block[156:157]
    if kind in _WITHOUT_DATA:
        return Header(_name(block), kind, 0, _text(block[157:257]))
    return Header(_name(block), kind, _number(block[124:136]), "")


def parse_extension(kind: bytes, data: bytes) -> Mapping[str, str]:
    """Return the fields "path", "linkpath" and "size" of the next member from the *data* of an extension header.

    Raises:
        ValueError: *data* is damaged.
    """
    if kind == PAX_GLOBAL:
        return {}
    if kind in (GNU_LONG_NAME, GNU_LONG_LINK):
        return {"path" if kind == GNU_LONG_NAME else "linkpath": _text(data)}
    fields = {}
    while data:
        match = _PAX_FIELD.match(data)
        length = int(match.group(1)) if match else 0
        if match is None or not match.end() < length <= len(data) or data[length - 1 : length] != b"\n":
            raise ValueError(f"a damaged PAX header that continues {data[:20]!r}; expected '<length> <field>=<value>'")
        field, _, value = data[match.end() : length - 1].partition(b"=")
        fields[field.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        data = data[length:]
    if any(field.startswith("GNU.sparse.") for field in fields):
        raise ValueError("a sparse file, which is stored without its holes; expected files stored whole")
    size = fields.get("size", "0")
    if not _PAX_SIZE.fullmatch(size):
        raise ValueError(f"a PAX header with the size {size[:30]!r}; expected at most 20 decimal digits")
    return {name: fields[name] for name in ("path", "linkpath", "size") if name in fields}


def padded_size(size_bytes: int) -> int:
    """Return *size_bytes* rounded up to whole blocks."""
    return size_bytes + -size_bytes % BLOCK_BYTES


def _number(field: bytes) -> int:
    if field[:1] == b"\x80":  # GNU's binary form, for more than 8 GiB
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not _OCTAL.fullmatch(digits):  # int() would accept signs and underscores too
        raise ValueError(f"a damaged header with the number {field!r}; expected octal digits")
    return int(digits or b"0", 8)


def _name(block: bytes) -> str:
    name, prefix = _text(block[:100]), _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
