"""Measures the error of the embedded source model under the digits' own severity constants.

`python -m bench.digit_severities`, after `make demo`, whose source model it reads. No method adapts here: the constants
were chosen from the errors of the source model alone.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.data.corruptions.constants import DIGITS, SEVERITIES
from tta_pipeline.data.image_bytes import decode_with_pillow
from tta_pipeline.data.images.kinds.digits import DigitsSection, digit_tree, generate_cell
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.models.trained_models import load_trained_model

EMBEDDED = Path(__file__).parents[1] / "tta_pipeline" / "benchmarks" / "digits_c.yaml"


def main() -> None:
    """Print a line for each corruption: the error at severity 1 to 5, in percent."""
    benchmark = load_benchmark(EMBEDDED)
    assert isinstance(benchmark.images, DigitsSection)
    network = load_trained_model("digits_cnn", Locations.from_environment().source_model("digits_c", "digits_cnn"))
    classifier = network.make().eval()
    for corruption in DIGITS:
        cells = [Cell(corruption=corruption, severity=severity) for severity in SEVERITIES]
        errors = [error(cell, benchmark.images, classifier) for cell in cells]
        sys.stdout.write(f"{corruption:18}{''.join(f'{value:8.1%}' for value in errors)}\n")


def error(cell: Cell, source: DigitsSection, classifier: torch.nn.Module) -> float:
    """Return *classifier*'s error on the stored test images of *cell*."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "digits"
        generate_cell(root, cell, source.settings)
        images = digit_tree(root, (cell,)).listing(cell).images
        pixels = np.stack([decode_with_pillow(image.read()) for image in images])
    labels = np.array([int(image.class_name) for image in images])
    with torch.inference_mode():
        logits = classifier(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255)
    return float((logits.argmax(1).numpy() != labels).mean())


if __name__ == "__main__":
    main()
