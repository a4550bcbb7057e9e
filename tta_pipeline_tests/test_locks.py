"""A lock that somebody else has made serves as one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tta_pipeline.evaluation.device.leases import leased
from tta_pipeline.util.locks import locked, locked_folder


def by_lease(path: Path) -> AbstractContextManager[object]:
    """Lease the device whose lock is *path*."""
    return leased([path.stem.removeprefix("tta_pipeline-")], print, folder=path.parent)


@pytest.mark.parametrize(
    ("name", "road"),
    [
        (".metrics.lock", locked),
        (".folder.lock", lambda path: locked_folder(path.with_name("folder"))),
        ("tta_pipeline-cuda.lock", by_lease),
    ],
    ids=["locked", "changing", "leased"],
)
def test_a_lock_that_may_only_be_read_serves(
    tmp_path: Path, name: str, road: Callable[[Path], AbstractContextManager[object]]
):
    """As do one that a killed process left, and one that holds anything."""
    (tmp_path / name).write_text("1234\n")
    (tmp_path / name).chmod(0o444)

    with road(tmp_path / name):
        held = (tmp_path / name).exists()

    assert held
