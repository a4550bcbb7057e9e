"""The uncorrupted images of a source, and other fields that several kinds of source have."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator

from tta_pipeline.partitions import CLEAN
from tta_pipeline.sections import Section
from tta_pipeline.sources.kinds.section import SourceContext

if TYPE_CHECKING:
    from tta_pipeline.sources.listing import Source


class CleanImages(Section):
    """The uncorrupted images, in a folder or an archive. A path alone is short for `{path: ...}`."""

    path: Path
    """Folder of class folders, root of torchvision's `ImageNet` (its `val` is used), tar or tar.gz."""
    layout: Literal["classes", "nested", "flat"] = "classes"
    """Layout of an archive: class folders; a tar per class, as in ILSVRC2012_img_train.tar; or only files, as in
    ILSVRC2012_img_val.tar, with classes from the ground truth."""
    ground_truth: Path | None = None
    """File with the classes of a flat archive: a line per file, or per number of a validation image."""
    devkit: Path | None = None
    """The devkit's `meta.mat`, needed if the ground truth uses its numbers."""

    @model_validator(mode="after")
    def _consistent(self) -> "CleanImages":
        if (self.layout == "flat") != (self.ground_truth is not None):
            raise ValueError(
                f"found layout {self.layout} and ground_truth {self.ground_truth}; expected both for a flat archive "
                "and no ground_truth for others"
            )
        return self

    def open(self, at: SourceContext) -> "Source":
        """Return the images, as the cell of clean images; class folders may be numbers of the classes."""
        from tta_pipeline.sources.numbered import NumberedClasses

        return NumberedClasses(source=self._images(at), classes=at.classes, must=False)

    def _images(self, at: SourceContext) -> "Source":
        from tta_pipeline.sources.archive import ArchivedImages
        from tta_pipeline.sources.folder_tree import FolderTree

        path = self.path.expanduser()
        if path.suffix in (".tar", ".gz", ".tgz"):
            return ArchivedImages(
                archives=(path,),
                cells=(CLEAN,),
                spill_root=at.spill_root / "clean",
                layout=self.layout,
                classes_by_file=ground_truth(self.ground_truth, self.devkit),
                progress=at.progress,
            )
        # torchvision's ImageNet keeps the training images next to the validation images.
        folder = path / "val" if (path / "val").is_dir() else path
        return FolderTree(root=folder, cells=(CLEAN,), elsewhere=((CLEAN, folder),))


def ground_truth(path: Path | None, devkit: Path | None) -> Mapping[str, str]:
    """Return the class of each file that the ground truth at *path* lists; nothing if there is none."""
    from tta_pipeline.labels.label_files import devkit_ids, read_ground_truth

    if path is None:
        return {}
    return read_ground_truth(path.expanduser(), devkit_ids(devkit.expanduser()) if devkit else None)


def _as_clean_images(value: Any) -> Any:
    return {"path": value} if isinstance(value, str | Path) else value


def _pattern_with_a_group(pattern: str) -> str:
    try:
        num_groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    if not num_groups:
        raise ValueError(f"{pattern!r} has no group; expected the class name in parentheses")
    return pattern


Clean = Annotated[CleanImages, BeforeValidator(_as_clean_images)]
ClassPattern = Annotated[str, AfterValidator(_pattern_with_a_group)]


def with_clean(images: "Source", clean: CleanImages | None, at: SourceContext) -> "Source":
    """Return *images* with the *clean* images beside them, if there are any."""
    from tta_pipeline.sources.routed import Routed

    return images if clean is None else Routed(source=images, elsewhere={CLEAN: clean.open(at)})
