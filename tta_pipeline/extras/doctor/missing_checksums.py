"""Finds shard sets whose samples have no fast checksums."""

from collections.abc import Iterator

from tta_pipeline.extras.doctor.finding import Finding, first_few, note, ok
from tta_pipeline.shards.checksums import CHECKSUMS_FILE
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.plurals import count_of

_SETS = ("*/shards/*/*", "*/shards/*/*/*")
"""Folders of shard sets; those of a benchmark with several shift sets lie one level deeper."""


def check_shard_checksums(locations: Locations) -> Iterator[Finding]:
    """Look for shard sets whose file of checksums is gone."""
    subject = "checksums"
    folders = [path.parent for pattern in _SETS for path in sorted(locations.root.glob(f"{pattern}/{MANIFEST_FILE}"))]
    missing = [folder for folder in folders if not (folder / CHECKSUMS_FILE).is_file()]
    if missing:
        yield note(
            subject,
            f"{len(missing):,} of {len(folders):,} shard sets have no fast checksums of their samples, so that reading "
            f"them compares each sample's sha256, which takes longer: {first_few(missing)}",
            f"tta-pipeline shards verify {locations.root}",
        )
    else:
        yield ok(
            subject, f"{count_of(len(folders), 'shard set')}, all with checksums" if folders else "no shard sets yet"
        )
