"""What was measured while a shard set was made, in a file next to its manifest: the rows of the table `shard_sets`.

    <data root>/<benchmark>/shards/<corruption>/<severity>/measurements.json

The manifest is the identity of the set and has no times. These files are indexed whenever results are published.
"""

import hashlib
import json
from pathlib import Path

from tta_pipeline.domain.locations import SHARDS
from tta_pipeline.util.files import write_atomically
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.software_versions import software_versions

MEASUREMENTS_FILE = "measurements.json"


def write_shard_set_row(folder: Path, row: JsonObject, *, run_id: str, started_at: str) -> None:
    """Write *row*, the columns of `shard_sets`, next to the manifest in *folder*, with a hash of it."""
    content: JsonObject = {**row, "run_id": run_id, "started_at": started_at, "versions": dict(software_versions())}
    sealed = {"sha256": _hash_of(content), "row": content}
    write_atomically(folder / MEASUREMENTS_FILE, (json.dumps(sealed, indent=1) + "\n").encode())


def read_shard_set_rows(data_root: Path) -> tuple[str, tuple[JsonObject, ...]]:
    """Return the rows of all shard sets under *data_root*, and a hash of them.

    Damaged files are skipped, as are files in a folder that was copied or moved to the place of another set.
    """
    sha256 = hashlib.sha256()
    rows: list[JsonObject] = []
    for path in sorted(data_root.glob(f"*/{SHARDS}/**/{MEASUREMENTS_FILE}")):
        if row := _read_row(path, path.relative_to(data_root).parent):
            sha256.update(_hash_of(row).encode())
            rows.append({**row, "versions": json.dumps(row["versions"])})
    return sha256.hexdigest(), tuple(rows)


def _read_row(path: Path, place: Path) -> JsonObject | None:
    """Return the row in *path*, whose folder is *place* below the data root; None if damaged or foreign."""
    try:
        sealed = json.loads(path.read_bytes())
        row: JsonObject = sealed["row"]
        folder, cell = Path(str(row["benchmark"]), SHARDS), Path(str(row["corruption"]), str(row["severity"]))
        is_in_place = place in (folder / cell, folder / str(row["dataset"]) / cell)
        return row if is_in_place and _hash_of(row) == sealed["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _hash_of(row: JsonObject) -> str:
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()
