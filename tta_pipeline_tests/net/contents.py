"""Describes the files that a step leaves, by sha256 or by normalised lines, and the rows of the database."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import duckdb

from tta_pipeline_tests.net.normal import Normal, is_volatile

Seen = dict[Path, tuple[int, int]]
"""Size and modification time of each file."""
_IGNORED = re.compile(r"(^|/)(\.dagster|__pycache__|tmp|home)/|\.lock$|\.duckdb(\.wal)?$|/\.dagster-|\.log$")
_HASHED = (".tar", ".gz", ".parquet", ".safetensors", ".npy", ".npz", ".xxh64", ".JPEG", ".png", ".webp")
"""Endings of files whose bytes must not change, except the files below."""
_VARYING = re.compile(
    r"figures/.*png$|figures/(time|error_against_cost|throughput)|tuning\.png$|(verified|archive_index)\.json$"
)
"""Files that contain speeds, times or numbers of files."""
_NAMED_BY_DATA = re.compile(r"((?:/decoded|/normalisations|^decoded)/.*?)\b[0-9a-f]{64}\b")
_TABLES = re.compile(r"(leaderboard|cells)\.parquet$")
"""Files that are compared row by row, since some columns are speeds."""
_OWN_HASH = re.compile(rb'\{"sha256":"([0-9a-f]{64})","record":')
"""How a result record begins."""
_OF_SPEED = ("history_comparison", "regressions", "ingested")
"""Tables whose rows depend on speeds, or on the bytes of records with speeds: only their columns are recorded."""
_READ = (
    "", ".json", ".csv", ".md", ".markdown", ".table", ".tex", ".latex", ".bib", ".toml", ".yaml", ".txt", ".html",
    ".js", ".svg", ".css", ".sbatch",
)  # fmt: skip
"""Endings of files whose lines are recorded, with placeholders."""
_NUMBER = re.compile(r"\b[0-9a-f]{12,}\b|\d+([.,]\d+)*(e-?\d+)?")
"""Numbers, which are ignored in pages and drawings: the tables and the database have them too."""
_LOOSE = (".JPEG", ".jpg", ".png")
_MOST_LINES = 400


def seen(root: Path) -> Seen:
    """Return the files below *root* that a step may have made."""
    found = (path for path in root.rglob("*") if path.is_file() and not _IGNORED.search(str(path.relative_to(root))))
    return {path: (stat.st_size, stat.st_mtime_ns) for path in found for stat in [path.stat()]}


def made(root: Path, before: Seen, after: Seen, normal: Normal) -> dict[str, Any]:
    """Return the new and changed files below *root*, and the removed ones, by normalised name."""
    changed = {normal.text(str(path.relative_to(root))): path for path in after if before.get(path) != after[path]}
    gone = {normal.text(str(path.relative_to(root))): "gone" for path in before.keys() - after.keys()}
    for name, path in sorted(changed.items()):
        if path.suffix not in (*_HASHED, *_LOOSE):
            data = path.read_bytes()
            normal.learn(_sha256(data), name)
            if found := _OWN_HASH.match(data):
                normal.learn(found[1].decode(), f"record {name}")
    changed = {_NAMED_BY_DATA.sub(r"\1<...>", normal.text(name)): path for name, path in changed.items()}
    images = {name: path for name, path in changed.items() if path.suffix in _LOOSE and "figures" not in name}
    others = {name: _content(path, normal) for name, path in changed.items() if name not in images}
    return dict(sorted((others | _loose(images) | gone).items()))


def _loose(images: Mapping[str, Path]) -> dict[str, str]:
    """Return, for each folder of class folders, the number of images and one hash of all of them."""
    found = defaultdict(list)
    for name, path in sorted(images.items()):
        found[str(PurePosixPath(name).parent.parent)].append(f"{name} {_sha256(path.read_bytes())}")
    return {
        f"{name}/*/*": f"{len(each)} images, sha256 {_sha256('|'.join(each).encode())}" for name, each in found.items()
    }


def database(path: Path, normal: Normal) -> dict[str, Any]:
    """Return columns, types and rows of every table and view of the database at *path*."""
    with duckdb.connect(str(path), read_only=True) as connection:
        names = connection.execute("SELECT table_name FROM information_schema.tables ORDER BY table_name").fetchall()
        return {name: _table(connection, name, normal) for (name,) in names}


def _table(connection: duckdb.DuckDBPyConnection, name: str, normal: Normal) -> dict[str, Any]:
    found = _rows(connection.execute(f'SELECT * FROM "{name}"'), normal)
    return {**found, "rows": ["<...>"]} if name in _OF_SPEED else found


def _rows(answer: duckdb.DuckDBPyConnection, normal: Normal) -> dict[str, Any]:
    """Return the columns with their types, and the sorted rows without volatile columns."""
    columns = [(column[0], str(column[1])) for column in answer.description or ()]
    rows = [
        {
            column: normal.value(value, column)
            for (column, _), value in zip(columns, row, strict=True)
            if not is_volatile(column)
        }
        for row in answer.fetchall()
    ]
    return {
        "columns": [" ".join(column) for column in columns],
        "rows": sorted(json.dumps(row, sort_keys=True, default=str) for row in rows),
    }


def _content(path: Path, normal: Normal) -> Any:
    name = str(path)
    if _VARYING.search(name):
        return "made"
    if _TABLES.search(name):
        with duckdb.connect() as connection:
            return _rows(connection.execute("FROM read_parquet(?)", [name]), normal)
    if path.suffix in _HASHED:
        return f"sha256 {_sha256(path.read_bytes())}"
    if path.suffix in _READ and "/vendor/" not in name:
        lines = normal.said(path.read_text(errors="replace"))
        if path.suffix in (".html", ".js", ".svg"):
            lines = [_NUMBER.sub("<n>", line.replace(' class="best"', "")) for line in lines]
        if path.suffix == ".html" or path.name == "time.csv":  # rows are in the order of times
            lines = sorted("\n".join(lines).replace("<tr>", "\n<tr>").replace("</tr>", "</tr>\n").splitlines())
        text = "\n".join(lines)
        return lines if len(lines) < _MOST_LINES and len(text) < 100_000 else f"text {_sha256(text.encode())}"
    return "made"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
