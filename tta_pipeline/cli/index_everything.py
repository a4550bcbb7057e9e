"""Manifests for whole folders of shards made by others: the work of `tta-pipeline shards index`."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tta_pipeline.data.datasets.dataset import MAX_SEVERITY
from tta_pipeline.data.images.existing_shards import read_class_names
from tta_pipeline.data.images.shard_files import (
    find_one_set,
    find_shard_files,
    is_tar_like,
    select_names,
    unpack,
    unpacked_path,
)
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.data.labels.label_files import read_devkit_ids
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ManifestError
from tta_pipeline.loading.shards_at_url import adopt_url
from tta_pipeline.shards.adoption import ADOPTION_REFUSED_ADVICE, adopt
from tta_pipeline.shards.manifest import MANIFEST_FILE, read_manifest
from tta_pipeline.shards.set_contents import PublishedShardSet
from tta_pipeline.shards.verification import verify_shard_sets
from tta_pipeline.util.progress import Reporter, Step
from tta_pipeline.util.short_lists import abbreviate_list


def index_everything(
    root: Path,
    class_map: ClassMap | None,
    progress: Reporter,
    *,
    files: tuple[str, ...] = (),
    devkit: Path | None = None,
    unpacks: bool = False,
) -> Iterator[Step[PublishedShardSet]]:
    """Adopt every folder with shards at or under *root*; folders with a manifest are verified and left unchanged.

    Args:
        root: Folder of shards, or of folders with shards.
        class_map: Labels; None: the class map of the existing manifests, otherwise the classes of all folders.
        progress: Reports the samples as they are read.
        files: Patterns of the names of the shards to index; empty: all shards of a folder, which must form one set.
        devkit: The devkit's `meta.mat`, if the numbers in the shards are its ids; None: they are labels.
        unpacks: Whether to write a tar next to each compressed shard.
    """
    folders = _folders(root, files)
    known = [folder for folder in folders if (folder / MANIFEST_FILE).exists()]
    for verdict in verify_shard_sets(known, progress):
        if verdict.problems:
            raise ManifestError(f"{abbreviate_list(verdict.problems, '; ')}. {ADOPTION_REFUSED_ADVICE}")
    shards = {folder: _shards(folder, files, unpacks=unpacks) for folder in folders if folder not in known}
    names_by_id = read_devkit_ids(devkit) if devkit else None
    # From all folders together: a folder that lacks a class must not shift the labels of the others.
    if class_map is None and (class_map := _class_map_of(known)) is None:
        class_map = ClassMap(classes=read_class_names(_all(shards.values()), names_by_id, where=root))
    for number, folder in enumerate(folders, start=1):
        cell = read_manifest(folder).cell if folder in known else _cell(folder)  # verified above
        adopted = adopt(
            folder,
            cell,
            progress(str(folder), 0),
            benchmark_name=root.absolute().name,
            class_map=class_map,
            files=files,
            names_by_id=names_by_id,
        )
        yield Step(number, len(folders), adopted)


def index_urls(
    urls: Sequence[str], into: Path, class_map: ClassMap | None, progress: Reporter
) -> Iterator[Step[PublishedShardSet]]:
    """Adopt the shards at each of *urls*; all sets get *class_map*, or the first set's if it is None."""
    for number, url in enumerate(urls, start=1):
        adopted = adopt_url(url, into, class_map=class_map, progress=progress)
        class_map = class_map or ClassMap(classes=adopted.shard_set.manifest.classes)
        yield Step(number, len(urls), adopted)


def _folders(root: Path, files: Sequence[str]) -> list[Path]:
    """Return the folders at or under *root* with shards in any form; macOS's hidden companion files do not count."""
    shards = [path for path in root.rglob("[!.]*") if is_tar_like(path.name) and not path.is_dir()]
    chosen = select_names({path.name for path in shards}, files) if files else None
    folders = sorted({path.parent for path in shards if chosen is None or path.name in chosen})
    if not folders:
        raise ManifestError(
            f"There is no {abbreviate_list(files) or '*.tar'} in {root} or its subfolders; expected shards: correct "
            "the path"
        )
    return folders


def _shards(folder: Path, files: Sequence[str], *, unpacks: bool) -> tuple[Path, ...]:
    """Return the shards of the one set in *folder*, unpacked first if *unpacks*."""
    shards = find_one_set(folder, files)
    for shard in shards if unpacks else ():
        if unpacked_path(shard) != shard:
            unpack(shard, unpacked_path(shard))
    return find_shard_files(folder, files) if unpacks else shards


def _all(shards: Iterable[Sequence[Path]]) -> Iterator[Path]:
    return (path for paths in shards for path in paths)


def _cell(folder: Path) -> Cell:
    """Return the cell named by the last two parts of *folder*; one part is a shift without severities."""
    name, severity = folder.absolute().parts[-2:]
    is_cell = severity.isdecimal() and int(severity) <= MAX_SEVERITY
    return Cell(corruption=name, severity=int(severity)) if is_cell else Cell(corruption=severity, severity=0)


def _class_map_of(folders: Sequence[Path]) -> ClassMap | None:
    """Return the class map of the shard sets in *folders*, or None if there are none."""
    found = {ClassMap(classes=read_manifest(folder).classes): folder for folder in folders}
    if len(found) > 1:
        one, other = list(found.values())[:2]
        raise ManifestError(
            f"The manifests have {len(found)} different class maps, such as those in {one} and {other}; expected one "
            "class map for all sets that are indexed together: index the others separately"
        )
    return next(iter(found), None)
