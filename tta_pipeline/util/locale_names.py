"""Names of files that Python reads in another encoding than they are in: that of the locale."""

import os
import sys


def misread_sentence(name: str) -> str:
    """Return what to do if *name*, of a file, is in UTF-8 and Python reads names in another encoding; else nothing."""
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        return ""
    try:
        read = os.fsencode(name).decode()
    except UnicodeError:
        return ""
    return (
        f"the name {read!r} in UTF-8, and Python reads names as {encoding} here; expected UTF-8: "
        "type export PYTHONUTF8=1, and the command again"
    )
