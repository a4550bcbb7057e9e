"""Patterns of the names of shards, in a benchmark file."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _names(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not pattern or "/" in pattern:
            raise ValueError(f"{pattern!r} is no name of a shard; expected a name without folders, such as val-*.tar")
    return patterns


ShardFiles = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_names)]
"""One pattern or several: `*` is any text, and braces are lists and ranges."""
