"""Turn images of a torchvision dataset into shards, here CIFAR-10.

In a benchmark file:

    custom: {names: [cifar10_test]}
    images:
      kind: python
      function: torchvision_images:images   # this file, in the working directory
      arguments: {root: /data/cifar10}
      train: true

    python examples/torchvision_images.py /data/cifar10 shards/clean/0

prints

    clean|0: 10000 images of 10 classes, airplane to truck
"""

import sys
from collections.abc import Iterator

from PIL import Image
from torchvision.datasets import CIFAR10

import tta_pipeline as tta


def images(corruption: str, severity: int, *, root: str) -> Iterator[tuple[str, str, Image.Image]]:  # noqa: ARG001
    """Yield class, name and image: the training images for `train`, otherwise the test images."""
    data = CIFAR10(root, train=corruption == "train")
    for number, (image, label) in enumerate(data):
        yield data.classes[label], f"{number:05d}.png", image


def main(root: str, output: str) -> None:
    """Write the test images as shards."""
    cell = tta.shard(images("clean", 0, root=root), output, num_shards=1)
    key, classes = cell.manifest.cell.key, cell.classes
    print(f"{key}: {len(cell)} images of {len(classes)} classes, {classes[0]} to {classes[-1]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
