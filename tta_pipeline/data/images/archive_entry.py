"""What the kinds of archives have in common: their members, and the rules for names and links."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from tta_pipeline.errors import ImagesError


class Entry(NamedTuple):
    """One file of an archive, or a link to one."""

    name: str
    link: str
    """Name of the link's target within the archive; empty for a file."""
    size_bytes: int
    """Size of the file's data in bytes; 0 for a link."""
    offset: int | None = None
    """Position of the file's data in the archive on disk; None for a link, in a compressed archive or in a zip."""


class Members(Protocol):
    """The files and links of one archive, read once; only requested data is held in memory."""

    def __iter__(self) -> Iterator[Entry]:
        """Yield every file and link, but no folders."""
        ...

    def read(self, size_bytes: int = -1) -> bytes:
        """Return up to *size_bytes* of the latest member's remaining bytes; all of them if *size_bytes* is negative."""
        ...


def require_inside(name: str, *, where: str) -> str:
    """Return the member's *name* without `.` parts; refuse a name that leads outside the archive *where*."""
    if name[:1] not in (".", "/") and "/." not in name and "//" not in name and name[-1:] != "/":
        return name
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ImagesError(
            f"{where}: the name {name!r} leads outside the archive; expected a name without '..': remove it from the "
            "archive"
        )
    if name.startswith("/") and parts:
        raise ImagesError(
            f"{where}: the name {name!r} is absolute; expected a path inside the archive: remove it from the archive"
        )
    return "/".join(parts)


def resolve_link(name: str, target: str, *, is_symbolic: bool, where: str) -> str:
    """Return the member that the link *name* leads to; symbolic links are relative to their own folder."""
    parts = name.split("/")[:-1] if is_symbolic else []
    outside = target.startswith("/") or not target
    for part in target.split("/"):
        if part == "..":
            outside = outside or not parts
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    if outside:
        raise ImagesError(
            f"{where}: {name} links to {target!r}, which is outside the archive; expected a link to a file in the "
            "archive: remove the link"
        )
    return "/".join(parts)


def require_md5(found: str, expected: str, *, where: object) -> None:
    """Refuse the archive *where* if its md5 is another than *expected*."""
    if found != expected.lower():
        raise ImagesError(f"{where} has md5 {found}; expected {expected}: download it again")
