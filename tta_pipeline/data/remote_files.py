"""Files at http, https, s3, gs, az and hf URLs: checks of URLs, facts about files, listings, and their bytes.

A URL names a file without chain, pipe or shell, and contains no secret. Keys, profiles and endpoints come from the
usual places: AWS_* variables and the profiles of ~/.aws, GOOGLE_* and AZURE_* variables, ~/.netrc, and HF_TOKEN and
HF_ENDPOINT for the Hub.
"""

import json
import os
import re
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from http.client import HTTPResponse
from netrc import NetrcParseError, netrc
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tta_pipeline.errors import StreamError
from tta_pipeline.util.braces import expand
from tta_pipeline.util.daemon_threads import run_ahead

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta
    from obstore.store import ObjectStore, S3Credential

REMOTE_SCHEMES = ("http", "https", "s3", "gs", "az", "hf")
_MAX_EXPANDED = 10_000
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_REFUSED = re.compile(r"::|[\s|{}?#\\@$`<>\"]|[^\x21-\x7e]|/\.\.?(/|$)")
_REFUSED_OF_HUB = re.compile(_REFUSED.pattern.replace("@", ""))  # hf://datasets/owner/name@revision
_MOST_LISTED = 100_000
_LINK = re.compile(r"""<a\s(?:[^>]*?\s)?href=["']([^"']+)""", re.IGNORECASE)
_NUM_RETRIES = 4
_FIRST_PAUSE_S = 0.2
"""Pause before the second attempt; it doubles with each further one."""
_SILENCE_S = 30.0
"""Seconds without a byte after which a connection counts as dropped."""
_NUM_AT_ONCE = 16
_AGENT = "tta-pipeline"
_OTHER_RANGE = re.compile(r"RangeNotSupported|UnexpectedRange|status code: 416")
_REASONS = (
    (re.compile(r"TimedOut|kind: Timeout"), "no answer in time"),
    (re.compile(r"kind: Connect"), "no connection"),
    (re.compile(r"kind: (Interrupted|Decode)"), "an answer that breaks off"),
)
"""Meaning of each obstore error, whose text is not repeated: it may contain headers and signed URLs."""


class NoSuchFileError(StreamError):
    """The server reports that it has no such file."""


class NoAnswerError(StreamError):
    """A server does not return the expected response, or none."""


class OtherAnswerError(NoAnswerError):
    """The server returns other bytes of a file than requested, such as the whole file, or too few."""


class FileFacts(NamedTuple):
    """A server's facts about a file; if one of them changes, the file has changed."""

    size_bytes: int
    """Size of the whole file."""
    tag: str
    """The ETag or, without it, the time of the last change; empty if the server sends neither."""


def scheme_of(location: str) -> str:
    """Return the scheme of *location* in lower case; empty if *location* is a path."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else ""


def validate_url(location: str, *, expected: tuple[str, ...] = REMOTE_SCHEMES) -> str:
    """Return the URL *location* without a trailing slash.

    Raises:
        StreamError: its scheme is none of *expected*, or it contains characters that are not allowed.
    """
    scheme = scheme_of(location)
    rest = location[len(scheme) + 1 :]
    if scheme not in expected or not rest.startswith("//"):
        raise StreamError(
            f"the location begins with '{scheme}:', which is not supported; expected a folder, or a URL with "
            f"{', '.join(expected)}: if it is a folder with a colon in its name, write ./ before it"
        )
    rest = rest[2:].rstrip("/")
    if refused := (_REFUSED_OF_HUB if scheme == "hf" else _REFUSED).search(rest):
        raise StreamError(
            f"the {scheme} URL contains {refused[0]!r}; expected only a host or bucket and a path: put keys into the "
            "environment or ~/.netrc, and remove queries, chains and patterns"
        )
    if scheme != "file" and (not rest or rest.startswith("/")):
        raise StreamError(f"the URL is {location}; expected a host or bucket after {scheme}://: add it")
    return f"{scheme}://{rest}"


def expand_braces(location: str) -> tuple[str, ...]:
    """Return the locations that a URL with braces expands to, in order: ten for `s3://b/{fog,snow}/{1..5}`.

    A path on disk is a single location: its braces are plain characters, and the shell expands its own.

    Raises:
        StreamError: the braces are not closed, or expand to more than 10,000 locations.
    """
    if "://" not in location:
        return (location,)
    try:
        found = expand(location, most=_MAX_EXPANDED)
    except ValueError:
        raise StreamError("the URL has unbalanced braces; expected {a,b} or {1..5}: close them") from None
    if not found:
        raise StreamError(
            f"the braces stand for more than {_MAX_EXPANDED} locations; expected one per cell: correct them"
        )
    return found


def fetch_file_facts(urls: Sequence[str]) -> list[FileFacts]:
    """Return the servers' facts about the files at *urls*.

    Raises:
        NoSuchFileError: a server has no such file.
        StreamError: a server does not send the file's size.
    """
    return list(run_ahead(_fetch_facts, urls, num_at_once=_NUM_AT_ONCE))


def read_whole(url: str) -> bytes:
    """Return the content of the file at *url*.

    Raises:
        NoSuchFileError: the server has no such file.
        StreamError: the file cannot be read.
    """

    def read(url: str) -> bytes:
        with naming_faults(url, "a file"):
            return bytes(_request(url).bytes())

    (data,) = run_ahead(read, [url])
    return data


def read_beginning(url: str, size_bytes: int, facts: FileFacts) -> bytes:
    """Return the first *size_bytes* of the file at *url*, which must have these *facts*."""
    with naming_faults(url, f"{size_bytes} bytes"):
        data = bytearray()
        for piece in request_same_file(url, facts).stream(min_chunk_size=2**18):
            data += piece
            if len(data) >= size_bytes:
                break
        return bytes(data[:size_bytes])


def list_folder(url: str) -> tuple[str, ...]:
    """Return the names of the files in the folder at *url*: of a bucket or the Hub, or the links of a web page."""
    with naming_faults(url, "a folder that can be listed"):
        if _is_bucket(url):
            import obstore

            store, path = _open_store(url)
            names = [found["path"] for found in obstore.list_with_delimiter(store, f"{path}/")["objects"]]
        elif urlsplit(url).scheme == "hf":
            names = _list_hub(url)
        else:
            below = unquote(urlsplit(url).path)
            with _open_page(f"{_quote_path(url)}/", _authorization(url)) as page:
                text = page.read().decode("utf-8", "ignore")
            links = (unquote(urlsplit(urljoin(f"{url}/", link)).path) for link in _LINK.findall(text))
            names = [path for path in links if path.rstrip("/").startswith(f"{below}/")]
    return tuple(sorted({name.rstrip("/").rpartition("/")[2] for name in names}))


def describe_change(found: FileFacts, expected: FileFacts) -> str:
    """Return how *found* differs from *expected* in words; empty if they agree."""
    if found.size_bytes != expected.size_bytes:
        return f"found {found.size_bytes} bytes; expected {expected.size_bytes}"
    if found.tag and expected.tag and found.tag != expected.tag:
        return f"found the tag {found.tag}; expected {expected.tag}"
    return ""


def request_same_file(url: str, facts: FileFacts, *, start: int = 0) -> "GetResult":
    """Return the server's response with the bytes of the file at *url* from *start* on, none of which is read yet.

    A path is a URL here.

    Raises:
        OtherAnswerError: the response has other content, but the server still has the file: request it again.
        StreamError: the file has another size or tag than in *facts*.
        FileNotFoundError, obstore.exceptions.BaseError: the server rejected all attempts or did not respond.
    """
    answer = _request(url, start)
    if problem := describe_change(_facts_of(answer.meta), facts):
        changed = describe_change(_fetch_facts(url), facts)
        raise (StreamError if changed else OtherAnswerError)(
            f"{url}: {changed or problem}: the file has changed on the server: restart; for shards, materialize "
            "tar_shards"
        )
    return answer


def _request(url: str, start: int = 0) -> "GetResult":
    import obstore

    return obstore.get(*_open_store(url), options={"range": {"offset": start}} if start else {})


def _facts_of(meta: "ObjectMeta") -> FileFacts:
    changed = meta["last_modified"]
    is_stated = changed > datetime.fromtimestamp(0, UTC)
    return FileFacts(meta["size"], meta["e_tag"] or (changed.isoformat() if is_stated else ""))


@contextmanager
def naming_faults(url: str, expected: str) -> Iterator[None]:
    """Turn an error of a server into an error that describes what was found at *url*."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (FileNotFoundError, HTTPError, URLError, BaseError) as error:
        if isinstance(error, FileNotFoundError) or getattr(error, "code", None) == 404:
            raise NoSuchFileError(
                f"{url} does not exist; expected {expected}: check the address, and your permission to read it"
            ) from None
        kind = OtherAnswerError if _OTHER_RANGE.search(str(error)) else NoAnswerError
        raise kind(
            f"{url} cannot be read ({_reason(error)}); expected {expected}: check the address, and your permission to "
            "read it"
        ) from None


def _reason(error: Exception) -> str:
    """Return in words what *error* means."""
    if isinstance(error, HTTPError):
        return f"status {error.code}"
    text = str(error)
    if status := re.search(r"status code: (\d{3})", text):
        return f"status {status[1]}"
    return next((reason for sign, reason in _REASONS if sign.search(text)), type(error).__name__)


def _fetch_facts(url: str) -> FileFacts:
    import obstore

    with naming_faults(url, "a file"):
        return _facts_of(obstore.head(*_open_store(url)))


def _open_store(url: str) -> "tuple[ObjectStore, str]":
    """Return the store that has the file at *url*, and the path of the file in it."""
    if _first_process() != os.getpid():
        raise StreamError(
            f"{url} was opened in a process that was forked after a request to a server; expected another start "
            "method: use multiprocessing_context='forkserver', or open the shards before the workers start"
        )
    if not scheme_of(url):
        from obstore.store import LocalStore

        folder, _, name = url.rpartition("/")
        return LocalStore(folder), name
    parts = urlsplit(url)
    if _is_bucket(url):
        return _bucket(parts.scheme, parts.netloc), parts.path.lstrip("/")
    address = _hub_address(url) if parts.scheme == "hf" else _quote_path(url)
    secret = _authorization(url)
    if secret:  # it must not follow a redirect to another server
        with _open_page(address, {**secret, "Range": "bytes=0-0"}) as page:
            final = page.url
        return _web_server(final, None if urlsplit(final)[:2] != urlsplit(address)[:2] else secret["Authorization"]), ""
    parts = urlsplit(address)
    return _web_server(f"{parts.scheme}://{parts.netloc}"), unquote(parts.path).lstrip("/")


@cache
def _first_process() -> int:
    """Return the process whose threads serve the network; a process forked later would wait for them forever."""
    return os.getpid()


@lru_cache(maxsize=64)  # signed addresses are new each time
def _web_server(address: str, authorization: str | None = None) -> "ObjectStore":
    from obstore.store import HTTPStore

    settings = _settings()
    if authorization:
        settings["client_options"]["default_headers"] = {"Authorization": authorization}
    return HTTPStore(address, **settings)


@cache
def _bucket(scheme: str, name: str) -> "ObjectStore":
    from obstore.store import S3Store, from_url

    if scheme == "s3":
        return S3Store(name, **_settings(), **_find_aws())
    return from_url(f"{scheme}://{name}", **_settings())


def _find_aws() -> dict[str, Any]:
    """Return the endpoint, region and keys that botocore finds, as in ~/.aws; without it, obstore looks for AWS_*."""
    try:
        from botocore.session import Session
    except ImportError:
        return {}
    session = Session()
    region = session.get_config_variable("region")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    endpoint = endpoint or session.get_scoped_config().get("endpoint_url")
    found = {name: value for name, value in {"region": region, "endpoint": endpoint}.items() if value}
    credentials = session.get_credentials()
    if credentials is None:  # a public bucket
        return {**found, "skip_signature": True}

    def keys() -> "S3Credential":
        """Return the current keys; botocore renews expiring keys."""
        now = credentials.get_frozen_credentials()
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(UTC) + timedelta(minutes=10),
        }

    return {**found, "credential_provider": keys}


def _settings() -> dict[str, Any]:
    pause = timedelta(seconds=_FIRST_PAUSE_S)
    return {
        "client_options": {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=10),
            "read_timeout": timedelta(seconds=_SILENCE_S),
            "timeout": timedelta(days=1),  # of a whole shard
            "user_agent": _AGENT,
        },
        "retry_config": {
            "max_retries": _NUM_RETRIES,
            "backoff": {"init_backoff": pause, "max_backoff": 8 * pause, "base": 2},
            "retry_timeout": timedelta(days=1),
        },
    }


class _Redirects(HTTPRedirectHandler):
    """Follows redirects; a secret stays with the server that it is for."""

    def redirect_request(self, req: Request, *others: Any) -> Request | None:
        following = super().redirect_request(req, *others)
        if following is not None and urlsplit(following.full_url)[:2] != urlsplit(req.full_url)[:2]:
            following.remove_header("Authorization")
        return following


def _open_page(address: str, headers: dict[str, str]) -> HTTPResponse:
    """Request *address* from a web server, whose response may lack the length that obstore needs."""
    request = Request(address, headers={"User-Agent": _AGENT, **headers})  # noqa: S310 - http or https, see `validate_url`
    attempt = 0
    while True:
        try:
            return cast(HTTPResponse, build_opener(_Redirects).open(request, timeout=_SILENCE_S))
        except URLError as error:
            if attempt == _NUM_RETRIES or (isinstance(error, HTTPError) and error.code < 500):
                raise
        time.sleep(_FIRST_PAUSE_S * 2**attempt)
        attempt += 1


def _authorization(url: str) -> dict[str, str]:
    """Return the header with the Hub's token, or the name and password that ~/.netrc has for the server."""
    if urlsplit(url).scheme == "hf":
        token = os.environ.get("HF_TOKEN")
        return {"Authorization": f"Bearer {token}"} if token else {}
    try:
        found = netrc(os.environ.get("NETRC")).authenticators(urlsplit(url).hostname or "")
    except FileNotFoundError:
        return {}
    except NetrcParseError as error:
        raise StreamError(
            f"~/.netrc cannot be read for {url}: {error}; expected a valid ~/.netrc: fix the line that the error "
            "names, or remove the file"
        ) from None
    if found is None:
        return {}
    return {"Authorization": f"Basic {b64encode(f'{found[0]}:{found[2]}'.encode()).decode()}"}


def _list_hub(url: str) -> list[str]:
    """Return the paths of the files in a folder of the Hub, which lists a thousand on a page."""
    address, names = _hub_address(url, listing=True), list[str]()
    while address and len(names) < _MOST_LISTED:
        with _open_page(address, _authorization(url)) as page:
            names += [entry["path"] for entry in json.load(page) if entry["type"] == "file"]
            link = re.search(r'<([^>]+)>;\s*rel="next"', page.headers.get("Link", ""))
        following = urljoin(address, link[1]) if link else ""
        if following and urlsplit(following)[:2] != urlsplit(address)[:2]:  # it would get the token
            raise StreamError(
                f"{url} continues its listing at {following}, on another server; expected the same server: name the "
                "shards in the URL instead"
            )
        address = following
    return names


def _is_bucket(url: str) -> bool:
    return urlsplit(url).scheme in ("s3", "gs", "az")


def _quote_path(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}{slash}{quote(path, safe='/%')}"


def _hub_address(url: str, *, listing: bool = False) -> str:
    """Return the web address of `hf://datasets/<owner>/<name>[@<revision>]/<path>`, or of its listing."""
    parts = url.removeprefix("hf://").split("/")
    kind = f"{parts.pop(0)}/" if parts[0] in ("datasets", "spaces") else ""
    if len(parts) < 2:
        raise StreamError(f"the URL is {url}; expected hf://datasets/<owner>/<name>/<path>")
    name, _, revision = parts[1].partition("@")
    repository, path = f"{parts[0]}/{name}", quote("/".join(parts[2:]))
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if listing:
        return f"{endpoint}/api/{kind or 'models/'}{repository}/tree/{revision or 'main'}/{path}"
    return f"{endpoint}/{kind}{repository}/resolve/{revision or 'main'}/{path}"
