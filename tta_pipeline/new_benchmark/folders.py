"""Inspects a folder of corruptions, shards, array files, archives or uncorrupted images."""

import os
from dataclasses import replace
from pathlib import Path

from tta_pipeline.errors import ManifestError, SourceError
from tta_pipeline.new_benchmark.archives import Seen, survey_archives
from tta_pipeline.new_benchmark.found import Survey, left_out, not_found, to_be_corrupted, unknown_corruptions
from tta_pipeline.partitions import CORRUPTIONS, SEVERITIES
from tta_pipeline.sources.existing_shards import classes_in_label_order, stated_class
from tta_pipeline.sources.folder_tree import IMAGE_SUFFIXES, WRAPPERS, FolderTree, discover
from tta_pipeline.sources.npy import LABELS_FILE, NpySource, read_images
from tta_pipeline.sources.shard_files import shard_files
from tta_pipeline.sources.shard_members import said_by_text
from tta_pipeline.sources.tar_stream import opened

_MAX_SHARD_MEMBERS = 20_000


def survey_folder(root: Path) -> Survey:
    """Return what the folder *root* holds.

    Raises:
        SourceError: it holds nothing that a benchmark can be made of.
    """
    inner = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    for folder in (root, *(inner if len(inner) == 1 else ())):
        if (folder / LABELS_FILE).exists():
            return _arrays(folder)
    for depth in (2, 3):
        tree = _tree(root, depth)
        if tree is not None:
            # The cells of one archive lie in a folder of its name; below that folder the depth is 2.
            groups = {tree.folder(cell).parents[1] for cell in tree.cells}
            if len(groups) == 1:
                return _cells(replace(tree, root=groups.pop()), group_depth=2)
            return _cells(tree, group_depth=depth)
    archives = [path for path in sorted(root.glob("*.tar*")) if path.is_file()]
    return survey_archives(archives) if archives else _clean(root)


def _tree(root: Path, depth: int) -> FolderTree | None:
    """Return the cells *depth* levels under *root*; None if none has a severity."""
    try:
        tree = discover(root, group_depth=depth)
    except SourceError:
        return None
    numbered = tuple(cell for cell in tree.cells if cell.severity in SEVERITIES)
    return replace(tree, cells=numbered) if numbered else None


def _cells(tree: FolderTree, *, group_depth: int) -> Survey:
    known = tuple(cell for cell in tree.cells if cell.corruption in CORRUPTIONS)
    foreign = sorted({cell.corruption for cell in tree.cells} - set(CORRUPTIONS))
    if not known:
        raise unknown_corruptions(tree.root, foreign)
    tree = replace(tree, cells=known)
    remarks = [*left_out(foreign), *not_found(known)]
    first = tree.folder(known[0])
    has_shards = any(first.glob("*.tar"))
    if has_shards:
        num_classes, image_size, more = _shards(first)
    else:
        num_classes, more = _classes(tree)
        image_size = _size_of(_first_image(first))
    return Survey(
        kind="shards" if has_shards else "folder",
        paths=(tree.root,),
        corruptions=tuple(name for name in CORRUPTIONS if any(cell.corruption == name for cell in known)),
        severities=tuple(sorted({cell.severity for cell in known})),
        num_classes=num_classes,
        image_size=image_size,
        group_depth=group_depth,
        remarks=(*remarks, *more),
    )


def _classes(tree: FolderTree) -> tuple[int, list[str]]:
    """Return the number of classes, looking at one severity of each corruption."""
    first_cells = {cell.corruption: cell for cell in sorted(tree.cells, reverse=True)}
    counts = {name: len(replace(tree, cells=(cell,)).class_names()) for name, cell in first_cells.items()}
    usual = sorted(counts.values())[len(counts) // 2]
    odd = [f"{name} has {count:,}" for name, count in counts.items() if count != usual]
    advice = (
        f"Most corruptions have {usual:,} class folders, but {', '.join(odd)}: give class_map a file with the classes, "
        "and add `foreign_classes: skip` to shards if some are too many."
    )
    return usual, [advice] if odd else []


def _first_image(folder: Path) -> Path | None:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith("."):
                return Path(parent, name)
    return None


def _size_of(path: Path | None) -> tuple[int, int] | None:
    from tta_pipeline.images import read_image_header

    if path is None:
        return None
    try:
        header = read_image_header(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: {error}; expected an intact image: restore it") from error
    return header.height, header.width


def _shards(folder: Path) -> tuple[int, tuple[int, int] | None, list[str]]:
    """Return number of classes and image size of the shards in *folder*, from its manifest or its first shard."""
    from tta_pipeline.shards.manifest import MANIFEST_FILE, Manifest, read_record

    path = shard_files(folder)[0]
    seen = Seen()
    texts: dict[str, str] = {}
    members: dict[str, str] = {}
    with opened(path) as stream:
        for number, entry in enumerate(stream):
            if number == _MAX_SHARD_MEMBERS:
                break
            parent, _, name = entry.name.rpartition("/")
            key = f"{parent}/{name.partition('.')[0]}"
            if name.endswith(".cls"):
                texts[key] = stream.read(4096).decode("utf-8", "replace").strip()
            elif name.lower().endswith((*IMAGE_SUFFIXES, ".npy")):
                members[key] = entry.name
                seen.look_at_image(entry, stream)
    stated = (stated_class(member, said_by_text(texts.get(key, ""))) for key, member in members.items())
    num_classes = len(classes_in_label_order(found for found in stated if found))
    try:
        return len(read_record(folder / MANIFEST_FILE, Manifest).classes), seen.image_size, []
    except ManifestError:
        return (
            num_classes,
            seen.image_size,
            [f"The classes are those of {path.name} of one cell; others may have more."],
        )


def _arrays(root: Path) -> Survey:
    names = [path.stem for path in sorted(root.glob("*.npy")) if path.name != LABELS_FILE]
    known = tuple(name for name in CORRUPTIONS if name in names)
    foreign = sorted(set(names) - set(CORRUPTIONS))
    if not known:
        raise unknown_corruptions(root, foreign)
    source = NpySource(root=root, cells=(), spill_root=root)
    shape = read_images(root / f"{known[0]}.npy").shape
    return Survey(
        kind="npy",
        paths=(root,),
        corruptions=known,
        severities=SEVERITIES,
        num_classes=len(source.class_names()),
        image_size=(shape[1], shape[2]),
        remarks=tuple(left_out(foreign)),
    )


def _clean(root: Path) -> Survey:
    """Return the survey of uncorrupted images in class folders."""
    folder = root / "val" if (root / "val").is_dir() else root
    image = _first_image(folder)
    levels = [part for part in image.relative_to(folder).parts if part not in WRAPPERS] if image else []
    if len(levels) != 2:
        raise SourceError(
            f"{root} holds neither <corruption>/<severity>/<class>/<image>, nor shards, nor {LABELS_FILE}, nor tar "
            "archives, nor class folders of uncorrupted images; expected one of these: name the folder above them"
        )
    if corruption := {root.name, root.parent.name}.intersection(CORRUPTIONS):
        raise SourceError(
            f"{root} holds class folders of {corruption.pop()}; expected the root of all corruptions: name the folder "
            "above"
        )
    num_classes = len(discover(folder, group_depth=0).class_names())
    return to_be_corrupted(root, num_classes, _size_of(image))
