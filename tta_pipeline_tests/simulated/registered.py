"""Registers the simulated device in unmodified processes, by an entry point, as a package for a device does."""

from pathlib import Path

_METADATA = "Metadata-Version: 2.1\nName: simulated-device\nVersion: 0\n"
_ENTRY_POINTS = f"[torch.backends]\nsimulated = {__package__}.device:install\n"


def register_in(folder: Path) -> None:
    """Let torch register the device in each process that has *folder* in `PYTHONPATH`."""
    metadata = folder / "simulated_device-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(_METADATA)
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
