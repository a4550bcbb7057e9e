"""Names of images and classes: they end in tables and web pages, and so must be text."""

from pathlib import Path

from tta_pipeline.errors import PipelineError


def require_unicode(name: str, *, of: Path | str, error: type[PipelineError]) -> None:
    """Refuse a *name*, read from the file system or an archive, whose bytes are not UTF-8.

    Args:
        name: With surrogates for the bytes that are not, as Python reads it.
        of: The archive or folder that it stands in.
        error: What is raised.
    """
    if name.isascii():  # as nearly all are, and there are millions
        return
    try:
        name.encode()
    except UnicodeEncodeError:
        where = str(of).encode("utf-8", "backslashreplace").decode()
        found = name.encode("utf-8", "surrogateescape")
        raise error(
            f"{where}: found the name {found!r}, which is not UTF-8; expected names of images and classes that are: "
            "rename it, as `convmv -f latin1 -t utf8` does, and pack an archive anew"
        ) from None
