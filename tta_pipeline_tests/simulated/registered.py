"""The simulated device in processes that know nothing of it, as a package for a device of one's own has it."""

from pathlib import Path

_METADATA = "Metadata-Version: 2.1\nName: simulated-device\nVersion: 0\n"
_ENTRY_POINTS = f"[torch.backends]\nsimulated = {__package__}.device:install\n"


def register_in(folder: Path) -> None:
    """Have torch register the device in each process that finds *folder* in `PYTHONPATH`."""
    metadata = folder / "simulated_device-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(_METADATA)
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
