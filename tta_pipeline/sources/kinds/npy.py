"""The kind `npy`: arrays as CIFAR-10-C is published."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tta_pipeline.partitions import Cell
from tta_pipeline.shifts.shift_set import ShiftSet
from tta_pipeline.sources.kinds.clean import Clean, with_clean
from tta_pipeline.sources.kinds.section import ImagesSection, SourceContext

if TYPE_CHECKING:
    from tta_pipeline.sources.listing import Source

LABELS_FILE = "labels.npy"


class NpySource(ImagesSection):
    """CIFAR-10-C and CIFAR-100-C as published: `<root>/<corruption>.npy` and `labels.npy`.

    Labels count the classes of `class_map`; if it names no file or list, the labels themselves are the classes.
    """

    kind: Literal["npy"]
    root: Path
    clean: Clean | None = None
    """The uncorrupted images."""

    def open(self, at: SourceContext) -> "Source":
        """Return the images."""
        from tta_pipeline.sources.npy import NpyImages

        images = NpyImages(
            root=self.root.expanduser(),
            cells=at.cells,
            spill_root=at.spill_root,
            class_names_by_label=at.classes(),
            severities=at.shift_set.cell_severities,
            file_names={shift: f"{folder}.npy" for shift, folder in at.shift_set.folders.items()},
        )
        return with_clean(images, self.clean, at)

    def places(self, cell: Cell, shift_set: ShiftSet) -> tuple[Path, ...]:
        """Return the arrays of images and labels."""
        return (self.own_place(cell, shift_set), self.root.expanduser() / LABELS_FILE)

    def own_place(self, cell: Cell, shift_set: ShiftSet) -> Path:
        """Return the array of the images."""
        return self.root.expanduser() / f"{shift_set.folder_of(cell.corruption)}.npy"
