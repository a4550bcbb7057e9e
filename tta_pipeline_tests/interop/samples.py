"""The parts of a sample that are compared, for any reader."""

import hashlib

Sample = tuple[str, int, str]
Samples = list[Sample]
"""Key, label and sha256 of the image's bytes."""


def sample(key: str, label: int, data: bytes) -> Sample:
    """Return the parts of one sample that are compared."""
    return key, label, hashlib.sha256(data).hexdigest()
