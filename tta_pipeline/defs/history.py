"""Dagster's history of runs: the place where our commands open it."""

import os
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from tta_pipeline.defs.resources.run_launcher import end_killed_runs
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.locks import locked
from tta_pipeline.util.project_folder import DAGSTER_SETTINGS, find_project

_ON_THE_TERMINAL = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
"""Commands print to the terminal only: to copy output into files, Dagster would start two processes per run."""


def find_home(locations: Locations) -> Path:
    """Return the folder of Dagster's settings and history.

    The first of: DAGSTER_HOME, the project's folder, `.dagster` in the data root.
    """
    home = os.environ.get("DAGSTER_HOME")
    return Path(home).absolute() if home else find_project() or locations.root / ".dagster"


def open_history(locations: Locations) -> dg.DagsterInstance:
    """Return the instance of `find_home`, the same in every working directory; use it as a context manager.

    Runs that were killed are marked as failed.
    """
    home = find_home(locations)
    home.mkdir(parents=True, exist_ok=True)
    path = home / DAGSTER_SETTINGS
    settings = yaml.safe_load(path.read_text()) if path.exists() else {"telemetry": {"enabled": False}}
    overrides = {**_with_absolute_folders(settings, home), "compute_logs": _ON_THE_TERMINAL}
    with locked(home / ".opening.lock"):  # two commands that create the tables of a new history would conflict
        # Despite its name, the public function that takes overrides and opens a permanent instance.
        instance = dg.DagsterInstance.local_temp(str(home), overrides=overrides)
        end_killed_runs(instance)
    return instance


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
