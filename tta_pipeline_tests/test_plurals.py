"""A number of things reads as a person would write it."""

import pytest

from tta_pipeline.util.plurals import count_of


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "run", "1 run"),
        (0, "run", "0 runs"),
        (1, "shard set", "1 shard set"),
        (1200, "class", "1,200 classes"),
        (2, "severity", "2 severities"),
        (2, "batch", "2 batches"),
        (2, "epoch", "2 epochs"),
    ],
)
def test_one_is_singular(number: int, noun: str, text: str):
    """Not `1 runs`."""
    assert text == count_of(number, noun)
