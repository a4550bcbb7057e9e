"""Patterns of shard names in a benchmark file."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _names(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not pattern or "/" in pattern:
            raise ValueError(f"{pattern!r} is not a shard name; expected a name without folders, such as val-*.tar")
    return patterns


ShardPatterns = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_names)]
"""One pattern or several: `*` matches any text, and braces are lists and ranges."""
