"""Programs that `torch.export.save` wrote."""

import zipfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tta_pipeline.benchmarks.deployed_specs import ExportedModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.deployed_network import Answer
from tta_pipeline.models.program_models import Program
from tta_pipeline.models.weights import first_line, require_file

_PROGRAMS = ("models/model.json", "serialized_exported_program.json")
"""Member that holds the program, in archives of torch 2.8 and newer, and of older versions."""
_COMPILED = "data/aotinductor/"


class ExportedProgram(Program):
    """A network in an archive of torch.export, on each type of device where it is needed."""

    def __init__(self, spec: ExportedModel) -> None:
        """Read the file.

        Raises:
            EvaluationError: the file is missing, changed, or no archive of torch.export with a network of images.
        """
        path = spec.path.expanduser()
        require_file(path, spec.sha256)
        _require_archive(path)
        try:
            self._program: Any = torch.export.load(path)
        except Exception as error:  # of any kind: the archive may hold anything
            raise EvaluationError(
                f"{path} cannot be loaded by torch {torch.__version__} ({first_line(error)}); expected an archive of "
                "torch.export.save from this version or one near it: export the network again"
            ) from error
        self._shape = self._input_shape(path)
        self._module = cache(self._move)

    def _input_shape(self, path: Path) -> tuple[Any, ...]:
        names = self._program.graph_signature.user_inputs
        nodes = {node.name: node for node in self._program.graph.nodes}
        shapes = [tuple(getattr(nodes[name].meta.get("val"), "shape", ())) if name in nodes else () for name in names]
        if len(shapes) != 1 or len(shapes[0]) != 4:
            raise EvaluationError(
                f"{path} takes inputs of the shapes {shapes}; expected one, (images, 3, height, width): export the "
                "network alone"
            )
        return shapes[0]

    @property
    def fixed_batch(self) -> int | None:
        """Number of images that it takes at a time; None: any."""
        size = self._shape[0]
        return size if isinstance(size, int) else None

    def compute(self, images: torch.Tensor) -> Answer:
        """Return what it computes of *images*, float32 (B, 3, H, W)."""
        with torch.no_grad():  # its parameters may want gradients
            found = self._module(images.device)(images.contiguous())
        outputs = (found,) if isinstance(found, torch.Tensor) else tuple(found)
        return Answer(*outputs[:2], *[None] * (2 - len(outputs)))

    def _move(self, device: torch.device) -> Any:
        if device.type == "cpu":
            return self._program.module()
        from torch.export.passes import move_to_device_pass

        return move_to_device_pass(self._program, device).module()


def _require_archive(path: Path) -> None:
    """Refuse a file that is no archive of torch.export, before torch reads it.

    Raises:
        EvaluationError: it is a state dict, a TorchScript, a compiled package or something else.
    """
    names: Collection[str] = ()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    bare = {name.partition("/")[2] for name in names} | set(names)
    if bare.isdisjoint(_PROGRAMS) or any(name.startswith(_COMPILED) for name in bare):
        shown = f"an archive with {', '.join(sorted(bare - {''})[:4])}" if names else "no archive"
        raise EvaluationError(
            f"{path} is {shown}; expected a program that torch.export.save wrote, with {_PROGRAMS[0]} and without "
            "compiled code: export the network again, or use kind checkpoint for a state dict"
        )
