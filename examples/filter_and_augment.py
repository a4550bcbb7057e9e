"""Make new shards from mirrored samples of other shards: any Python code may filter and augment.

    python examples/filter_and_augment.py data/digits_c/shards/contrast/5 mirrored/contrast/5

prints

    contrast|5: 600 samples became 293, of the first 5 of 10 classes
"""

import sys
from collections.abc import Iterator

from PIL import Image, ImageOps

import tta_pipeline as tta

NUM_CLASSES = 5


def mirrored(cell: tta.Shards) -> Iterator[tuple[str, str, Image.Image]]:
    """Yield class, file name and mirrored image for each sample of the first classes."""
    for number in range(len(cell)):
        image, label = cell[number]
        if label < NUM_CLASSES:
            yield cell.classes[label], f"{number:05d}.png", ImageOps.mirror(image)


def main(source: str, output: str) -> None:
    """Write the new shards, with the old labels."""
    old = tta.open_shards(source)
    new = tta.shard(mirrored(old), output, num_shards=2, class_map=old.classes)
    kept = f"of the first {NUM_CLASSES} of {len(old.classes)} classes"
    print(f"{new.manifest.cell.key}: {len(old)} samples became {len(new)}, {kept}")


if __name__ == "__main__":
    main(*sys.argv[1:])
