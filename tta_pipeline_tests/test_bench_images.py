"""The images of the measured pages are unpacked whole, or not at all."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.leaderboard import first_test_images
from bench.open_set import small_photographs
from bench.photographs import unpacked_photographs
from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.conftest import jpeg

WNID = "n01440764"  # a tench is none of CIFAR-10's classes


@pytest.mark.parametrize(
    ("archive", "unpack"),
    [
        ("test.tar.gz", first_test_images),
        ("photographs.tar.gz", small_photographs),
        ("photographs.tar.gz", unpacked_photographs),
    ],
)
def test_images_of_which_some_were_unpacked_are_unpacked_again(
    tmp_path: Path, archive: str, unpack: Callable[[Locations, Path], Path]
):
    """The first time, the last image cannot be written: its name is too long for a file."""
    locations = Locations(root=tmp_path / "data")
    (tmp_path / "wnids.txt").write_text("\n".join([WNID, *map(str, range(999))]))
    with pytest.raises(OSError, match="too long"):
        unpack(locations, write_archive(tmp_path / archive, "z" * 300))

    images = unpack(locations, write_archive(tmp_path / archive, "last"))

    assert ["0", "1", "2", "last"] == sorted(path.stem for path in images.rglob("*") if path.is_file())
    assert [WNID] == [path.name for path in images.iterdir()]


def write_archive(path: Path, last: str) -> Path:
    """Write four images of a class, and return the folder of the archive."""
    with tarfile.open(path, "w:gz") as tar:
        for number, name in enumerate(("0", "1", "2", last)):
            data = jpeg(number)
            member = tarfile.TarInfo(f"images/{WNID}/{name}.JPEG")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path.parent
