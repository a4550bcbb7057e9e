"""A list of labels that came later: a CSV file with the columns `key` and `class`."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from tta_pipeline.errors import ClassMapError
from tta_pipeline.util.files import read_file
from tta_pipeline.util.limits import MAX_LIST_BYTES

COLUMNS = ("key", "class")


def read_label_list(path: Path) -> Mapping[str, str]:
    """Return the class of each key in the CSV file at *path*, whose columns are `key` and `class`; others are skipped.

    Raises:
        ClassMapError: the file cannot be read, lacks a column, has an incomplete line, or a key has two lines.
    """
    try:
        text = read_file(path, limit_bytes=MAX_LIST_BYTES).decode("utf-8-sig")
        lines = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        missing = [name for name in COLUMNS if name not in (lines.fieldnames or ())]
        rows = [] if missing else [(lines.line_num, row["key"], row["class"]) for row in lines]
    except OSError as error:
        raise ClassMapError(f"{path} cannot be read ({error.strerror}); expected CSV: correct the path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ClassMapError(f"{path} is not CSV in UTF-8 ({error}); expected the columns key and class") from error
    if missing:
        raise ClassMapError(f"{path} has no column {' and no column '.join(missing)}; expected a first line key,class")
    found: dict[str, str] = {}
    for number, key, name in rows:
        if not key or not name:
            raise ClassMapError(f"{path}, line {number}: found key {key!r} and class {name!r}; expected both")
        if key in found:
            raise ClassMapError(f"{path}, line {number}: {key} has a line already; expected one for each key")
        found[key] = name
    if not found:
        raise ClassMapError(f"{path} has no line; expected one for each sample")
    return found
