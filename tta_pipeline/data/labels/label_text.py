"""Text that states a class: a name, or a number in whatever form a program printed it.

Forms of the number 3 are `3`, `3.0`, `+3`, `[3]`, `"3"`, `tensor(3)` and `np.int64(3)`. A number that is taken for a
name is sorted as text, `tensor(10)` before `tensor(2)`, and so gets the label of another class.
"""

import codecs
import re

from tta_pipeline.util.short_lists import short_repr

# One pattern with possessive quantifiers would do, but Python before 3.11.5, such as Debian 12's Python, then
# takes the name n01 for the number 1. So each part is matched once, from the end of the part before it: a text may
# have a million characters.
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_PRINTED = r"(?:[A-Za-z_]\w*\.)*(?:[Tt]ensor|[Aa]rray|long|u?int\d*|float\d*)\(|<tf\.Tensor:.*numpy="
"""Beginnings of numbers as NumPy, PyTorch, JAX and TensorFlow print them."""
_FORM = (
    re.compile(rf"""(?:{_PRINTED}|[\[({{"'\s]|b(?=["']))*"""),
    re.compile(rf"(?:{_NUMBER}(?:[\s,;\[\]()]+{_NUMBER})*)?"),
    re.compile(r"""(?:[\s\])}>"']|,(?:\s*\w+=[^,=]*)?)*"""),
)
"""Numbers, or none, with what may be printed before and behind them."""
_NO_NAME = re.compile(rf"(?:{_PRINTED}|[\[{{<]).*\d.*|0[xX][\da-fA-F]+|.*[\x00-\x1f\x7f].*", re.DOTALL)
"""Printed values, hexadecimal numbers, text of several lines and data."""
_BLANK = " \t\r\n\0\ufeff"
_LARGEST = 2**53
"""Bound of the whole numbers that float64 holds exactly."""


def decode_label(content: bytes) -> str:
    """Return the text in *content*, which is UTF-8, or UTF-16 with a byte order mark.

    Raises:
        ValueError: *content* is not such text.
    """
    is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if is_utf_16 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"has a class that is not UTF-8 ({error})") from None


def parse_label(text: str) -> int | str:
    """Return the whole number that *text* states in any form; otherwise *text* without blanks around it, a name.

    Raises:
        ValueError: *text* states a fraction, or several numbers, such as a one-hot vector, or is not a name either.
    """
    text = text.strip(_BLANK)
    stated = _stated_numbers(text) if text else None
    if stated is None:
        if _NO_NAME.fullmatch(text):
            raise ValueError(f"has the class {short_repr(text)}, which is neither one number nor a name")
        return text
    numbers = re.findall(_NUMBER, stated)
    if len(numbers) != 1:
        raise ValueError(f"has {len(numbers):,} numbers instead of one class: {short_repr(text)}")
    value = float(numbers[0])
    if not value.is_integer() or abs(value) >= _LARGEST:
        raise ValueError(f"has the class {short_repr(text)}, which is no whole number below {_LARGEST:,}")
    return int(value)


def _stated_numbers(text: str) -> str | None:
    """Return the part of *text* that has the numbers; None if it is no printed form of numbers."""
    ends = [0]
    for part in _FORM:
        found = part.match(text, ends[-1])
        assert found is not None, "each part can be empty"
        ends.append(found.end())
    return text[ends[1] : ends[2]] if ends[-1] == len(text) else None


def name_or_digits(text: str) -> str:
    """Return *text* as a name, or the number in it as digits; plain digits stay as they are, with zeros in front.

    Raises:
        ValueError: see `parse_label`; or the number is negative.
    """
    said, plain = parse_label(text), text.strip(_BLANK)
    if isinstance(said, str) or (plain.isascii() and plain.isdecimal()):
        return plain
    if said < 0:
        raise ValueError(f"has the class {said}, which is negative")
    return str(said)
