"""Strict reader of `.npy` headers: the text is matched by a pattern, never evaluated as Python.

`numpy.lib.format` parses the text as Python. Short hostile headers make it raise `RecursionError`, `TokenError`,
`TypeError`, `IndexError` or `SyntaxError`, and give warnings, which a thread that decodes cannot silence for itself.
It takes negative lengths, Booleans for lengths, a field given twice, and arrays of any type.
"""

import math
import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 4096
"""Longest header that is accepted; NumPy writes 128 bytes for arrays of numbers."""
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
"""Length of the field that holds the header's length, by version of the format."""
_MAX_AXES = 32
_START_BYTES = len(MAGIC) + 2 + 4
MAX_START_BYTES = _START_BYTES + MAX_HEADER_BYTES
"""Most bytes that can precede the values."""
_FIELD = re.compile(
    r"""\s*['"](?P<name>descr|fortran_order|shape)['"]\s*:\s*"""
    r"""(?:['"](?P<descr>[<>|=]?(?:b1|[iu][1248]|f[248]))['"]|(?P<order>True|False)|\((?P<shape>[\d, L]*)\))"""
    r"""\s*(?:,|$)"""
)
_LENGTH = re.compile(r"(\d{1,18})L?$")  # Python 2 wrote 10L
_KINDS = {"descr": "descr", "fortran_order": "order", "shape": "shape"}


class ArrayHeader(NamedTuple):
    """Type, shape and position of the array in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    offset: int
    """The byte at which the values begin."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all values."""
        return self.dtype.itemsize * math.prod(self.shape)


def read_array_header(data: bytes) -> ArrayHeader:
    """Return the header in *data*, which is an `.npy` file or its beginning.

    Raises:
        ValueError: *data* is not an `.npy` file, is cut inside its header, or holds anything but plain numbers.
    """
    if not data.startswith(MAGIC) or len(data) < _START_BYTES:
        raise ValueError(f"a file that begins with {data[:8]!r}; expected an .npy file, which begins with {MAGIC!r}")
    length_bytes = _LENGTH_BYTES.get(data[6])
    if length_bytes is None:
        raise ValueError(f"an .npy file of version {data[6]}.{data[7]}; expected 1.0, 2.0 or 3.0")
    start = len(MAGIC) + 2 + length_bytes
    end = start + int.from_bytes(data[start - length_bytes : start], "little")
    if end - start > MAX_HEADER_BYTES:
        raise ValueError(f"an .npy header of {end - start} bytes; expected {MAX_HEADER_BYTES} at most")
    if len(data) < end:
        raise ValueError(f"an .npy file that ends inside its header; expected {end} bytes at least")
    return _parse_header(data[:end], start)


@lru_cache(maxsize=64)  # the images of a shard share one header; parsing it takes longer than reading the pixels
def _parse_header(head: bytes, start: int) -> ArrayHeader:
    text = head[start:].decode("latin-1").strip()
    fields = _fields(text[1:-1]) if text[:1] == "{" and text[-1:] == "}" else {}
    if len(fields) != len(_KINDS):
        what = (
            "Python objects, which are never read," if re.search(r"""['"]\|?O""", text) else f"the header {text[:80]!r}"
        )
        raise ValueError(f"{what} in an .npy file; expected descr, fortran_order and shape of an array of numbers")
    return ArrayHeader(
        np.dtype(fields["descr"]), _lengths(fields["shape"]), fields["fortran_order"] == "True", len(head)
    )


def _fields(text: str) -> dict[str, str]:
    """Return the value of each field; none if *text* holds anything else."""
    fields: dict[str, str] = {}
    position = 0
    while (match := _FIELD.match(text, position)) is not None:
        value = match[_KINDS[match["name"]]]
        if value is None or match["name"] in fields:
            return {}
        fields[match["name"]] = value
        position = match.end()
    return {} if text[position:].strip() else fields


def _lengths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if parts[-1] == "":  # (3,) and ()
        parts.pop()
    matches = [_LENGTH.match(part) for part in parts]
    if None in matches or len(matches) > _MAX_AXES:
        raise ValueError(f"the shape ({text[:80]}) in an .npy file; expected the lengths of {_MAX_AXES} axes at most")
    return tuple(int(match[1]) for match in matches if match)
