"""The layouts of shards made by others, one record for each: adoption and the verb's help follow this table.

No layout has to be named or detected, since shards describe their contents: a member is read if any layout has it,
and a file next to the shards is compared if it belongs to a layout.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StatedTotals:
    """Facts about shards from a file next to them; a missing fact is None or empty."""

    num_shards: int | None = None
    """Number of all shards in the folder."""
    num_samples: Mapping[str, int] = field(default_factory=dict)
    """Number of samples by the beginning of the shards' names, such as `train-`."""
    folder_md5: str | None = None
    """md5 of the sorted md5s of all files that the folder held before this file was written."""
    added_later: frozenset[str] = frozenset()
    """Folders in it that this md5 does not cover."""


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """Shards as one program writes them, as far as other layouts do not allow them already."""

    name: str
    images: frozenset[str] = frozenset()
    """Types of the members that are images: the last part of the extension."""
    classes: frozenset[str] = frozenset()
    """Types of the members that hold a class as text: a label if it is a whole number in any form, otherwise a name."""
    objects: frozenset[str] = frozenset()
    """Types of the members that hold a class as a field of a JSON object."""
    label_fields: tuple[str, ...] = ()
    """Fields of such an object that contain a label if their value is a whole number in any form."""
    name_fields: tuple[str, ...] = ()
    """Fields of such an object that contain a class name if their value is text and no field contains a label."""
    main_names: frozenset[str] = frozenset()
    """First parts of extensions such as `input.jpg` that mark the image, or the class, among several members."""
    totals_file: str = ""
    """Name of a file next to the shards with their totals; empty if there is none."""
    parse_totals: Callable[[str], StatedTotals | None] = lambda _: None
    """Returns the totals in such a file, given its text; None if another program wrote it."""


def _parse_graphcore_metadata(text: str) -> StatedTotals | None:
    """Return the totals in the `metadata.json` of Graphcore's `create_webdataset.py`.

    See `datasets/create_webdataset.py` and `validate_dataset.py` in applications/pytorch/cnns of
    github.com/graphcore/examples, release 2.4.0. Their `distributed_webdataset.py` adds a folder `distributed`, after
    which their own validation fails.
    """
    found: Any = json.loads(text)
    splits = ("train", "validation")
    if not isinstance(found, dict) or not all(f"{split}_length" in found for split in splits):
        return None
    if not re.fullmatch(r"[0-9a-f]{32}", str(found.get("checksum"))):
        return None
    lengths = {f"{split}-": found[f"{split}_length"] for split in splits}
    return StatedTotals(
        num_samples={split: length for split, length in lengths.items() if isinstance(length, int)},
        folder_md5=found["checksum"],
        added_later=frozenset({"distributed"}),
    )


def _parse_number_of_shards(text: str) -> StatedTotals | None:
    """Return the totals in the `nshards.txt` of CLIP_benchmark's `webdataset_builder.py`."""
    number = text.strip()
    return StatedTotals(num_shards=int(number)) if re.fullmatch(r"[0-9]{1,9}", number) else None


LAYOUTS = (
    ShardLayout(
        name="webdataset",
        images=frozenset({"jpg", "jpeg", "png", "bmp", "webp", "npy"}),
        classes=frozenset({"cls"}),
        objects=frozenset({"json"}),
        label_fields=("label", "cls", "class", "class_id", "class_idx", "class_index", "label_id", "target"),
        name_fields=("label", "cls", "class", "class_name", "label_name", "wnid", "synset"),
        main_names=frozenset({"image", "img", "label", "target"}),
    ),
    ShardLayout(name="imagenet-wds"),
    ShardLayout(name="imagenet-tools", images=frozenset({"img"})),
    ShardLayout(
        name="graphcore",
        images=frozenset({"pth"}),
        totals_file="metadata.json",
        parse_totals=_parse_graphcore_metadata,
    ),
    ShardLayout(
        name="clip-benchmark",
        totals_file="nshards.txt",
        parse_totals=_parse_number_of_shards,
    ),
    ShardLayout(
        name="ccc",
        main_names=frozenset({"input", "output"}),
    ),
)
"""Every layout. A new one needs this record, a row in docs/guides/own-images.md, and an example in the tests."""

IMAGE_TYPES = frozenset[str]().union(*(layout.images for layout in LAYOUTS))
"""Types of images: `img` is any of the formats, and `pth` a uint8 tensor (3, H, W) written by torch.save."""
CLASS_TYPES = frozenset[str]().union(*(layout.classes for layout in LAYOUTS))
"""Types of members that hold a class as text."""
OBJECT_TYPES = frozenset[str]().union(*(layout.objects for layout in LAYOUTS))
"""Types of members that hold a class as a field of a JSON object."""
LABEL_TYPES = CLASS_TYPES | OBJECT_TYPES
"""Types of members that hold a class."""
LABEL_FIELDS = tuple(dict.fromkeys(name for layout in LAYOUTS for name in layout.label_fields))
"""Fields of JSON objects that contain a label if their value is a whole number in any form."""
NAME_FIELDS = tuple(dict.fromkeys(name for layout in LAYOUTS for name in layout.name_fields))
"""Fields of JSON objects that contain a class name if their value is text and no field contains a label."""
MAIN_NAMES = frozenset[str]().union(*(layout.main_names for layout in LAYOUTS))
"""First parts of extensions that mark the image, or the class, among several members."""
REFUSED_TYPES = frozenset({"pyd", "pkl", "pickle", "exe"})
"""Types that a careless reader would execute; no layout may have them."""


def find_stated_totals(folder: Path) -> Iterator[tuple[str, StatedTotals]]:
    """Yield the name of each file in *folder* that describes the shards in it, and the totals in this file."""
    for layout in LAYOUTS:
        path = folder / layout.totals_file
        if not layout.totals_file or not path.is_file():
            continue
        try:
            stated = layout.parse_totals(path.read_bytes().decode())
        except ValueError:  # another program's file of this name
            continue
        if stated is not None:
            yield layout.totals_file, stated
