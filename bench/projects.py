"""A project in its own folder, whose assets a benchmark materializes as a user does."""

import os
import subprocess
import sys
from pathlib import Path

from tta_pipeline.domain.locations import Locations


def new_project(folder: Path, name: str, benchmark: str) -> Locations:
    """Write the benchmark file *name* and a Dagster home into the empty *folder*, and return the data root's paths."""
    locations = Locations(root=folder / "data")
    locations.benchmark_files.mkdir(parents=True)
    (locations.benchmark_files / f"{name}.yaml").write_text(benchmark)
    (folder / "dagster").mkdir()
    (folder / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return locations


def materialize(folder: Path, select: str, cells: str, *, config: str = "{}") -> None:
    """Materialize the assets *select* of the project in *folder* over the range *cells*."""
    command = [
        Path(sys.executable).with_name("dagster"), "asset", "materialize", "-m", "tta_pipeline.definitions",
        "--select", select, "--partition-range", cells, "--config-json", config,
    ]  # fmt: skip
    own = {"TTA_DATA_ROOT": str(folder / "data"), "DAGSTER_HOME": str(folder / "dagster"), "PYTHONWARNINGS": "ignore"}
    subprocess.run(command, env={**os.environ, **own}, check=True, capture_output=True)
