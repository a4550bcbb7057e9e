"""The table of contents: benchmark files in, Dagster definitions out.

`defs` is the code location; `assets_only` is for the code location of another project.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from tta_pipeline.benchmarks.load_files import LoadedBenchmarks, load_all_benchmarks
from tta_pipeline.defs.automation import automation_sensor
from tta_pipeline.defs.benchmark_assets import RESOURCE_PREFIX, asset_definitions
from tta_pipeline.defs.faults import fault_key
from tta_pipeline.defs.jobs import benchmark_jobs
from tta_pipeline.defs.new_cells_sensor import new_cells_sensor
from tta_pipeline.defs.resources import console
from tta_pipeline.domain.locations import EMBEDDED_BENCHMARKS, Locations
from tta_pipeline.util.environment import let_waiting_threads_sleep
from tta_pipeline.util.source_code import import_from_here

if TYPE_CHECKING:
    defs: dg.Definitions

# Partitioned checks and backfill policies are marked preview and beta; the pinned version is the one we tested.
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
warnings.filterwarnings("ignore", category=dg.BetaWarning)


def build_definitions(locations: Locations) -> dg.Definitions:
    """Return the definitions of every benchmark, the embedded ones and those under the data root.

    Each fault in a benchmark file becomes an asset that describes it; see `defs.faults`.
    """
    return _definitions(load_all_benchmarks(locations), locations)


def _definitions(loaded: LoadedBenchmarks, locations: Locations) -> dg.Definitions:
    benchmarks = loaded.benchmarks
    return dg.Definitions.merge(
        asset_definitions(loaded, locations),
        *(
            benchmark_jobs(each, [fault_key(fault) for fault in loaded.faults_of(each.name)])
            for each in benchmarks.values()
        ),
        dg.Definitions(
            sensors=[
                automation_sensor(),
                *(new_cells_sensor(each) for each in benchmarks.values() if not each.is_drawn),
            ],
            # Each run is already a process, and its steps run in sequence: more processes would only cost imports.
            executor=dg.in_process_executor,
            loggers={"console": console},
        ),
    )


def assets_only(root: str | Path = "", *, benchmarks: Sequence[str] = ()) -> dg.Definitions:
    """Return assets, checks and resources for your own Dagster project, to be merged with its definitions.

    There is no executor, logger, job or sensor. The keys of the resources are `tta_store`, `tta_metrics` and
    `tta_compute`. `dagster.yaml` needs no change.

    Args:
        root: The data root; empty: `TTA_DATA_ROOT`, or `data/` in the working directory.
        benchmarks: Names of the benchmarks; empty: all, but the embedded `digits_c` only if there are no others or if
            it has data under the data root.

    Raises:
        BenchmarkFileError: a name in *benchmarks* is not a benchmark's, or its file is faulty.
    """
    import_from_here()
    locations = Locations.from_roots(str(root), os.environ.get("TTA_SHARDS_ROOT", ""))
    loaded = load_all_benchmarks(locations)
    shown = loaded.only(benchmarks) if benchmarks else _without_unused_embedded(loaded, locations)
    return asset_definitions(shown, locations, RESOURCE_PREFIX)


def _without_unused_embedded(loaded: LoadedBenchmarks, locations: Locations) -> LoadedBenchmarks:
    """Return *loaded* without the embedded benchmarks that have no data, unless the user has no benchmark files."""
    embedded = {path.stem for path in EMBEDDED_BENCHMARKS.glob("*.yaml")}
    if not loaded.faults and loaded.benchmarks.keys() <= embedded:
        return loaded
    unused = {name for name in embedded if not locations.has_data(name)}
    return replace(loaded, benchmarks={name: each for name, each in loaded.benchmarks.items() if name not in unused})


def __getattr__(name: str) -> object:
    """Build `defs`, the code location, on first access: `assets_only` does not need it.

    It leaves out the embedded benchmark in projects that do not use it; commands use `build_definitions`, which has
    all benchmarks.
    """
    if name != "defs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    let_waiting_threads_sleep()
    import_from_here()
    locations = Locations.from_environment()
    globals()["defs"] = found = _definitions(
        _without_unused_embedded(load_all_benchmarks(locations), locations), locations
    )
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), "defs"})
