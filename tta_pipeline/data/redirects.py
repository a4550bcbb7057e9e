"""Allowed redirects of a server: to itself, and to hosts that the user has named.

The user chose the locations in a benchmark file or on the command line. The server chooses a redirect: it could lead to
a service that only this machine can reach, and whose answers nobody intended to read.
"""

import os
import re
from typing import NamedTuple
from urllib.parse import urlsplit

REDIRECT_HOSTS_VARIABLE = "TTA_REDIRECT_HOSTS"
"""Environment variable with further hosts, `host` or `host:port`, separated by commas."""
_PORTS = {"http": 80, "https": 443}
_OF_THE_HUB = re.compile(r"(.+\.)?huggingface\.co|.+\.hf\.co")
"""Hosts of the Hugging Face Hub, which redirects requests for large files to other hosts of its own:
https://huggingface.co/docs/hub/storage-backends."""
_ODD = re.compile(r"[\\\s\x00-\x20\x7f]")
"""Characters at which libraries disagree about where the host ends."""


class _Server(NamedTuple):
    """The server at a URL."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


def redirect_problem(here: str, there: str, *, is_hub: bool = False) -> str:
    """Return why a redirect from the URL *here* to *there* is refused, and what to do; empty if it is allowed.

    A redirect may lead to the same scheme, host and port, to https in place of http on the same host, from a host of
    the Hub to another host of the Hub, and to hosts in `TTA_REDIRECT_HOSTS`; never to http in place of https.

    Args:
        here: URL that answered with a redirect.
        there: Absolute URL of the redirect's target.
        is_hub: Whether *here* belongs to the Hub, whatever its host is.
    """
    origin, target = _parse_server(here), _parse_server(there)
    if origin is None or target is None:
        return "a redirect to something other than a web address; expected an http or https URL: correct the server"
    if target in (origin, *([_Server("https", origin.host, 443)] if origin.port == _PORTS["http"] else [])):
        return ""
    if origin.scheme == "https" and target.scheme == "http":
        return f"a redirect from {origin} to {target}; expected no redirect from https to http: correct the server"
    if (is_hub or _is_of_hub(origin.host)) and target.scheme == "https" and _is_of_hub(target.host):
        return ""
    if {target.host, f"{target.host}:{target.port}"} & _allowed_hosts():
        return ""
    return (
        f"a redirect from {origin} to {target}; expected no redirect to another host or port: give the address there, "
        f"or, if you trust both, export {REDIRECT_HOSTS_VARIABLE}={target.host}:{target.port}"
    )


def _parse_server(url: str) -> _Server | None:
    """Return the server at *url*; None if it is no web address, or a host in it can be read in two ways."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    if _ODD.search(url) or parts.scheme not in _PORTS or not parts.hostname:
        return None
    return _Server(parts.scheme, parts.hostname, port)


def _allowed_hosts() -> set[str]:
    return {name.strip().lower() for name in os.environ.get(REDIRECT_HOSTS_VARIABLE, "").split(",")} - {""}


def _is_of_hub(host: str) -> bool:
    return _OF_THE_HUB.fullmatch(host) is not None
