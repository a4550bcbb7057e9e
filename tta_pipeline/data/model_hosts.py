"""Servers to which images may be sent, and the tokens for them: the user's environment alone says both.

A benchmark file can come from somebody else, and so can a whole project. Neither can add a host, since images may be
private, nor name a variable whose value would be sent.
"""

import os

from tta_pipeline.data.redirects import Server, listed_hosts, parse_server
from tta_pipeline.errors import SettingsError

MODEL_HOSTS_VARIABLE = "TTA_MODEL_HOSTS"
"""Environment variable with the hosts, `host` or `host:port`, separated by commas."""
MODEL_TOKENS_VARIABLE = "TTA_MODEL_TOKENS"
"""Environment variable with bearer tokens, `host=token` or `host:port=token`, separated by commas."""
_OF_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


def authorise(url: str) -> dict[str, str]:
    """Return the headers with which images may be sent to *url*: the token of its host, if there is one.

    Raises:
        SettingsError: the environment does not allow the host, or has a token that would be sent unencrypted.
    """
    server = parse_server(url)
    if server is None:
        raise SettingsError(f"{url} is no web address; expected an http or https URL: correct it")
    allowed = listed_hosts(MODEL_HOSTS_VARIABLE)
    if not server.names & allowed:
        raise SettingsError(
            f"{url}: found {server.host}:{server.port}, which is not among the hosts that may receive images "
            f"({', '.join(sorted(allowed)) or 'none'}); expected one of them: if you trust it with the images of this "
            f"benchmark, export {MODEL_HOSTS_VARIABLE}={server.host}:{server.port}"
        )
    token = _find_token(server)
    if token and server.scheme == "http" and server.host not in _OF_THIS_MACHINE:
        raise SettingsError(
            f"{url}: {MODEL_TOKENS_VARIABLE} has a token for this host, which http would send unencrypted; expected "
            "https: correct the address, or remove the token"
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def _find_token(server: Server) -> str:
    """Return the token for *server*; empty if there is none."""
    pairs = (pair.strip().partition("=") for pair in os.environ.get(MODEL_TOKENS_VARIABLE, "").split(","))
    tokens = {host.lower(): token for host, _, token in pairs}
    return next((tokens[name] for name in sorted(server.names, reverse=True) if name in tokens), "")
