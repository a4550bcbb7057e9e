"""Turn images of a dataset on the Hugging Face Hub into shards. Requires `pip install datasets`.

Here each cell is a split, such as `fog_5`, with the columns image and label. In a benchmark file:

    images:
      kind: python
      function: hub_images:images           # this file, in the working directory
      arguments:
        repository: you/cifar10_c           # or a folder with its files
        revision: "0000000000000000000000000000000000000000"   # a commit, since branches change

    python examples/hub_images.py you/cifar10_c 0000000000000000000000000000000000000000 shards/fog/5

prints

    fog|5: 10000 images of 10 classes, airplane to truck
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from datasets import Image, load_dataset

import tta_pipeline as tta


def images(
    corruption: str, severity: int, *, repository: str, revision: str
) -> Iterator[tuple[str, str, bytes | Path]]:
    """Yield class, name and file of each image of a split, with the Hub's bytes."""
    data = load_dataset(repository, split=f"{corruption}_{severity}", revision=revision)
    labels = data.features["label"]
    for number, row in enumerate(data.cast_column("image", Image(decode=False))):
        path = Path(row["image"]["path"] or "of_table.png")
        yield labels.int2str(row["label"]), f"{number:08d}{path.suffix}", row["image"]["bytes"] or path


def main(repository: str, revision: str, output: str) -> None:
    """Write the images of the cell in the path *output* as shards."""
    corruption, severity = Path(output).parts[-2:]
    cell = tta.shard(images(corruption, int(severity), repository=repository, revision=revision), output, num_shards=1)
    key, classes = cell.manifest.cell.key, cell.classes
    print(f"{key}: {len(cell)} images of {len(classes)} classes, {classes[0]} to {classes[-1]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
