"""ONNX files, computed by onnxruntime."""

from functools import cache
from typing import Any

import torch

from tta_pipeline.benchmarks.deployed_specs import OnnxModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.deployed_network import Answer
from tta_pipeline.models.libraries import import_library
from tta_pipeline.models.program_models import Program
from tta_pipeline.models.weights import first_line, require_file
from tta_pipeline.util.files import read_file

_MOST_BYTES = 2**31
"""Most that a file of ONNX, a protocol buffer, can have."""
_NO_FOLDER = "/nonexistent"
"""Folder for weights beside the file, so that none are read: the hash of the file does not cover them."""


class OnnxProgram(Program):
    """A network in an ONNX file; a session for each type of device, made when it is first needed."""

    def __init__(self, spec: OnnxModel) -> None:
        """Read the file.

        Raises:
            EvaluationError: onnxruntime is not installed, or the file is missing, changed, or no network of images.
        """
        self._path = spec.path.expanduser()
        self._runtime = import_library("onnxruntime", extra="onnx")
        require_file(self._path, spec.sha256)
        self._data = read_file(self._path, limit_bytes=_MOST_BYTES)
        self._session = cache(self._open_session)
        (self._input, *others) = self._session("cpu").get_inputs()
        found = f"{self._input.type} {self._input.shape}"
        if others or self._input.type != "tensor(float)" or len(self._input.shape) != 4:
            raise EvaluationError(
                f"{self._path} takes {1 + len(others)} inputs, the first {found}; expected one, float32 (images, 3, "
                "height, width): export the network alone"
            )

    @property
    def fixed_batch(self) -> int | None:
        """Number of images that it takes at a time; None: any."""
        size = self._input.shape[0]
        return size if isinstance(size, int) else None

    def compute(self, images: torch.Tensor) -> Answer:
        """Return what it computes of *images*, float32 (B, 3, H, W)."""
        session = self._session(images.device.type)
        found = session.run(None, {self._input.name: images.cpu().contiguous().numpy()})
        return Answer(*map(torch.from_numpy, found[:2]), *[None] * (2 - len(found)))

    def _open_session(self, device: str) -> Any:
        provider = f"{device.upper()}ExecutionProvider"
        available = self._runtime.get_available_providers()
        if provider not in available:
            raise EvaluationError(
                f"onnxruntime here has {', '.join(available)}; expected {provider} for device {device}: install "
                "onnxruntime-gpu in place of onnxruntime, or evaluate on device cpu"
            )
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4  # the exception says the same
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NO_FOLDER)
        try:
            return self._runtime.InferenceSession(self._data, options, providers=[provider])
        except Exception as error:  # its errors have no class in common
            raise EvaluationError(
                f"{self._path} cannot be loaded by onnxruntime ({first_line(error)}); expected an ONNX file with its "
                "weights inside: export it with torch.onnx.export(..., external_data=False), or join a file and its "
                f"weights by onnx.save(onnx.load({self._path.name!r}), ...)"
            ) from error
