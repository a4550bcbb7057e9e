"""An ONNX file of a linear classifier."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import nn


def write_onnx(path: Path, linear: nn.Linear) -> None:
    """Write the file *path*, a program that applies *linear* to the pixels of each image, (B, 3, H, W)."""
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["images"], ["pixels"]),
            helper.make_node("Gemm", ["pixels", "weight", "bias"], ["logits"], transB=1),
        ],
        "linear",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", linear.out_features])],
        [numpy_helper.from_array(weights.numpy(), name) for name, weights in linear.state_dict().items()],
    )
    # A form that the oldest onnxruntime reads, too.
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
