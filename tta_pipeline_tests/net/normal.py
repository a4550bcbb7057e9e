"""Replaces values that differ between two runs of the same code by placeholders: places, times, speeds, ids."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_VOLATILE = re.compile(
    r"""
    .*_s | .*_s_(min|max) | cpu_s_.* | .*_per_s.* | .*per\ s | .*_ms | ms_per_image | seconds
    | hours.* | expected | left | .*_?speed_ratio | num_earlier_alike
    | share | (data_wait|starved|lost|host_to_device)_share
    | peak_.* | .*_memory_mib | load_average | conditions | utility.* | .*_num_late
    | listing_version | .*_at | date | created | modified | mtime.* | ctime_ns | run_id | runs? | pid | port | inode
    | free.* | tag | size_bytes | megabytes | versions? | host | platform | python | around
    | code | code_sha256 | code_version | function_sha256 | fingerprint | fingerprint_parts | version_tags | identity
    """,
    re.VERBOSE,
)
"""Names of JSON fields and columns whose values depend on the clock, the machine or the text of the code."""
_ANY = "<...>"
_TEXT = (
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\x1b\[[0-9;]*m", ""),
    (r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?[+-]\d\d:?\d\d|Z)?)?", "<date>"),
    (r"\b\d\d:\d\d:\d\d\b", "<time>"),
    (r"(127\.0\.0\.1|localhost):\d+", r"\1:<port>"),
    (r"\b(pid|PID|process|Process)([ :=]+)\d+", r"\1\2<pid>"),
    (r"\b\d[\d,.]*(e-?\d+)? ?(ms|s|min|h|seconds|minutes|hours)\b", r"<n> s"),
    (r"\b\d[\d,.]* (\w+/s|GiB|MiB|GB free|free)", r"<n> \1"),
    (r"0x[0-9a-f]{6,}", "<address>"),
    (r"\((shards <sha256 of [^>]*>(, )?)+\)", "(shards <...>)"),  # of Croissant: in the order of their hashes
    (r"\{(None|BackfillPolicy\([^)]*\)): \[\].*\}", "{<policies>}"),  # of a warning of Dagster's: a set in any order
    (r"^(code) {2,}.*", r"\1  <...>"),  # of `why --all`: a hash of the text of the code
    (r"(line )\d+", r"\1<line>"),
    (r"\.py:\d+", ".py:<line>"),
    (r"(tmp|tta-reproduce-|tta_pipeline-generated-|\.unpublished-)[\w-]{6,}", r"\1<random>"),
)
_PASSING = re.compile(
    r"\d[\d,]* of \d[\d,]* [\w ]+, [\d,]+ \S+/s|epoch \d+ of \d+:|new records?$|waits? for|still |it is \d"
    r"|\d s left|(?!(\d+) of \1 )\b\d+ of \d+ pieces done"
)
"""Progress lines, which are printed every few seconds, so that a slow machine prints more of them."""
_LAST_OF_ALL = re.compile(r"\b(\d[\d,]*) of \1 cells, ")
_LONG_NUMBER = re.compile(r"-?\b\d+\.\d{12,}(e-?\d+)?\b")
_LEAST_HEX = 12
_HEX = re.compile(r"\b[0-9a-f]{12,64}\b")
_BETWEEN = {"  ": r" {2,}", " | ": r" *\| *", " & ": r" *& *", ",": ""}
"""Separators of a table's cells, each with its pattern; CSV has its own rules."""


class Normal:
    """Normalises the output and the files of a step.

    Args:
        places: Folders by the placeholder that stands for them, the innermost first.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self._files: dict[str, str] = {}

    def learn(self, sha256: str, name: str) -> None:
        """Replace *sha256*, or its beginning, by the name of the file *name*, whose content is normalised itself."""
        self._files.setdefault(sha256[:_LEAST_HEX], f"<sha256 of {name}>")

    def said(self, text: str) -> list[str]:
        """Normalise the output of a command: JSON by its keys, tables by their headings, other text by patterns."""
        try:
            answer = json.loads(text)
        except ValueError:
            return self.lines(text)
        if not isinstance(answer, dict | list):
            return self.lines(text)
        return json.dumps(self.value(answer), indent=1, sort_keys=True, ensure_ascii=False).splitlines()

    def lines(self, text: str) -> list[str]:
        """Return the lines of *text* without progress."""
        kept = [line.rstrip() for line in self.placed(text).splitlines() if not _is_passing(line)]
        return [self.text(line) for line in _without_columns(kept)]

    def text(self, text: str) -> str:
        """Return *text*, a line or a value, with placeholders."""
        text = self.placed(text)
        for pattern, instead in _TEXT:
            text = re.sub(pattern, instead, text)
        return _LONG_NUMBER.sub(lambda found: str(_rounded(float(found[0]))), text)

    def placed(self, text: str) -> str:
        """Return *text* with the placeholders of folders."""
        for placeholder, folder in self._places.items():
            text = text.replace(folder, placeholder)
        return _HEX.sub(lambda found: self._files.get(found[0][:_LEAST_HEX], found[0]), text)

    def value(self, value: Any, name: str = "") -> Any:
        """Normalise *value* of JSON or of a database, whose field or column is called *name*."""
        if name and is_volatile(name):
            return _ANY
        if isinstance(value, Mapping):
            if "sha256" in value and ("record" in value or any(map(is_volatile, value))):
                value = {**value, "sha256": _ANY}  # the hash of a record covers its times, too
            return {self.text(str(key)): self.value(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            values = [self.value(each) for each in value]
            return sorted(values, key=str) if _are_definitions(value) else values
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, float):
            return _rounded(value)
        return value if isinstance(value, int | type(None)) else self.text(str(value))

    def _string(self, text: str) -> Any:
        if text[:1] in ("{", "["):
            try:
                return self.value(json.loads(text))
            except ValueError:
                pass
        return self.text(text)


def _are_definitions(values: Sequence[Any]) -> bool:
    """Return whether *values* are assets or checks from `dg list`, whose order is arbitrary."""
    return all(isinstance(each, Mapping) and {"asset_key", "description"} <= each.keys() for each in values)


def _rounded(number: float) -> float:
    """Return *number* without the digits that depend on the order in which threads sum."""
    return float(f"{number:.12g}")


def is_volatile(name: str) -> bool:
    """Return whether values called *name* differ from run to run."""
    return bool(_VOLATILE.fullmatch(name.strip(" *\\").lower().replace("\\_", "_").replace(" ", "_")))


def _is_passing(line: str) -> bool:
    return bool(_PASSING.search(line)) and not _LAST_OF_ALL.search(line)


def _without_columns(lines: list[str]) -> Iterator[str]:
    """Yield *lines* with placeholders for the volatile columns of tables, and without the padding of columns."""
    between, volatile, width = "", set[int](), 0
    for line in lines:
        found = _heading(line)
        if found:
            between, volatile, width = found
        cells = _cells(line, between)
        if not between or len(cells) != width:
            yield line
            continue
        yield between.join(_ANY if at in volatile and not found else cell for at, cell in enumerate(cells))


def _cells(line: str, between: str) -> list[str]:
    if between == ",":
        return next(csv.reader([line]), [])
    return re.split(_BETWEEN[between], line.strip()) if between else []


def _heading(line: str) -> tuple[str, set[int], int] | None:
    """Return separator, volatile columns and width of *line* if it is a heading with volatile columns, else None."""
    for between in _BETWEEN:
        cells = _cells(line, between)
        volatile = {at for at, cell in enumerate(cells) if is_volatile(cell)}
        if len(cells) > 2 and volatile and all(re.fullmatch(r"[\w \\*:]*", cell) for cell in cells):
            return between, volatile, len(cells)
    return None
