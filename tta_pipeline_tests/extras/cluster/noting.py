"""Slow methods of a user: one notes process, devices and time of each batch, one always fails."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from tta_pipeline.methods.entry import PRESETS, Hyperparameters, MethodEntry
from tta_pipeline.methods.method import Method

BATCH_S = 0.3
_FOLDER = "noted"


@dataclass(frozen=True, kw_only=True)
class Note:
    """A predicted batch: the process, its devices, and the time."""

    process_id: int
    devices: str | None
    began_at: float
    ended_at: float
    """Both in seconds since 1970."""

    @classmethod
    def read(cls, data_root: Path) -> list[Self]:
        """Return all notes below *data_root*; one that is being written is left out."""
        texts = [path.read_text() for path in (data_root / _FOLDER).glob("*.jsonl")]
        return [cls(**json.loads(line)) for text in texts for line in text.splitlines(keepends=True) if "\n" in line]


class Noting(Method):
    """Predicts as the source model does, and takes `BATCH_S` for a batch."""

    name = "noting"

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        began_at = time.time()
        time.sleep(BATCH_S)
        with torch.inference_mode():
            logits = self._forward(images)
        self._note(began_at)
        return logits

    def _note(self, began_at: float) -> None:
        path = Path(os.environ["TTA_DATA_ROOT"]) / _FOLDER / f"{os.getpid()}.jsonl"
        path.parent.mkdir(exist_ok=True)
        note = Note(
            process_id=os.getpid(), devices=os.environ.get("CUDA_VISIBLE_DEVICES"), began_at=began_at,
            ended_at=time.time(),
        )  # fmt: skip
        with path.open("a") as file:
            file.write(json.dumps(note.__dict__) + "\n")


class Failing(Method):
    """Fails at the first batch."""

    name = "failing"

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"found {len(images)} images; expected none")


def _entry(implementation: str) -> MethodEntry:
    return MethodEntry(
        implementation=f"tta_pipeline_tests.extras.cluster.noting:{implementation}",
        summary="For tests of clusters.",
        presets=dict.fromkeys(PRESETS, Hyperparameters()),
    )


NOTING = _entry("Noting")
FAILING = _entry("Failing")
