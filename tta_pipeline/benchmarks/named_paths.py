"""The paths that a benchmark file names, and which of them do not exist."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.data.labels.label_files import is_shipped_list
from tta_pipeline.util.config_model import ConfigModel


def find_missing_images(benchmark: Benchmark) -> str:
    """Return the path of the source, needed to make shards, that does not exist; empty: all exist."""
    missing = (each for each in missing_paths(benchmark) if each[0].startswith("images."))
    return next((f"{field} is {path.absolute()}, which does not exist" for field, path in missing), "")


def missing_paths(benchmark: Benchmark) -> Iterator[tuple[str, Path]]:
    """Yield every path that the benchmark file names and that does not exist, with the field that names it."""
    return (each for each in named_paths(benchmark) if not (each[1].exists() or is_shipped_list(each[1])))


def named_paths(value: Any, field: str = "") -> Iterator[tuple[str, Path]]:
    """Yield every path that a benchmark file names, with the field that names it."""
    if isinstance(value, Path):
        yield field, value.expanduser()
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, ConfigModel):
        inner = value
    elif isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, tuple):
        inner = enumerate(value)
    for name, part in inner:
        yield from named_paths(part, f"{field}.{name}" if field else str(name))
