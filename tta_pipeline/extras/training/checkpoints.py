"""Checkpoints of a training: the whole state, from which it continues as if it had never stopped.

A file has the sha256, in hex, of the bytes that follow, which are the output of torch.save.
"""

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tta_pipeline.util.files import is_unpublished, make_cache_folder, read_sealed, seal, write_atomically

State = dict[str, Any]
"""Tensors, numbers and containers of them."""

_KIND = "checkpoint"
_FINGERPRINT = "fingerprint"


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The newest checkpoint of one training, and the previous one in case the newest is damaged.

    Only the process that holds the training's lock uses them.
    """

    folder: Path
    fingerprint: str
    """Fingerprint of the training; checkpoints of other trainings are ignored."""

    def save(self, state: State) -> None:
        """Write *state*, and keep the newest checkpoint so far.

        Raises:
            OSError: the disk is full.
        """
        buffer = io.BytesIO()
        torch.save({**state, _FINGERPRINT: self.fingerprint}, buffer)
        make_cache_folder(self.folder)
        newest, before = self._paths
        with suppress(FileNotFoundError):
            newest.replace(before)
        write_atomically(newest, seal(buffer.getvalue(), _KIND))

    def load(self, say: Callable[[str], None]) -> State | None:
        """Return the newest intact state, its tensors on the host; None if there is none.

        Args:
            say: Called with a message for each damaged checkpoint.
        """
        for path in filter(Path.exists, self._paths):
            data = None
            with suppress(OSError):
                data = read_sealed(path, _KIND)
            if data is None:
                say(f"{path} is damaged: its bytes do not match its hash; training continues from an earlier state")
                continue
            # No code in the file is run.
            state: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            if state[_FINGERPRINT] == self.fingerprint:
                return state
        return None

    def remove(self) -> None:
        """Remove the checkpoints, and the unfinished files of killed processes; each is as large as the whole state."""
        for path in self.folder.glob("*.checkpoint"):
            if path in self._paths or is_unpublished(path.name):
                path.unlink()

    @property
    def _paths(self) -> tuple[Path, Path]:
        return self.folder / "newest.checkpoint", self.folder / "before.checkpoint"
