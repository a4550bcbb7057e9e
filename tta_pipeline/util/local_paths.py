"""Paths on this machine: a URL would become a folder called `s3:`."""

import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<place>.*)", re.DOTALL)
_COPY = {"s3": "aws s3 cp", "gs": "gcloud storage cp"}


def url_problem(text: str, *, is_read: bool = False) -> str:
    """Return what is wrong with *text* if it is a URL, with the line to type; empty if it is a path.

    Args:
        text: What should be a path on this machine; two slashes of a URL may have become one in a `Path`.
        is_read: Whether the path is read, not written.
    """
    found = _URL.match(text)
    if found is None:
        return ""
    scheme = found["scheme"].lower()
    if scheme == "file":
        return f"found the URL {text!r}; expected a path: {unquote(urlsplit(text).path)}"
    url = f"{scheme}://{found['place']}"
    here = PurePosixPath(found["place"]).name or "out"
    whole = "" if PurePosixPath(here).suffix else "--recursive "  # a name with a suffix is a file's
    if is_read:
        fetch = f"curl -LO {url}" if scheme.startswith("http") else f"{_COPY.get(scheme, '')} {whole}{url} {here}"
        how = f"type {fetch}, and name {here}" if scheme.startswith("http") or scheme in _COPY else "fetch it first"
        return f"found the URL {url}; expected a path on this machine: {how}"
    copy = f"type {_COPY[scheme]} {whole}{here} {url}" if scheme in _COPY else "copy it there"
    return (
        f"found the URL {url}; expected a path on this machine, since URLs are only read: write to {here}, then {copy}"
    )
