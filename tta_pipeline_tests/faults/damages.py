"""Random damage to the files of a benchmark, of the kinds that disks, people and programs cause."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tta_pipeline.data.formats.tar_format import BLOCK_BYTES
from tta_pipeline.domain.locations import Locations

PARTS = {
    "shards": ("small/shards/*/*/*.tar",),
    "index": (
        "small/shards/*/*/samples.parquet", "small/shards/*/*/manifest.json", "small/shards/*/*/*checksum*",
        "small/shards/*/*/writer.json", "small/shards/*/*/verified.json", "small/class_map.json",
    ),
    "model": ("small/source_models/*",),
    "results": ("results/small/**/*-*.json", "results/small/plans/*.json"),
    "predictions": ("results/small/**/*.parquet",),
    "states": ("small/states/**/*.state",),
    "decoded": ("decoded/**/*.pixels*",),
    "database": ("metrics.duckdb",),
}  # fmt: skip
"""Files of a benchmark by part, as globs below the data root."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One damage that was done."""

    kind: str
    what: str


def files_of(locations: Locations, part: str) -> list[Path]:
    """Return the non-empty files of *part*."""
    found = (path for pattern in PARTS[part] for path in locations.root.glob(pattern))
    return sorted(path for path in found if path.is_file() and path.stat().st_size)


def damaged(locations: Locations, kind: str, rng: random.Random) -> Damage:
    """Do a random damage of *kind* to the files at *locations*."""
    return Damage(kind=kind, what=KINDS[kind](locations, rng))


def _any_file(locations: Locations, rng: random.Random, parts: Sequence[str] = tuple(PARTS)) -> Path:
    return rng.choice(files_of(locations, rng.choice([part for part in parts if files_of(locations, part)])))


def _named(path: Path, locations: Locations) -> str:
    return str(path.relative_to(locations.root))


def _with_times_restored(path: Path, change: Callable[[bytearray], None]) -> None:
    status, data = path.stat(), bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _flip_in(parts: Sequence[str]) -> Callable[[Locations, random.Random], str]:
    def flip(locations: Locations, rng: random.Random) -> str:
        path = _any_file(locations, rng, parts)
        place = rng.randrange(path.stat().st_size)

        def one_bit(data: bytearray) -> None:
            data[place] ^= 1 << rng.randrange(8)

        _with_times_restored(path, one_bit)
        return f"{_named(path, locations)}, byte {place}"

    return flip


def _swap_blocks(locations: Locations, rng: random.Random) -> str:
    path = _any_file(locations, rng, ["shards", "decoded"])
    one, other = rng.sample(range(path.stat().st_size // BLOCK_BYTES), 2)

    def swap(data: bytearray) -> None:
        first, second = (slice(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES) for number in (one, other))
        data[first], data[second] = data[second], data[first]

    _with_times_restored(path, swap)
    return f"{_named(path, locations)}, blocks {one} and {other}"


def _swap_files(locations: Locations, rng: random.Random) -> str:
    part = rng.choice([part for part in PARTS if len(files_of(locations, part)) > 1])
    one = rng.choice(files_of(locations, part))
    alike = [path for path in files_of(locations, part) if path.suffix == one.suffix and path != one]
    other = rng.choice(alike or [path for path in files_of(locations, part) if path != one])
    _exchange(one, other)
    return f"{_named(one, locations)} and {_named(other, locations)}"


def _swap_folders(locations: Locations, rng: random.Random) -> str:
    levels = (
        "small/shards/*/*", "results/small/*-*", "results/small/*", "small/states/*/*",
    )  # fmt: skip
    folders = [[path for path in sorted(locations.root.glob(level)) if path.is_dir()] for level in levels]
    one, other = rng.sample(rng.choice([found for found in folders if len(found) > 1]), 2)
    _exchange(one, other)
    return f"{_named(one, locations)} and {_named(other, locations)}"


def _exchange(one: Path, other: Path) -> None:
    aside = one.with_name(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _cut(locations: Locations, rng: random.Random) -> str:
    path = _any_file(locations, rng)
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{_named(path, locations)} to {size} bytes"


def _remove(locations: Locations, rng: random.Random) -> str:
    path = _any_file(locations, rng)
    for _ in range(rng.randrange(3)):
        if path.parent not in (locations.root, locations.root / "small", locations.root / "results"):
            path = path.parent
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return _named(path, locations)


def _edit(locations: Locations, rng: random.Random) -> str:
    """Change one number in a JSON file, as a person would, but restore the file's times."""
    path = rng.choice([path for part in ("results", "index", "model") for path in files_of(locations, part)
                       if path.suffix == ".json"])  # fmt: skip
    content = json.loads(path.read_bytes())
    places = list(_numbers(content))
    if not places:
        return f"{_named(path, locations)}, which has no number"
    holder, name = rng.choice(places)
    holder[name] = rng.choice([holder[name] + 1, holder[name] / 2, 0, -1, 1e9])

    def write(data: bytearray) -> None:
        data[:] = json.dumps(content).encode()

    _with_times_restored(path, write)
    return f"{_named(path, locations)}, {name} is {holder[name]}"


def _numbers(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield, for every number in JSON, the object or list that holds it, and its key or index."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        if isinstance(inner, int | float) and not isinstance(inner, bool):
            yield value, name
        else:
            yield from _numbers(inner)


def _replace_by_another(locations: Locations, rng: random.Random) -> str:
    """Replace a file by a copy of another of its kind, such as a stale state, or the result of another cell."""
    part = rng.choice([part for part in ("states", "states", "results", "predictions", "decoded", "index")
                       if len(files_of(locations, part)) > 1])  # fmt: skip
    one, other = rng.sample(files_of(locations, part), 2)
    shutil.copy2(one, other)
    return f"{_named(other, locations)} by {_named(one, locations)}"


KINDS: dict[str, Callable[[Locations, random.Random], str]] = {
    "flip in a shard": _flip_in(["shards"]),
    "flip in what describes shards": _flip_in(["index"]),
    "flip in a result or its predictions": _flip_in(["results", "predictions"]),
    "flip in a state": _flip_in(["states"]),
    "flip in decoded cells": _flip_in(["decoded"]),
    "flip in model or database": _flip_in(["model", "database"]),
    "swap of blocks": _swap_blocks,
    "swap of files": _swap_files,
    "swap of folders": _swap_folders,
    "cut": _cut,
    "edit": _edit,
    "removal": _remove,
    "another in its place": _replace_by_another,
}
