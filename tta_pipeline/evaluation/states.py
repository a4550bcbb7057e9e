"""States from which a broken-off stream goes on, each with a hash of itself and of what it is a state of."""

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tta_pipeline.adaptation.snapshot import StateDict
from tta_pipeline.files import read_file, write_atomically

_NAME = re.compile(r"[0-9a-f]{64}\.state")
_HEAD_BYTES = 64
_MOST_BYTES = 2**38
NUM_KEPT = 2
"""Of a stream: the newest, and the one before, should the newest be damaged."""


@dataclass(frozen=True, kw_only=True)
class States:
    """The states of one stream, each named after the fingerprint of the segment after which it was saved."""

    folder: Path

    def save(self, fingerprint: str, state: StateDict) -> None:
        """Write *state*, whole or not at all."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        write_atomically(self._path(fingerprint), _digest(fingerprint, data) + data)

    def newest(
        self, fingerprints: Sequence[str], device: torch.device, tell: Callable[[str], None]
    ) -> tuple[int, StateDict] | None:
        """Return the last good state of a stream whose segments have *fingerprints*, or None if there is none.

        Args:
            fingerprints: Of the segments that are recorded, in their order.
            device: What the state is for.
            tell: Called for each that is damaged.

        Returns:
            How many segments it has behind it, and what was saved then.
        """
        for number in range(len(fingerprints), 0, -1):
            path = self._path(fingerprints[number - 1])
            try:
                data = read_file(path, limit_bytes=_MOST_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                tell(f"{path} cannot be read ({error.strerror}); the stream goes on from an earlier segment")
                continue
            if data[:_HEAD_BYTES] == _digest(fingerprints[number - 1], data[_HEAD_BYTES:]):
                return number, torch.load(io.BytesIO(data[_HEAD_BYTES:]), map_location=device, weights_only=True)
            tell(f"{path} is damaged: found other bytes than were written; the stream goes on from an earlier segment")
        return None

    def keep_only(self, fingerprints: Sequence[str]) -> None:
        """Remove the states of all other segments than those that have *fingerprints*."""
        kept = {self._path(fingerprint) for fingerprint in fingerprints}
        for path in self.folder.glob("*.state"):
            if _NAME.fullmatch(path.name) and path not in kept:
                path.unlink()

    def _path(self, fingerprint: str) -> Path:
        return self.folder / f"{fingerprint}.state"


def _digest(fingerprint: str, data: bytes) -> bytes:
    return hashlib.sha256(fingerprint.encode() + data).hexdigest().encode()
