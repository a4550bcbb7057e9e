"""Writes a benchmark file for CLIP methods on every dataset under one folder, as TTABC compares them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.datasets.dataset_files import shipped_set
from tta_pipeline.data.images.archives import SUFFIXES
from tta_pipeline.data.images.choose_dataset import find_whole_set
from tta_pipeline.data.images.class_folders import folders_in
from tta_pipeline.errors import ImagesError
from tta_pipeline.extras.new_project.template import Draft, load_template
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.methods.entry import Paper

SETS = (
    "imagenet_a", "imagenet_r", "imagenet_v2", "imagenet_sketch",
    "caltech101", "oxford_pets", "stanford_cars", "flowers102", "food101", "fgvc_aircraft", "sun397", "dtd", "eurosat",
    "ucf101", "imagenet_c",
)  # fmt: skip
"""Datasets of TTABC (arXiv:2606.14299) without its combined shifts; its clean ImageNet is in no mean."""
_SHIFTS: Mapping[str, tuple[str, ...]] = {"imagenet_v2": ("matched_frequency",)}
"""Shifts of a dataset that papers evaluate, if its mean includes others too."""
_DEPTH = 2
"""Levels of folders under the root to search for datasets."""


@dataclass(frozen=True, kw_only=True)
class FoundSet:
    """A dataset under the root, with its section of a benchmark file."""

    dataset: Dataset
    source: dict[str, object]

    @property
    def fields(self) -> dict[str, object]:
        """The fields of the section, except the fields that all datasets share."""
        fields: dict[str, object] = {"images": self.source}
        if self.dataset.name in _SHIFTS:
            fields["corruptions"] = list(_SHIFTS[self.dataset.name])
        if self.dataset.severities:
            fields |= {"severities": [self.dataset.severities[-1]], "shards": {"max_shard_bytes": 10**9}}
        return fields


def draft_sets(name: str, root: Path) -> Draft:
    """Return the benchmark file *name* for the datasets under *root*: in this folder, or one or two levels below it.

    Only names are read: a folder as published, archives as published, or a split next to images.
    """
    found = {each: section for each in SETS if (section := _find_set(shipped_set(each), root.absolute()))}
    if not found:
        raise ImagesError(
            f"None of the {len(SETS)} datasets is in {root} or up to {_DEPTH} levels below it; expected folders such "
            "as imagenet-a, archives as published, or a folder with a split such as split_zhou_Food101.json: check "
            "the path"
        )
    missing = tuple(each for each in SETS if each not in found)
    remarks = (f"Not found under {root}: {', '.join(missing)}.",) if missing else ()
    text = load_template("sets.yaml.j2").render(
        name=name, root=str(root), found=tuple(found.values()), remarks=remarks, methods=_methods()
    )
    first = next(iter(found))
    return Draft(text=text, commands=(f"tta-pipeline run {name}/{first}", f"tta-pipeline run {name}"), remarks=remarks)


def _methods() -> dict[str, str]:
    """Return the methods for CLIP, each with the origin of its hyperparameters."""
    return {name: _origin(entry.paper) for name, entry in METHODS.items() if entry.needs == "clip"}


def _origin(paper: Paper | None) -> str:
    if paper is None:
        return "CLIP without adaptation"
    first = paper.authors.partition(",")[0].partition(" and ")[0]
    return f"{first} {paper.year}, {paper.venue}" + (f", arXiv:{paper.arxiv}" if paper.arxiv else "")


def _find_set(dataset: Dataset, root: Path) -> FoundSet | None:
    """Return the first of the folders of *root* that has *dataset*."""
    for folder in _folders(root):
        source = _source_in(dataset, folder)
        if source is not None:
            return FoundSet(dataset=dataset, source=source)
    return None


def _folders(root: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Yield *root* and the folders under it, folders near the root first."""
    level = [root]
    for _ in range(depth + 1):
        yield from level
        level = [path for folder in level for path in folders_in(folder)]


def _source_in(dataset: Dataset, folder: Path) -> dict[str, object] | None:
    """Return the section `images` of *dataset* if *folder* has its images; otherwise None."""
    if dataset.split is not None:
        if not (folder / dataset.split).is_file():
            return None
        packed = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES and path.is_file()]
        return _of_archives(packed) if packed and not folders_in(folder) else _of_folder(folder)
    shifts = _shifts_of(dataset)
    if (folder / dataset.folder_of_cell(shifts[0], dataset.cell_severities[-1])).is_dir():
        return _of_folder(folder)
    needed = [folder / name for name, each in dataset.archives.items() if {*shifts} & set(each.shifts or shifts)]
    if needed and all(path.is_file() for path in needed):
        return _of_archives(needed)
    return _of_folder(folder) if dataset.is_undivided and find_whole_set(folder.name, [dataset]) else None


def _shifts_of(dataset: Dataset) -> tuple[str, ...]:
    return _SHIFTS.get(dataset.name, dataset.in_mean)


def _of_folder(folder: Path) -> dict[str, object]:
    return {"kind": "folder", "root": str(folder)}


def _of_archives(paths: Sequence[Path]) -> dict[str, object]:
    return {"kind": "archive", "archives": [str(path) for path in paths]}
