"""Checks of Dagster: where it keeps the history of runs, and how many it starts at once."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tta_pipeline.extras.doctor.finding import Finding, fault, note, ok
from tta_pipeline.extras.doctor.mounts import file_system_of, nearest_existing
from tta_pipeline.util.plurals import count_of

_HISTORY, _RUNS = "Dagster", "runs at once"
"""Subjects of the findings."""
_FEWEST_RUNS = 2
"""Runs at once on a machine with at most one device: one reads and writes shards while the other computes."""


def check_dagster(home: Path) -> Iterator[Finding]:
    """Check the settings in the folder *home*: SQLite must be able to lock, and each device needs a run."""
    path = home / "dagster.yaml"
    try:
        settings = yaml.safe_load(path.read_bytes()) if path.exists() else {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        yield fault(
            _HISTORY, f"{path} is not YAML ({' '.join(str(error).split())})", "fix that line, or remove the file"
        )
        return
    settings = settings if isinstance(settings, dict) else {}
    yield _check_storage(settings.get("storage") or {"sqlite": {}}, path)
    yield from _check_run_limit(settings)


def _check_storage(storage: dict[str, Any], settings_path: Path) -> Finding:
    if "sqlite" not in storage:
        return ok(_HISTORY, f"the history of runs is in {', '.join(storage)}, as set in {settings_path}")
    base_dir = (storage["sqlite"] or {}).get("base_dir", "history")
    if isinstance(base_dir, dict):
        base_dir = os.environ.get(str(base_dir.get("env")), "history")
    folder = settings_path.parent / base_dir
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
            "make it writable, or set DAGSTER_HOME to your own folder",
        )
    return ok(_HISTORY, f"{found}{'' if folder.exists() else ', to be made'}")


def _check_run_limit(settings: dict[str, Any]) -> Iterator[Finding]:
    """Compare the limit of Dagster's queue with the devices that torch finds."""
    try:
        limit = settings["concurrency"]["runs"]["max_concurrent_runs"]
    except (KeyError, TypeError):
        return  # a user's own queue, whose limit is unknown
    try:
        from tta_pipeline.evaluation.device.devices import device_facts
    except (ImportError, OSError):
        return  # reported with the devices
    if isinstance(limit, int):
        yield _compare_with_devices(limit, num_devices=len(device_facts()))


def _compare_with_devices(limit: int, *, num_devices: int) -> Finding:
    runs = "any number of runs" if limit < 0 else f"at most {count_of(limit, 'run')}"
    found = f"{runs} started from the web UI, {count_of(num_devices, 'device')}"
    enough = max(_FEWEST_RUNS, num_devices)
    advice = f"set concurrency.runs.max_concurrent_runs to {enough} in dagster.yaml"
    if 0 <= limit < num_devices:
        return note(_RUNS, f"{found}: the others stay idle", advice)
    if num_devices and (limit < 0 or limit > enough):
        waiting = f"{found}: runs beyond {num_devices} wait for a device, unless streams_per_device lets them share"
        return note(_RUNS, waiting, f"set streams_per_device in the configuration of compute, or {advice}")
    how = "each leases a free device" if num_devices else "they share the cores"
    return ok(_RUNS, f"{found}; {how}")
