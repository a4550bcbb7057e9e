"""Write a protocol as a loop: one method adapts to cell after cell, without a reset.

In a benchmark file, `protocol: continual` does the same, and a killed run resumes where it stopped.

    python examples/continual.py data/digits_c/source_models/digits_cnn.safetensors SHARDS SHARDS

prints

    gaussian_noise 5: error 3.5%
    contrast 5: error 44.0%
    mean over 2 cells 23.8%, 20 updates
"""

import sys

import tta_pipeline as tta


def main(model: str, *folders: str) -> None:
    """Evaluate one method on cell after cell, without a reset."""
    method = tta.build("tent", tta.load_model(model), num_classes=10, preset="cifar")
    results = [tta.evaluate(method, folder) for folder in folders]
    for result in results:
        print(f"{result.cell.corruption} {result.cell.severity}: error {result.error:.1%}")
    mean = sum(result.error for result in results) / len(results)
    print(f"mean over {len(results)} cells {mean:.1%}, {sum(result.cost.num_updates for result in results)} updates")


if __name__ == "__main__":
    main(*sys.argv[1:])
