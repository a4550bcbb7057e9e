"""What is compared of a sample, whoever read it."""

import hashlib

Sample = tuple[str, int, str]
Samples = list[Sample]
"""Key, label and sha256 of the image's bytes."""


def sample(key: str, label: int, data: bytes) -> Sample:
    """Return what is compared of one sample."""
    return key, label, hashlib.sha256(data).hexdigest()
