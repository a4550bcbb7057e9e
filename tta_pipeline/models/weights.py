"""Weights: state dicts in files, and their hash."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from tta_pipeline.errors import EvaluationError
from tta_pipeline.shards.manifest import file_sha256


def read_state(path: Path, sha256: str) -> dict[str, torch.Tensor]:
    """Return the state dict in *path*, without running code from it.

    Raises:
        EvaluationError: the file is missing, changed, unreadable, or holds something else.
    """
    try:
        is_file, found = path.is_file(), file_sha256(path) if path.is_file() else None
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read ({error.strerror}); expected weights: restore it") from error
    if not is_file:  # reading a FIFO would block
        raise EvaluationError(f"{path} is {'not a file' if path.exists() else 'missing'}; expected weights: restore it")
    if found != sha256:
        raise EvaluationError(f"{path} hashes to {found}; expected {sha256} as the benchmark file says: restore it")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of any kind: bytes that are not a pickle can make any pickle instruction fail
        raise EvaluationError(
            f"{path} cannot be read as weights ({first_line(error)}); expected safetensors or a saved state dict, "
            "without code"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not state or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise EvaluationError(f"{path} holds {type(content).__name__}; expected a state dict, names to tensors")
    return {str(key).removeprefix("module."): value for key, value in state.items()}


def state_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """Return the hash of the names and bytes of *state*, on any device and of any type and layout."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        # As bytes, since NumPy has no bfloat16.
        digest.update(state[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def first_line(error: Exception) -> str:
    """Return the first line of what *error* says, or its type if it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)
