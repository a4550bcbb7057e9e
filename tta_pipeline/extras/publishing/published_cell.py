"""A cell to publish: its verified shard set, and the facts that its readers need."""

import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.checksums import CHECKSUMS_FILE
from tta_pipeline.shards.expected_shard_set import ANYTHING, ExpectedShardSet
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.shard_set import SAMPLES_FILE, ShardSet
from tta_pipeline.shards.verification import find_shard_problems
from tta_pipeline.util.short_lists import abbreviate_list

SHARDS = PurePosixPath("shards")
_LABEL_TYPE = ".cls"
_ARRAY_TYPE = ".npy"


@dataclass(frozen=True, kw_only=True)
class PublishedCell:
    """One cell: its present shard set, and the kinds of members in its tars."""

    shard_set: ShardSet
    image_types: tuple[str, ...]
    """Extensions of the images in the first shard, spelt as in the tar, such as `JPEG`."""
    has_labels: bool
    """Whether each sample has a member with its label."""

    @property
    def name(self) -> str:
        """Name of the cell in the Hub and in Croissant, `<corruption>_<severity>`."""
        manifest = self.shard_set.manifest
        return f"{manifest.corruption}_{manifest.severity}"

    @property
    def place(self) -> PurePosixPath:
        """Folder of the cell in the published folder."""
        return SHARDS / self.shard_set.manifest.cell.path

    @property
    def files(self) -> tuple[Path, ...]:
        """The shards and the files that describe them, without this machine's notes on verification and timing."""
        folder = self.shard_set.folder
        described = (folder / name for name in (MANIFEST_FILE, SAMPLES_FILE, CHECKSUMS_FILE))
        shards = (folder / shard.name for shard in self.shard_set.manifest.shards)
        return (*shards, *(path for path in described if path.is_file()))


def verify_cell(folder: Path, belonging: ExpectedShardSet = ANYTHING) -> PublishedCell:
    """Return the cell in *folder* after comparing the hash of every shard with the manifest.

    Raises:
        ManifestError: the manifest is missing, shards and manifest disagree, the set does not fit *belonging*, the
            shards are at URLs, or they hold arrays instead of images.
    """
    shard_set = ShardSet.open(folder, belonging)
    if shard_set.remote is not None:
        raise ManifestError(f"the shards of {folder} are at URLs; expected them here: fetch them first")
    if shard_set.manifest.encoding.format != "raw":
        raise ManifestError(
            f"{folder} holds shards of format {shard_set.manifest.encoding.format}; expected raw, which other programs "
            "read: publish the set from which it was made"
        )
    if problems := find_shard_problems(shard_set, belonging):
        raise ManifestError(
            f"{abbreviate_list(problems, '; ')}; expected shards as in the manifest: make this cell again"
        )
    first = shard_set.manifest.shards[:1]
    extensions = _extensions(folder / first[0].name) if first else frozenset[str]()
    images = tuple(sorted(each for each in extensions if each.lower() not in (_LABEL_TYPE, ".json")))
    if _ARRAY_TYPE in images:
        raise ManifestError(
            f"the shards of {folder} hold arrays ({_ARRAY_TYPE}); expected image files, which other programs show as "
            "images: make shards of image files"
        )
    return PublishedCell(
        shard_set=shard_set,
        image_types=tuple(each.removeprefix(".") for each in images),
        has_labels=_LABEL_TYPE in extensions,
    )


def _extensions(path: Path) -> frozenset[str]:
    with tarfile.open(path) as archive:
        return frozenset(PurePosixPath(name).suffix for name in archive.getnames())
