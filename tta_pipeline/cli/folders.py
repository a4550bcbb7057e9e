"""What the command line does with whole folders: shard and adopt them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tta_pipeline.errors import ManifestError
from tta_pipeline.labels.class_map import ClassMap
from tta_pipeline.partitions import SEVERITIES, Cell
from tta_pipeline.progress import Reporter, Step
from tta_pipeline.shards.manifest import MANIFEST_FILE, read_manifest
from tta_pipeline.shards.read_back import INSTEAD_OF_ADOPTING, Published, adopt
from tta_pipeline.shards.verification import verify
from tta_pipeline.sources.existing_shards import class_names_in


def adopt_everything(root: Path, class_map: ClassMap | None, progress: Reporter) -> Iterator[Step[Published]]:
    """Adopt every folder with shards at or under *root*; those that have a manifest are verified and stay.

    Raises:
        ManifestError: there are no shards, a shard is damaged, or a set is not what its manifest says.
    """
    # Without the files that macOS leaves beside others, which have their names with two characters before.
    folders = sorted({path.parent for path in root.rglob("[!.]*.tar")})
    if not folders:
        raise ManifestError(f"no *.tar at or under {root}; expected shards")
    known = [folder for folder in folders if (folder / MANIFEST_FILE).exists()]
    for verdict in verify(known, progress):
        if verdict.problems:
            raise ManifestError(f"{'; '.join(verdict.problems)}. {INSTEAD_OF_ADOPTING}")
    # From all folders together: one that lacks a class must not shift the labels of the others.
    class_map = class_map or _class_map_of(known) or ClassMap(classes=class_names_in(folders))
    for number, folder in enumerate(folders, start=1):
        name, severity = folder.absolute().parts[-2:]
        is_cell = severity.isdecimal() and int(severity) <= max(SEVERITIES)
        cell = Cell(corruption=name, severity=int(severity)) if is_cell else Cell(corruption=severity, severity=0)
        if folder in known:
            cell = read_manifest(folder).cell  # verified above
        report = progress(str(folder), 0)
        adopted = adopt(folder, cell, report, benchmark_name=root.absolute().name, class_map=class_map)
        yield Step(number, len(folders), adopted)


def _class_map_of(folders: Sequence[Path]) -> ClassMap | None:
    """Return the class map of the shard sets in *folders*, or None if there are none.

    Raises:
        ManifestError: they have several.
    """
    found = {ClassMap(classes=read_manifest(folder).classes): folder for folder in folders}
    if len(found) > 1:
        one, other = list(found.values())[:2]
        raise ManifestError(
            f"found manifests of {len(found)} class maps, such as in {one} and {other}; expected one class map for all "
            "sets that are adopted at once: adopt the others separately"
        )
    return next(iter(found), None)
