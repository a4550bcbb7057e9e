"""What the inspection of a source finds, and the remarks on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tta_pipeline.errors import SourceError
from tta_pipeline.partitions import COMMON_CORRUPTIONS, CORRUPTIONS, SEVERITIES, Cell
from tta_pipeline.shifts.loading import shipped_sets


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What was found in a source."""

    kind: Literal["folder", "archive", "npy", "shards", "generated"]
    """Value of `source.kind` in a benchmark file; generated: uncorrupted images, to be corrupted here."""
    paths: tuple[Path, ...]
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    num_classes: int
    image_size: tuple[int, int] | None
    """Height and width of the first image in pixels; None if no image was looked at."""
    group_depth: int = 2
    remarks: tuple[str, ...] = ()
    """What the user should know, a sentence each."""

    @property
    def is_square(self) -> bool:
        """Whether the first image is as high as it is wide."""
        return self.image_size is None or self.image_size[0] == self.image_size[1]

    @property
    def published(self) -> str | None:
        """The published data set whose archives have these names; only their md5 could prove it."""
        if self.kind != "archive":
            return None
        names = {path.name for path in self.paths}
        return next((known for known, found in shipped_sets().items() if names <= found.archives.keys()), None)


def to_be_corrupted(path: Path, num_classes: int, image_size: tuple[int, int] | None) -> Survey:
    """Return the survey of uncorrupted images at *path*."""
    return Survey(
        kind="generated",
        paths=(path,),
        corruptions=COMMON_CORRUPTIONS,
        severities=SEVERITIES,
        num_classes=num_classes,
        image_size=image_size,
        remarks=("There are uncorrupted images only; the corruptions are made here, and results on them say so.",),
    )


def unknown_corruptions(where: Path, foreign: Sequence[str]) -> SourceError:
    """Return the error that none of the *foreign* names is a corruption."""
    return SourceError(
        f"{where} has {', '.join(foreign)}; expected corruptions among {', '.join(CORRUPTIONS)}: rename what is one of "
        "them"
    )


def left_out(names: Sequence[str]) -> Iterator[str]:
    """Yield the remark that corruptions of these *names* are not in the benchmark, if there are any."""
    if names:
        yield f"Left out, since they are none of the {len(CORRUPTIONS)} known corruptions: {', '.join(names)}."


def not_found(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a remark if some pairs of the corruptions and severities of *cells* are missing."""
    corruptions, severities = {cell.corruption for cell in cells}, {cell.severity for cell in cells}
    missing = sorted(
        f"{corruption}|{severity}"
        for corruption in corruptions
        for severity in severities
        if Cell(corruption=corruption, severity=severity) not in cells
    )
    if missing:
        yield f"Not found: {', '.join(missing)}; a run over these cells fails and says so."
