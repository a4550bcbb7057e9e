"""Locations of the shards in a benchmark file: a folder, or URLs."""

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import BeforeValidator

from tta_pipeline.data.remote_files import REMOTE_SCHEMES, expand_braces, scheme_of, validate_url
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import StreamError

_FOR_CELL = re.compile(r"\{(shift|severity)\}")
_LIKE_A_URL = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]+:/|({'|'.join(REMOTE_SCHEMES)}):", re.IGNORECASE)


def _parse_location(value: Any) -> Any:
    if isinstance(value, list | tuple):
        if not value or not all(isinstance(each, str) and _LIKE_A_URL.match(each) for each in value):
            raise ValueError(
                f"the list contains something other than URLs: {list(value)}; expected only URLs, or one folder "
                "without a list"
            )
        return tuple(map(_url, value))
    if not isinstance(value, str) or not _LIKE_A_URL.match(value):
        return value
    if scheme_of(value) == "file":
        return Path(unquote(value.removeprefix("file://")))
    return (_url(value),)


def _url(location: str) -> str:
    """Return *location* if its braces expand to valid URLs only."""
    try:
        for url in expand_braces(_FOR_CELL.sub("x", location)):
            validate_url(url, expected=REMOTE_SCHEMES)
    except StreamError as error:
        raise ValueError(str(error)) from None
    return location.rstrip("/")


ShardsLocation = Annotated[Path | tuple[str, ...], BeforeValidator(_parse_location)]
"""A folder, or URLs."""


def is_root_of_cells(urls: tuple[str, ...]) -> bool:
    """Return whether *urls* is a single folder with one folder per cell."""
    return len(urls) == 1 and not _FOR_CELL.search(urls[0]) and not urls[0].endswith(".tar")


def url_for(url: str, cell: Cell) -> str:
    """Return *url* with the shift and the severity of *cell* instead of `{shift}` and `{severity}`."""
    return url.replace("{shift}", cell.corruption).replace("{severity}", str(cell.severity))
