"""Cache of the text features of classes, shared between processes.

For 1,000 classes and 80 templates, text features take 80,000 passes through the text tower: more than an hour on a CPU.
A file's name is the hash of everything that determines its content; the file also holds the hash of its content.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from tta_pipeline.models.weights import state_sha256
from tta_pipeline.util.files import write_atomically

_NAME = "features"


def load_or_compute(
    folder: Path | None, decided_by: Mapping[str, str], compute: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return the result of *compute*, (K, D), from *folder* if it is cached there for the same *decided_by*.

    A damaged file is written again. Without a *folder*, nothing is cached.
    """
    if folder is None:
        return compute()
    name = hashlib.sha256(json.dumps(dict(decided_by), sort_keys=True).encode()).hexdigest()
    path = folder / f"{name}.safetensors"
    kept = _read(path)
    if kept is not None:
        return kept
    features = {_NAME: compute()}
    write_atomically(path, save(features, metadata={"sha256": state_sha256(features)}))
    return features[_NAME]


def _read(path: Path) -> torch.Tensor | None:
    """Return the features in *path*; None if there is no file, or it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            features, metadata = file.get_tensor(_NAME).clone(), file.metadata() or {}
    except (OSError, SafetensorError):
        return None
    return features if metadata.get("sha256") == state_sha256({_NAME: features}) else None
