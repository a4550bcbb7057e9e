"""Checkpoints of a training: the whole state from which it continues as if it had never stopped.

A file is named after its training and the number of steps done, `<64 hex digits>-<steps>.checkpoint`:

    64 bytes   sha256, in hex, of the name and the bytes that follow
    ...        output of torch.save; it is loaded without running code
"""

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tta_pipeline.util.files import is_unpublished, make_cache_folder, read_sealed, seal, write_atomically

_NAME = re.compile(r"([0-9a-f]{64})-([0-9]+)\.checkpoint")
NUM_KEPT = 2
"""Number of checkpoints to keep: the newest, and the one before in case the newest is damaged."""

State = dict[str, Any]
"""Tensors, numbers and containers of them."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The checkpoints of one training. Only the process that holds the training's lock uses them."""

    folder: Path
    fingerprint: str
    """Fingerprint of the training; checkpoints with other fingerprints are ignored."""

    def save(self, state: State, *, steps: int) -> None:
        """Write *state* after *steps* steps atomically, and remove all but the last two."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        make_cache_folder(self.folder)
        path = self.folder / f"{self.fingerprint}-{steps}.checkpoint"
        write_atomically(path, seal(buffer.getvalue(), path.name))
        kept = self._own()[-NUM_KEPT:]
        for other in self.folder.glob("*.checkpoint"):
            if _NAME.fullmatch(other.name) and other not in kept:
                other.unlink()
        self._remove_unfinished()

    def newest(self, tell: Callable[[str], None]) -> State | None:
        """Return the newest intact checkpoint, its tensors on the host; None if there is none.

        Args:
            tell: Called with a message for each damaged checkpoint.
        """
        for path in reversed(self._own()):
            try:
                data = read_sealed(path, path.name)
            except OSError as error:
                tell(f"{path} cannot be read ({error.strerror}); the training continues from an earlier checkpoint")
                continue
            if data is not None:
                state: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
                return state
            tell(
                f"{path} is damaged: its bytes do not match its hash; the training continues from an earlier checkpoint"
            )
        return None

    def remove(self) -> None:
        """Remove the checkpoints of this training, which has ended."""
        for path in self._own():
            path.unlink()
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Remove what killed processes had begun to write; each is as large as the whole state."""
        for path in self.folder.glob("*.checkpoint"):
            if is_unpublished(path.name):
                path.unlink()

    def _own(self) -> list[Path]:
        """Return the paths of the checkpoints of this training, the newest last."""
        return [path for _, path in sorted(self._numbered())]

    def _numbered(self) -> Iterator[tuple[int, Path]]:
        for path in self.folder.glob("*.checkpoint"):
            name = _NAME.fullmatch(path.name)
            if name and name[1] == self.fingerprint:
                yield int(name[2]), path
