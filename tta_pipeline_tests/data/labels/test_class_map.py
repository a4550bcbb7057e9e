"""Class maps as they lie on disk."""

from pathlib import Path

import pytest

from tta_pipeline.data.labels.class_map import pin_class_map
from tta_pipeline.errors import ClassMapError


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1, 2]", b'{"classes": ["x"], "sha256": "0"}'])
def test_a_damaged_class_map_is_refused(tmp_path: Path, damage: bytes):
    """A class map that was edited or cut is named, and not replaced in silence."""
    path = tmp_path / "class_map.json"
    path.write_bytes(damage)

    with pytest.raises(ClassMapError, match=r"class_map\.json"):
        pin_class_map(path, lambda: ("n01",))
