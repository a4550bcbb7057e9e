"""Dagster's history of runs: where a command of ours opens it, and its files while a run reports to it."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tta_pipeline.defs.resources.run_launcher import end_killed_runs
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.locks import locked
from tta_pipeline.util.project_folder import DAGSTER_SETTINGS, find_project

_ON_THE_TERMINAL = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
"""What a command prints goes to the terminal; to copy it into a file, Dagster would start two processes for a run."""


def find_home(locations: Locations) -> Path:
    """Return the folder of Dagster's settings and history.

    It is DAGSTER_HOME, else the project's folder, else `.dagster` in the data root.
    """
    home = os.environ.get("DAGSTER_HOME")
    return Path(home).absolute() if home else find_project() or locations.root / ".dagster"


def open_history(locations: Locations) -> dg.DagsterInstance:
    """Return the instance of `find_home`, the same wherever a command is typed; use it as a context manager.

    Runs that were killed are marked as failed.
    """
    home = find_home(locations)
    home.mkdir(parents=True, exist_ok=True)
    path = home / DAGSTER_SETTINGS
    settings = yaml.safe_load(path.read_text()) if path.exists() else {"telemetry": {"enabled": False}}
    overrides = {**_with_absolute_folders(settings, home), "compute_logs": _ON_THE_TERMINAL}
    with locked(home / ".opening.lock"):  # two commands that make the tables of a new history disturb each other
        instance = dg.DagsterInstance.local_temp(str(home), overrides=overrides)
        end_killed_runs(instance)
    return instance


@contextmanager
def keep_history_open(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Let the run *run_id* be created, or report its partitions, fast where the history is in SQLite files.

    Dagster opens a file anew for each event, and SQLite merges the journal of a file when its last connection closes,
    so a connection stays open. And no event waits for the disk: what a power cut takes is in our own files, from which
    Dagster's history can be told again. Beside other work, reports of 75 finished cells took 35 s, and 20 s with open
    files; on an idle machine 9.5 s, and 8.3 s without the waits.
    """
    storage: Any = instance.event_log_storage
    path_of = getattr(storage, "path_for_shard", None)
    with ExitStack() as open_files:
        if path_of:
            with storage.run_connection(run_id):  # makes the file of a new run
                pass
            for shard in ("index", run_id):
                connection = open_files.enter_context(closing(sqlite3.connect(path_of(shard), check_same_thread=False)))
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # SQLite opens a file when asked
            open_files.enter_context(_commits_without_waiting())
        yield


@contextmanager
def _commits_without_waiting() -> Iterator[None]:
    """Let SQLite commit in the mode in which a power cut may take the last events, and damages nothing."""

    def relax(connection: object, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(Engine, "connect", relax)
    try:
        yield
    finally:
        event.remove(Engine, "connect", relax)


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
