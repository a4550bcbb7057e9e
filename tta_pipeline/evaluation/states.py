"""States from which an interrupted stream continues, each with a hash over itself and its fingerprint."""

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
"""Number of states kept per stream: the newest, and the one before in case the newest is damaged."""


@dataclass(frozen=True, kw_only=True)
class States:
    """The states of one stream, each named after the fingerprint of the segment after which it was saved."""

    folder: Path

    def save(self, fingerprint: str, state: StateDict) -> None:
        """Write *state* atomically."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        write_atomically(self._path(fingerprint), _digest(fingerprint, data) + data)

    def newest(self, fingerprints: Sequence[str], tell: Callable[[str], None]) -> tuple[int, StateDict] | None:
        """Return the last good state of a stream whose segments have *fingerprints*, or None if there is none.

        Its tensors are on the host: the counters of an optimiser stay there, and what belongs on the device is copied
        to it when the state is restored.

        Args:
            fingerprints: Fingerprints of the recorded segments, in order.
            tell: Called with a message for each damaged state.

        Returns:
            The number of segments before the state, and the state.
        """
        for number in range(len(fingerprints), 0, -1):
            path = self._path(fingerprints[number - 1])
            try:
                data = read_file(path, limit_bytes=_MOST_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                tell(f"{path} cannot be read ({error.strerror}); the stream continues from an earlier segment")
                continue
            if data[:_HEAD_BYTES] == _digest(fingerprints[number - 1], data[_HEAD_BYTES:]):
                return number, torch.load(io.BytesIO(data[_HEAD_BYTES:]), map_location="cpu", weights_only=True)
            tell(f"{path} is damaged: its bytes do not match its hash; the stream continues from an earlier segment")
        return None

    def keep_only(self, fingerprints: Sequence[str]) -> None:
        """Remove the states of all segments except those with *fingerprints*."""
        kept = {self._path(fingerprint) for fingerprint in fingerprints}
        for path in self.folder.glob("*.state"):
            if _NAME.fullmatch(path.name) and path not in kept:
                path.unlink(missing_ok=True)  # another run may have been first

    def _path(self, fingerprint: str) -> Path:
        return self.folder / f"{fingerprint}.state"


def _digest(fingerprint: str, data: bytes) -> bytes:
    return hashlib.sha256(fingerprint.encode() + data).hexdigest().encode()
