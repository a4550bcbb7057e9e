"""The history of runs that a command of ours starts itself: the one that the web UI of the project shows."""

import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import dagster as dg
from dagster._core.instance.ref import InstanceRef

from tta_pipeline.util.locations import DAGSTER_SETTINGS, Locations, find_project


def find_home(locations: Locations) -> Path:
    """Return the folder of Dagster's settings and history.

    It is DAGSTER_HOME, else the project's folder, else `.dagster` in the data root.
    """
    home = os.environ.get("DAGSTER_HOME")
    return Path(home).absolute() if home else find_project() or locations.root / ".dagster"


@contextmanager
def open_history(locations: Locations) -> Iterator[dg.DagsterInstance]:
    """Yield the instance of `find_home`; a command keeps its history wherever it is typed.

    In the block its folder is the working directory, from which Dagster reads relative paths in `dagster.yaml`.
    """
    home = find_home(locations)
    home.mkdir(parents=True, exist_ok=True)
    settings = {} if (home / DAGSTER_SETTINGS).exists() else {"telemetry": {"enabled": False}}
    with chdir(home), dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home), overrides=settings)) as instance:
        yield instance
