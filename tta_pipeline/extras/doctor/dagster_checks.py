"""Checks of Dagster: where it keeps the history of runs, and how many it starts at once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from tta_pipeline.errors import SettingsError
from tta_pipeline.evaluation.device.count import CONCURRENT_RUNS_VARIABLE, FEWEST_CONCURRENT_RUNS
from tta_pipeline.extras.doctor.finding import Finding, fault, note, ok
from tta_pipeline.extras.doctor.mounts import file_system_of, nearest_existing
from tta_pipeline.util.plurals import count_of

_HISTORY, _RUNS = "Dagster", "runs at once"
"""Subjects of the findings."""


def check_history(home: Path) -> Iterator[Finding]:
    """Check where Dagster keeps the history of runs, by its settings in *home*; SQLite must be able to lock there."""
    path = home / "dagster.yaml"
    try:
        settings = yaml.safe_load(path.read_bytes()) if path.exists() else {}
    except yaml.YAMLError:
        return  # Dagster says so when it is asked for the limit of runs
    storage = (settings if isinstance(settings, dict) else {}).get("storage") or {"sqlite": {}}
    if "sqlite" not in storage:
        yield ok(_HISTORY, f"the history of runs is in {', '.join(storage)}, as {path} says")
        return
    base_dir = (storage["sqlite"] or {}).get("base_dir", "history")
    if isinstance(base_dir, dict):
        base_dir = os.environ.get(str(base_dir.get("env")), "history")
    yield _check_sqlite(home / base_dir, path)


def _check_sqlite(folder: Path, settings_path: Path) -> Finding:
    found, made = f"the history of runs is SQLite in {folder}", nearest_existing(folder)
    file_system = file_system_of(folder)
    if file_system and file_system.is_network:
        return fault(
            _HISTORY,
            f"{found}, on {file_system.kind}, where SQLite loses data or locks up",
            f"set storage.sqlite.base_dir in {settings_path} to a folder on a local disk, or storage to postgres",
        )
    if not os.access(made, os.W_OK | os.X_OK):
        return fault(
            _HISTORY,
            f"{found}, and {made} cannot be written to",
            "make it writable, or set DAGSTER_HOME to a folder of yours",
        )
    return ok(_HISTORY, f"{found}{'' if folder.exists() else ', to be made'}")


def check_run_limit(home: Path, queue_limit: Callable[[Path], int | None]) -> Iterator[Finding]:
    """Compare the limit of Dagster's queue with the devices that torch finds.

    Args:
        home: Folder of `dagster.yaml`.
        queue_limit: Reads from *home* how many runs the queue starts at once; -1: any number, None: it has no queue.
    """
    try:
        limit = queue_limit(home)
    except SettingsError as error:
        yield fault(_RUNS, str(error), "until then no run starts from the web UI")
        return
    if limit is None:
        return  # a user's own queue, whose limit is unknown
    try:
        from tta_pipeline.evaluation.device.devices import device_facts
    except (ImportError, OSError):
        return  # reported with the devices
    yield _compare_with_devices(limit, num_devices=len(device_facts()))


def _compare_with_devices(limit: int, *, num_devices: int) -> Finding:
    runs = "any number of runs" if limit < 0 else f"at most {count_of(limit, 'run')}"
    devices = count_of(num_devices, "device")
    found = f"{runs} started from the web UI, {devices}"
    enough = max(FEWEST_CONCURRENT_RUNS, num_devices)
    advice = (
        f"export {CONCURRENT_RUNS_VARIABLE}={enough} before make ui, and take max_concurrent_runs out of dagster.yaml"
    )
    if 0 <= limit < num_devices:
        return note(_RUNS, f"{found}: the others stay idle", advice)
    if num_devices and (limit < 0 or limit > enough):
        waiting = f"{found}: runs beyond {num_devices} wait for one, unless streams_per_device lets them share it"
        return note(_RUNS, waiting, advice)
    how = "each leases one that no other run has" if num_devices else "they share the cores"
    return ok(_RUNS, f"{found}; {how}")
