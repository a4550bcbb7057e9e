"""Checks of Dagster: where it keeps the history of runs, and how many it starts at once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tta_pipeline.errors import SettingsError
from tta_pipeline.evaluation.device.count import CONCURRENT_RUNS_VARIABLE, FEWEST_CONCURRENT_RUNS
from tta_pipeline.extras.doctor.finding import Finding, fault, note, ok
from tta_pipeline.extras.doctor.mounts import file_system_of
from tta_pipeline.util.plurals import count_of

_HISTORY, _RUNS = "Dagster", "runs at once"
"""Subjects of the findings."""


def check_dagster_storage() -> Iterator[Finding]:
    """Check where Dagster keeps the history of runs; SQLite must be able to lock files there."""
    home = _dagster_home() if os.environ.get("DAGSTER_HOME") else None
    if home and not (home.is_absolute() and home.is_dir()):
        yield fault(
            _HISTORY,
            f"DAGSTER_HOME is {home}; expected the absolute path of an existing folder",
            "create it, or unset DAGSTER_HOME and work in the project folder, whose dagster.yaml is then used",
        )
        return
    settings_path = (home or Path.cwd()) / "dagster.yaml"
    if not home and not settings_path.exists():
        yield note(
            _HISTORY,
            f"neither DAGSTER_HOME nor {settings_path} exists, so the history of runs is not kept",
            "work in the project folder, which has a dagster.yaml, or set DAGSTER_HOME; tta-pipeline init makes one",
        )
        return
    try:
        text = settings_path.read_bytes().decode() if settings_path.exists() else "{}"
        settings = yaml.safe_load(text)
    except OSError as error:
        yield fault(_HISTORY, f"{settings_path} cannot be read ({error.strerror})", "correct or remove it")
        return
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        yield fault(_HISTORY, f"{settings_path} is not YAML ({error})", "correct it")
        return
    yield _check_history(settings if isinstance(settings, dict) else {}, home or Path.cwd(), settings_path)


def _dagster_home() -> Path:
    """Return the folder in which Dagster looks for `dagster.yaml`."""
    return Path(os.environ.get("DAGSTER_HOME") or Path.cwd()).expanduser()


def _check_history(settings: dict[str, Any], home: Path, settings_path: Path) -> Finding:
    storage = settings.get("storage") or {"sqlite": {"base_dir": str(home / "history")}}
    if "sqlite" not in storage:
        return ok(_HISTORY, f"the history of runs is in {', '.join(storage)}, as {settings_path} says")
    base_dir = (storage["sqlite"] or {}).get("base_dir", home / "history")
    if isinstance(base_dir, dict):
        base_dir = os.environ.get(str(base_dir.get("env")), home / "history")
    folder = Path(base_dir).absolute()
    file_system = file_system_of(folder)
    if file_system and file_system.is_network:
        return fault(
            _HISTORY,
            f"the history of runs is SQLite in {folder}, on {file_system.kind}, where SQLite loses data or locks up",
            f"set storage.sqlite.base_dir in {settings_path} to a folder on a local disk, or storage to postgres",
        )
    made = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(made, os.W_OK | os.X_OK):
        return fault(
            _HISTORY,
            f"the history of runs is in {folder}, and {made} cannot be written to",
            "make it writable, or set DAGSTER_HOME to a folder of yours",
        )
    return ok(_HISTORY, f"the history of runs is in {folder}{'' if folder.exists() else ', to be made'}")


def check_run_limit(queue_limit: Callable[[Path], int | None]) -> Iterator[Finding]:
    """Compare the limit of Dagster's queue with the devices that torch finds.

    Args:
        queue_limit: Reads from the folder of `dagster.yaml` how many runs the queue starts at once; -1: any number,
            None: it has no queue.
    """
    home = _dagster_home()
    if not (home.is_absolute() and home.is_dir()):
        return  # reported with Dagster's storage
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
    if 0 <= limit < num_devices:
        return note(
            _RUNS,
            f"{found}: the others stay idle",
            f"export {CONCURRENT_RUNS_VARIABLE}={num_devices} before make ui, and take max_concurrent_runs out of "
            "dagster.yaml",
        )
    enough = max(FEWEST_CONCURRENT_RUNS, num_devices)
    if num_devices and (limit < 0 or limit > enough):
        return note(
            _RUNS,
            f"{found}: runs beyond {num_devices} wait for one, unless streams_per_device lets them share it",
            f"set streams_per_device in the configuration of compute, or export {CONCURRENT_RUNS_VARIABLE}={enough} "
            "before make ui",
        )
    how = "each leases one that no other run has" if num_devices else "they share the cores"
    return ok(_RUNS, f"{found}; {how}")
