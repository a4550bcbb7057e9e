"""Limit of the runs that Dagster's queue starts at once: the number of devices."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import yaml

from tta_pipeline.errors import SettingsError
from tta_pipeline.evaluation.device.count import concurrent_runs

if TYPE_CHECKING:
    from tta_pipeline.defs.private_dagster import RunQueueConfig


class DeviceRunCoordinator(dg.QueuedRunCoordinator[dg.DagsterInstance]):
    """Dagster's queue, to be named in `dagster.yaml`, with a limit that fits the machine of the daemon.

    By Dagster's own rule, `max_concurrent_runs` in the section `concurrency` of `dagster.yaml` overrides this limit.
    """

    @classmethod
    def config_type(cls) -> dict[str, object]:
        """Return the settings of Dagster's queue without the limit, which would have no effect here."""
        settings: Any = super().config_type()
        return {name: field for name, field in settings.items() if name != "max_concurrent_runs"}

    def get_run_queue_config(self) -> "RunQueueConfig":
        """Return the settings of the queue with the limit of this machine."""
        return super().get_run_queue_config()._replace(max_concurrent_runs=concurrent_runs())


def queue_limit(home: Path) -> int | None:
    """Return how many runs the `dagster.yaml` in *home* allows at once; -1: any number, None: it has no queue.

    Raises:
        SettingsError: Dagster rejects the file.
    """
    from tta_pipeline.defs.private_dagster import CheckError, ConcurrencyConfig, InstanceRef

    try:
        instance = InstanceRef.from_dir(str(home))
        queue = instance.run_coordinator
        if not isinstance(queue, dg.QueuedRunCoordinator):
            return None
        settings: Any = instance.settings.get("concurrency") or {}
        concurrency = ConcurrencyConfig.from_concurrency_settings(settings, queue.get_run_queue_config())
    except (dg.DagsterError, CheckError, yaml.YAMLError) as error:
        faults = error.errors if isinstance(error, dg.DagsterInvalidConfigError) else ()
        found = str(faults[0].message if faults else error).partition("\n")[0].partition(" Expected: ")[0]
        raise SettingsError(f"{home / 'dagster.yaml'}: {found}; expected what Dagster accepts: correct it") from error
    assert concurrency.run_queue_config, "a queue has settings"
    return concurrency.run_queue_config.max_concurrent_runs
