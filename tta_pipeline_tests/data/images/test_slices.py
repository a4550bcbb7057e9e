"""Slices of a file are a sequence of images that takes little room."""

import pickle
import tracemalloc
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tta_pipeline.data.images.listing import ListedImage
from tta_pipeline.data.images.slices import Slices

# As names come out of an archive: any bytes but NUL.
NAMES = st.binary(min_size=1, max_size=6).map(lambda data: data.replace(b"\0", b"x").decode("utf-8", "surrogateescape"))
IMAGES = st.lists(st.tuples(NAMES, NAMES, st.integers(0, 2**40), st.integers(0, 2**50)), max_size=30)


def slices(images: list[tuple[str, str, int, int]]) -> Slices:
    """Return *images* as slices of a file."""
    made = Slices(Path("a.tar"), modified_ns=7)
    for class_name, file_name, size_bytes, offset in images:
        made.append(class_name, file_name, size_bytes=size_bytes, offset=offset)
    return made


@given(IMAGES)
@settings(max_examples=40)
def test_what_goes_in_comes_out_sorted_by_name(images: list[tuple[str, str, int, int]]):
    """Also in another process, and whatever bytes the names are."""
    made = slices(images)
    expected = sorted(
        (ListedImage(name, file, "a.tar", size_bytes, 7, offset) for name, file, size_bytes, offset in images),
        key=lambda image: image.name,
    )

    assert expected == list(made) == list(pickle.loads(pickle.dumps(made)))
    assert len(images) == len(made)
    assert {name for name, *_ in images} == made.class_names


@given(IMAGES)
@settings(max_examples=40)
def test_a_name_that_stands_twice_is_found(images: list[tuple[str, str, int, int]]):
    """The same file of the same class; None if every one stands once."""
    counts = Counter((name, file) for name, file, _, _ in images)
    twice = {f"{name}/{file}" for (name, file), count in counts.items() if count > 1}

    found = slices(images).find_duplicate_name()

    assert found in twice if twice else found is None


def test_an_image_takes_some_fifty_bytes():
    """So that an archive of millions is listed in a few hundred MiB."""
    tracemalloc.start()
    made = slices([])
    for number in range(10_000):
        made.append(f"n{number % 1000:08d}", f"ILSVRC2012_val_{number:08d}.JPEG", size_bytes=20_000, offset=number)
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert current / len(made) < 75
