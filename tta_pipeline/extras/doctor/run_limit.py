"""Check of the number of runs that Dagster starts at once, which should equal the number of devices."""

from collections.abc import Callable, Iterator
from pathlib import Path

from tta_pipeline.errors import SettingsError
from tta_pipeline.evaluation.device.count import CONCURRENT_RUNS_VARIABLE, FEWEST_CONCURRENT_RUNS
from tta_pipeline.extras.doctor.finding import Finding, fault, note, ok
from tta_pipeline.extras.doctor.project import dagster_home
from tta_pipeline.util.plurals import count_of

_SUBJECT = "runs at once"


def check_run_limit(queue_limit: Callable[[Path], int | None]) -> Iterator[Finding]:
    """Compare the limit of Dagster's queue with the devices that torch finds.

    Args:
        queue_limit: Reads from the folder of `dagster.yaml` how many runs the queue starts at once; -1: any number,
            None: it has no queue.
    """
    home = dagster_home()
    if not (home.is_absolute() and home.is_dir()):
        return  # reported with Dagster's storage
    try:
        limit = queue_limit(home)
    except SettingsError as error:
        yield fault(_SUBJECT, str(error), "until then no run starts from the web UI")
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
    found = f"{runs} started from the web UI or by submit, {devices}"
    if 0 <= limit < num_devices:
        return note(
            _SUBJECT,
            f"{found}: the others stay idle",
            f"export {CONCURRENT_RUNS_VARIABLE}={num_devices} before make ui, and take max_concurrent_runs out of "
            "dagster.yaml",
        )
    enough = max(FEWEST_CONCURRENT_RUNS, num_devices)
    if num_devices and (limit < 0 or limit > enough):
        return note(
            _SUBJECT,
            f"{found}: runs beyond {num_devices} wait for one, unless streams_per_device lets them share it",
            f"set streams_per_device in the configuration of compute, or export {CONCURRENT_RUNS_VARIABLE}={enough} "
            "before make ui",
        )
    how = "each leases one that no other run has" if num_devices else "they share the cores"
    return ok(_SUBJECT, f"{found}; {how}")
