"""Labels of a shard set that came after its shards were made: a file beside the manifest, in the order of the index.

The manifest and its hash stay as they are, so that predictions made before remain valid.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tta_pipeline.errors import ManifestError
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.files import copy_atomically, read_file, write_atomically

LABELS_FILE = "labels.json"
_LEAST_BYTES, _MAX_LABEL_BYTES = 2**10, 12


@dataclass(frozen=True, kw_only=True)
class LaterLabels:
    """Labels that came after the shards."""

    labels: npt.NDArray[np.int32]
    """Label of each sample of the index, shape (N,)."""

    @property
    def sha256(self) -> str:
        """sha256 of the labels, int32 little-endian."""
        return hashlib.sha256(self.labels.astype("<i4").tobytes()).hexdigest()


def write_later_labels(folder: Path, labels: LaterLabels, samples_sha256: str) -> None:
    """Write *labels* of the index with the hash *samples_sha256* into *folder*.

    Raises:
        OSError: the file cannot be written.
    """
    content = {"samples_sha256": samples_sha256, "sha256": labels.sha256, "labels": labels.labels.tolist()}
    write_atomically(folder / LABELS_FILE, json.dumps(content).encode())


def mirror_later_labels(origin: Path, copy: Path) -> None:
    """Give *copy*, a copy of the shard set in *origin*, the labels that have come there since; none if none have.

    Raises:
        OSError: they cannot be read or written.
    """
    if (origin / LABELS_FILE).exists():
        copy_atomically(origin / LABELS_FILE, copy / LABELS_FILE)
    else:
        (copy / LABELS_FILE).unlink(missing_ok=True)


def read_later_labels(folder: Path, manifest: Manifest) -> LaterLabels | None:
    """Return the labels in *folder* that came after the shards of *manifest*; None if none have come.

    Raises:
        ManifestError: the file is damaged, or belongs to other shards.
    """
    path = folder / LABELS_FILE
    if not path.exists():
        return None
    try:
        content = json.loads(read_file(path, limit_bytes=_LEAST_BYTES + manifest.num_samples * _MAX_LABEL_BYTES))
        found = LaterLabels(labels=np.array(content["labels"], np.int32))
        is_intact = (content["sha256"], content["samples_sha256"]) == (found.sha256, manifest.samples_sha256)
    except (OSError, RecursionError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ManifestError(f"{path} cannot be read ({error}); add the labels again by `results label`") from error
    labels = found.labels
    if not is_intact or labels.shape != (manifest.num_samples,) or not _are_classes(labels, len(manifest.classes)):
        raise ManifestError(
            f"{path} has {len(labels)} labels that are damaged or of other shards; expected {manifest.num_samples} of "
            f"the index with the hash {manifest.samples_sha256}: add the labels again by `results label`"
        )
    return found


def _are_classes(labels: npt.NDArray[np.int32], num_classes: int) -> bool:
    return bool(((labels >= 0) & (labels < num_classes)).all())
