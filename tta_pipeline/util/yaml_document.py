"""The YAML of a benchmark file as plain values, without surprising conversions.

PyYAML follows YAML 1.1 and reads `on` and `no` as booleans, `010` as 8, `1:30` as 90 and `1e-3` as text. Here plain
values follow the core schema of YAML 1.2. Integers with a leading zero stay text, and fields read them as decimal.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

try:  # libyaml is ten times as fast; without it, PyYAML gives the same result
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

from tta_pipeline.errors import BenchmarkFileError

_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_PLAIN_VALUES = {
    _MERGE: (r"<<", "<"),
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "tag:yaml.org,2002:int": (r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
}


class _Loader(SafeLoader):
    """Loader that raises an error for a repeated field; PyYAML's loader silently drops the first value."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - filled below, once

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Return *node* as a dict; refuse repeated names and names that are not text."""
        seen: set[str] = set()
        for name in (key for key, _ in node.value if key.tag != _MERGE):
            line = _line(name)
            if name.tag != _TEXT:
                what = repr(name.value) if isinstance(name, yaml.ScalarNode) else "a list or a mapping"
                raise yaml.YAMLError(f"line {line} has {what} as a name instead of text in quotes")
            if name.value in seen:
                raise yaml.YAMLError(f"{name.value} occurs again in line {line}")
            seen.add(name.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


for _tag, (_pattern, _first) in _PLAIN_VALUES.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))


def read_document(path: Path) -> dict[str, Any]:
    """Return the fields of the benchmark file *path*.

    Raises:
        BenchmarkFileError: the file cannot be read, is not YAML, has a name that is not text, or holds no fields.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        content = yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except OSError as error:
        raise BenchmarkFileError(
            f"{path} cannot be read ({error.strerror}); expected a benchmark file: make it readable, or remove it"
        ) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8
        raise BenchmarkFileError(
            f"{path} is not valid YAML: {_on_one_line(error)}; expected YAML: correct that line"
        ) from error
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise BenchmarkFileError(
            f"{path} contains {found}; expected fields such as title, images, shards and experiments"
        )
    return content


def _line(part: yaml.Node) -> int:
    return part.start_mark.line + 1 if part.start_mark else 0


def _on_one_line(error: Exception) -> str:
    said = " ".join(str(error).replace('"<unicode string>", ', "").split())
    return said.replace("found character that", "found a tab, or another character, that")
