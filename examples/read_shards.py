"""Read shards in your own loop.

    python examples/read_shards.py data/digits_c/shards/contrast/5

prints

    600 samples of 10 classes in 2 shards; sample 17 is (32, 32), label 6
    mean brightness 0.31 over 10 batches
"""

import sys

import tta_pipeline as tta


def main(folder: str) -> None:
    """Look at one sample, then at all of them."""
    cell = tta.open_shards(folder)
    image, label = cell[17]
    print(
        f"{len(cell)} samples of {len(cell.classes)} classes in {len(cell.manifest.shards)} shards; "
        f"sample 17 is {image.size}, label {label}"
    )
    # Batches are float32 (B, 3, H, W) in [0, 1] and int64 (B,). DataLoader takes cell.batches(), with batch_size=None.
    brightness = [images.mean().item() for images, _ in cell.batches(batch_size=64, shuffle_seed=0)]
    print(f"mean brightness {sum(brightness) / len(brightness):.2f} over {len(brightness)} batches")


if __name__ == "__main__":
    main(*sys.argv[1:])
