"""Images as slices of one file, stored in about 50 bytes each, because an archive has millions."""

import os
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, overload

from tta_pipeline.data.images.listing import ListedImage


class Slices(Sequence[ListedImage]):
    """Images sorted by name; every iteration creates them again, see `Listing.in_memory`.

    Args:
        path: The file that holds the slices.
        modified_ns: Modification time of the file; None for our own temporary file.
    """

    def __init__(self, path: Path, *, modified_ns: int | None) -> None:
        self._path = os.fspath(path)
        self._modified_ns = modified_ns
        self._classes: dict[str, int] = {}
        self._class_of, self._sizes_bytes, self._offsets = array("l"), array("q"), array("q")
        self._names = bytearray()

    def append(self, class_name: str, file_name: str, *, size_bytes: int, offset: int) -> None:
        """Add one image."""
        self._class_of.append(self._classes.setdefault(class_name, len(self._classes)))
        self._sizes_bytes.append(size_bytes)
        self._offsets.append(offset)
        self._names += file_name.encode("utf-8", "surrogateescape") + b"\0"

    @property
    def class_names(self) -> frozenset[str]:
        """The classes of the images."""
        return frozenset(self._classes)

    def find_duplicate_name(self) -> str | None:
        """Return a name that occurs more than once, or None."""
        # Avoid creating millions of image objects here.
        pairs = list(zip(self._class_of, bytes(self._names).split(b"\0"), strict=False))
        if len(set(pairs)) == len(pairs):
            return None
        (number, name), _ = Counter(pairs).most_common(1)[0]
        return f"{list(self._classes)[number]}/{name.decode('utf-8', 'surrogateescape')}"

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[ListedImage]:
        names = self._names.decode("utf-8", "surrogateescape").split("\0")
        classes = list(self._classes)
        columns = zip(
            (classes[number] for number in self._class_of), names, repeat(self._path), self._sizes_bytes,
            repeat(self._modified_ns), self._offsets, repeat(None), strict=False,
        )  # fmt: skip
        return iter(sorted(map(ListedImage._make, columns), key=attrgetter("name")))

    @overload
    def __getitem__(self, index: int) -> ListedImage: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ListedImage, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]
