"""Evaluate your own method beside tent; in a benchmark file: `method: own_method:PSEUDO_LABEL`.

    python examples/own_method.py data/digits_c/shards/defocus_blur/5 data/digits_c/source_models/digits_cnn.safetensors

prints

    norm: error 33.7%
    tent: error 32.5%
    own_method:PSEUDO_LABEL: error 33.5%
"""

import sys

import torch
from torch.nn.functional import cross_entropy

import tta_pipeline as tta
from tta_pipeline.methods.entry import GradientHyperparameters, MethodEntry
from tta_pipeline.methods.gradient_method import GradientMethod


class PseudoLabel(GradientMethod):
    """Trains the norm layers on the model's own predictions as labels."""

    name = "pseudo_label"

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        return cross_entropy(logits, logits.argmax(1))


PSEUDO_LABEL = MethodEntry(
    implementation="own_method:PseudoLabel",
    summary="Cross entropy with the predicted classes as labels.",
    presets={
        "imagenet": GradientHyperparameters(lr=0.00025, optimizer="adam"),
        "cifar": GradientHyperparameters(lr=0.001, optimizer="adam"),
    },
)


def main(folder: str, model: str) -> None:
    """Evaluate norm, tent and the method with the same preset and batch size."""
    for name in ("norm", "tent", "own_method:PSEUDO_LABEL"):
        method = tta.build(name, tta.load_model(model), num_classes=10, preset="cifar")
        print(f"{name}: error {tta.evaluate(method, folder, batch_size=16).error:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
