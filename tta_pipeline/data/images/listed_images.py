"""A source whose images a published split lists."""

from collections import Counter
from dataclasses import dataclass

from tta_pipeline.data.images.listing import ImagesAround, Listing
from tta_pipeline.data.labels.splits import Split
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError


@dataclass(frozen=True, kw_only=True)
class ListedImages(ImagesAround):
    """*source*, which has only images of *split*; each of them must be there exactly once."""

    split: Split

    def class_names(self) -> tuple[str, ...]:
        """Return the classes of the split, in label order."""
        return self.split.classes

    def listing(self, cell: Cell) -> Listing:
        """Return the images of the split, sorted by name."""
        listing = self.source.listing(cell)
        found = Counter(image.name for image in listing.images)
        by_name = {f"{name}/{path.rpartition('/')[2]}": path for path, name in self.split.class_by_path.items()}
        if missing := [path for name, path in by_name.items() if name not in found]:
            raise ImagesError(
                f"{listing.root} lacks {len(missing):,} of the {len(by_name):,} images that {self.split.path} lists, "
                f"such as {missing[0]}; expected all of them: complete the images, or use the split that belongs to "
                "them"
            )
        if twice := [name for name, count in found.items() if count > 1]:
            raise ImagesError(
                f"{listing.root} contains {by_name[twice[0]]}, which {self.split.path} lists, in two folders; "
                "expected it once: name the folder with the right images as `root`"
            )
        return listing
