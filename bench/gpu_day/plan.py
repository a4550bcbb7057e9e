"""Sizes of all measurements, on the GPU and in a rehearsal."""

from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.extras.loader_bench.synthetic_photographs import NUM_CLASSES


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes, and the folder of the data. The defaults are the GPU day's."""

    folder: Path
    is_rehearsal: bool = False
    device: str = "auto"
    architecture: str = "resnet50"
    image_size: int = 224
    num_images: int = 500
    copies: int = 100
    """Number of copies of each image, under different names; a cell has all of them."""
    num_shards: int = 8
    num_cells: int = 5
    batch_size: int = 256
    small_batch: int = 64
    """Batch size of methods that adapt."""
    num_short: int = 12_800
    """Images in a pass that compares ways to predict."""
    num_adapted: int = 3200
    """Images in a pass of a method that adapts."""
    num_profiled: int = 12
    """Batches of source and of tent in a profile."""
    num_swept: int = 3
    """Batches of each method in the profile of a sweep."""
    little_gib: float = 4
    """Memory that is too small for a batch of four times `batch_size`."""
    turns: int = 3
    compile: str = "default"
    compared_size: int = 64
    """Height and width of the images on which methods are compared with the CPU."""
    compared_batch: int = 8
    resumed_images: int = 1600
    """Images of each cell of the stream that is killed and resumed."""

    @property
    def num_classes(self) -> int:
        """Number of class folders, and of the network's outputs."""
        return min(NUM_CLASSES, self.num_images)

    @property
    def data(self) -> Path:
        """Data root of the day's own benchmark."""
        return self.folder / "data"


def plan_of(*, rehearsed_on: str, folder: Path) -> Plan:
    """Return the plan of the day, or of a rehearsal on the kind of device *rehearsed_on*; empty: no rehearsal."""
    if not rehearsed_on:
        return Plan(folder=folder)
    return Plan(
        folder=folder, is_rehearsal=True, device=rehearsed_on, architecture="resnet18", image_size=64, num_images=96,
        copies=1, num_shards=2, num_cells=3, batch_size=16, small_batch=8, num_short=32, num_adapted=24, num_profiled=3,
        num_swept=2, turns=1, little_gib=0.125, compared_size=16, compared_batch=4, resumed_images=40,
    )  # fmt: skip
