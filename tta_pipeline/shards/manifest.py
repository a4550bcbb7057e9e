"""The manifest of a shard set: its verified content, and the position of every sample.

<corruption>/<severity>/
  fog-5-00000.tar ...   the shards
  writer.json           the writer's record of the shards; present only if the writer finished
  samples.parquet       for each sample: key, source name, label, shard, offset, size_bytes, sha256
  checksums.xxh64       for each sample: the checksum that is compared at every read; see `checksums.py`
  manifest.json         facts of the set and of each shard, and the hash of samples.parquet
  measurements.json     what making the set cost, for the table `shard_sets`
  verified.json         the shards that were hashed on this machine and match the manifest; safe to remove
  remote.json           instead of the shards: their URLs, and the server's facts about each
"""

import json
from pathlib import Path, PurePosixPath
from typing import TypeVar

from pydantic import ValidationError

from tta_pipeline.domain.cells import TRAIN
from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.expected_shard_set import ANYTHING, ExpectedShardSet
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.config_model import ConfigModel

MANIFEST_FILE = "manifest.json"

WRITER_FILE = "writer.json"

Record = TypeVar("Record", bound=ConfigModel)


def read_manifest(folder: Path, belonging: ExpectedShardSet = ANYTHING) -> Manifest:
    """Read the manifest of *folder*.

    Raises:
        ManifestError: the manifest is missing, damaged or of another format, or does not fit *belonging*.
    """
    path = folder / MANIFEST_FILE
    cell, benchmark = belonging.cell, belonging.benchmark
    if cell and benchmark and not path.exists():
        which = "" if cell == TRAIN else f" --cell '{cell.key}'"
        raise ManifestError(
            f"There are no shards for {cell.key} of {benchmark} yet; expected a shard set in {folder}: run "
            f"`tta-pipeline run {benchmark}{which}`"
        )
    manifest = read_record(path, Manifest)
    belonging.require(manifest, path)
    return manifest


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read `writer.json` or `manifest.json`.

    Raises:
        ManifestError: the file is missing, not JSON, or not of this kind and version.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ManifestError(
            f"{path} cannot be read ({error.strerror}); expected the folder of one cell's shards, such as "
            f"shards/fog/5: pass that folder, materialize this cell's {_asset_name(path)}, or make shards from images "
            "with `tta-pipeline shards make`"
        ) from error
    return parse_record(data, path, kind)


def parse_record(data: bytes, path: str | Path, kind: type[Record]) -> Record:
    """Return the record in *data*, the content of the file at *path*, a URL or a path.

    Raises:
        ManifestError: *data* is not JSON, or not of this kind and version.
    """
    try:
        return kind.model_validate(json.loads(data, object_pairs_hook=_unique_fields, parse_constant=_refuse_constant))
    except ValidationError as error:
        problems = error.errors()
        problem = next((each for each in problems if each["loc"] == ("version",)), problems[0])
        field = f"the field {'.'.join(map(str, problem['loc']))}" if problem["loc"] else "its content"
        raise ManifestError(
            f"{path}: {field} is {problem['input']!r:.80} ({problem['msg']}); expected a file written by this version "
            f"of tta_pipeline: {_remedy(path)}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise ManifestError(f"{path} is damaged ({error}); expected intact JSON: {_remedy(path)}") from None


def _remedy(path: str | Path) -> str:
    if "://" in str(path):
        return "ask its publisher to make it again with this version, or copy the shards and index them here"
    if _asset_name(path) == "tar_shards":
        return "rematerialize this cell's tar_shards"
    return (
        "make it again with `tta-pipeline run BENCHMARK --part prepare`, which rewrites no shard (outside a data root: "
        "remove this file, then repeat `shards make` or `shards index`)"
    )


def _asset_name(path: str | Path) -> str:
    return "tar_shards" if PurePosixPath(path).name == WRITER_FILE else "shard_manifest"


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a field appears twice")
    return dict(pairs)


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a number in JSON")
