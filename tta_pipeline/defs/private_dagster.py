"""The names that this project takes from private modules of Dagster; no other file names these modules.

Each is looked up when it is first used, so all assets load with any Dagster. Import them where they are used, inside a
function, or for type checkers only.
"""

# ruff: noqa: PLC0414 - type checkers take a name from here only if it is imported as itself

from importlib import import_module
from typing import TYPE_CHECKING

import dagster as dg

from tta_pipeline.errors import DagsterVersionError

if TYPE_CHECKING:
    from dagster._check import CheckError as CheckError
    from dagster._core.definitions.asset_checks.asset_check_evaluation import (
        AssetCheckEvaluationTargetMaterializationData as AssetCheckEvaluationTargetMaterializationData,
    )
    from dagster._core.definitions.assets.graph.asset_graph import AssetGraph as AssetGraph
    from dagster._core.definitions.metadata import RawMetadataValue as RawMetadataValue
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition as UnresolvedAssetJobDefinition,
    )
    from dagster._core.instance.config import ConcurrencyConfig as ConcurrencyConfig
    from dagster._core.instance.ref import InstanceRef as InstanceRef
    from dagster._core.launcher import CheckRunHealthResult as CheckRunHealthResult
    from dagster._core.launcher import WorkerStatus as WorkerStatus
    from dagster._core.remote_origin import RegisteredCodeLocationOrigin as RegisteredCodeLocationOrigin
    from dagster._core.remote_origin import RemoteRepositoryOrigin as RemoteRepositoryOrigin
    from dagster._core.run_coordinator.queued_run_coordinator import RunQueueConfig as RunQueueConfig

_MODULES = {
    "AssetCheckEvaluationTargetMaterializationData": "_core.definitions.asset_checks.asset_check_evaluation",
    "CheckError": "_check",
    "CheckRunHealthResult": "_core.launcher",
    "ConcurrencyConfig": "_core.instance.config",
    "InstanceRef": "_core.instance.ref",
    "LocalArtifactStorage": "_core.storage.root",
    "LocalComputeLogManager": "_core.storage.local_compute_log_manager",
    "RegisteredCodeLocationOrigin": "_core.remote_origin",
    "RemoteRepositoryOrigin": "_core.remote_origin",
    "UnresolvedAssetJobDefinition": "_core.definitions.unresolved_asset_job_definition",
    "WorkerStatus": "_core.launcher",
}
"""Module of each name, below `dagster`; the two storages are named by `dagster.yaml`."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = f"{dg.__name__}.{_MODULES[name]}"
    try:
        found: object = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DagsterVersionError(
            f"Dagster {dg.__version__} has no {module}.{name}; expected a version that pyproject.toml allows: "
            "install one of them, or correct defs/private_dagster.py"
        ) from error
    globals()[name] = found
    return found
