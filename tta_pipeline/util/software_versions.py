"""Versions of the software that may affect a result."""

import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    "tta_pipeline", "torch", "torchvision", "timm", "open_clip_torch", "transformers", "numpy", "pillow", "simplejpeg",
    "dagster", "duckdb",
)  # fmt: skip


def software_versions() -> dict[str, str]:
    """Return the versions of the software that may affect a result, with platform and host."""
    installed = {name: _version(name) for name in _PACKAGES}
    return {"python": sys.version.split()[0], "platform": platform.platform(), "host": platform.node(), **installed}


@cache
def _version(package: str) -> str:
    """Return the version that this process found first: it stays with what it has imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
