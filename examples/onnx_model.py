"""Evaluate an ONNX file. It runs in onnxruntime and has no layers to adapt, so `source` is the only method.

Save the file with its weights inside, as `torch.onnx.export(..., external_data=False)` does. In a benchmark file:

    models:
      deployed:
        kind: python
        factory: onnx_model:OnnxNetwork    # this file, in the working directory
        arguments: {num_bytes: 334453}
        weights: network.pth               # written by this script, next to network.onnx
        sha256: "0000000000000000000000000000000000000000000000000000000000000000"   # sha256sum network.pth
        mean: [0, 0, 0]                    # for a network that takes images in [0, 1]
        std: [1, 1, 1]
    experiments:
      source: {model: deployed, method: source}

    python examples/onnx_model.py network.onnx data/digits_c/shards/contrast/5

prints

    source: error 76.2%, 600 samples, num_bytes 334453
"""

import sys
from pathlib import Path

import torch
from onnxruntime import InferenceSession
from torch import nn

import tta_pipeline as tta


class OnnxNetwork(nn.Module):
    """A network whose only weights are the bytes of an ONNX file, so that their hash identifies the network."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.file = nn.Parameter(torch.zeros(num_bytes, dtype=torch.uint8), requires_grad=False)
        self.session: InferenceSession | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for normalised images, float (B, 3, H, W)."""
        if self.session is None:  # the weights are loaded by now
            self.session = InferenceSession(self.file.cpu().numpy().tobytes(), providers=["CPUExecutionProvider"])
        inputs = {self.session.get_inputs()[0].name: images.cpu().numpy()}
        return torch.from_numpy(self.session.run(None, inputs)[0]).to(images.device)


def main(path: str, folder: str) -> None:
    """Write the bytes of the file as weights, and evaluate the network."""
    network = OnnxNetwork(Path(path).stat().st_size)
    network.load_state_dict({"file": torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)})
    torch.save(network.state_dict(), Path(path).with_suffix(".pth"))
    cell = tta.open_shards(folder)
    result = tta.evaluate(tta.build("source", network, num_classes=len(cell.classes)), cell)
    print(f"source: error {result.error:.1%}, {result.scores.num_samples} samples, num_bytes {len(network.file)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
