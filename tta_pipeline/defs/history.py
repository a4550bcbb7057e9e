"""The history of runs that a command of ours starts itself: the one that the web UI of the project shows."""

import os
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from tta_pipeline.util.locations import DAGSTER_SETTINGS, Locations, find_project


def find_home(locations: Locations) -> Path:
    """Return the folder of Dagster's settings and history.

    It is DAGSTER_HOME, else the project's folder, else `.dagster` in the data root.
    """
    home = os.environ.get("DAGSTER_HOME")
    return Path(home).absolute() if home else find_project() or locations.root / ".dagster"


def open_history(locations: Locations) -> dg.DagsterInstance:
    """Return the instance of `find_home`, the same wherever a command is typed; use it as a context manager."""
    from tta_pipeline.defs.private_dagster import InstanceRef

    home = find_home(locations)
    home.mkdir(parents=True, exist_ok=True)
    path = home / DAGSTER_SETTINGS
    settings = yaml.safe_load(path.read_text()) if path.exists() else {"telemetry": {"enabled": False}}
    return dg.DagsterInstance.from_ref(
        InstanceRef.from_dir(str(home), overrides=_with_absolute_folders(settings, home))
    )


def _with_absolute_folders(settings: Any, home: Path) -> Any:
    """Return the settings with each `base_dir` below *home*: Dagster reads relative ones from the working directory."""
    if not isinstance(settings, dict):
        return settings
    return {
        name: str(home / value)
        if name == "base_dir" and isinstance(value, str)
        else _with_absolute_folders(value, home)
        for name, value in settings.items()
    }
