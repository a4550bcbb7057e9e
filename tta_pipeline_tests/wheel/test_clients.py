"""The database is read by the DuckDB clients that users have."""

import subprocess
import sys
from pathlib import Path

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline_tests.results.database.made import record

pytestmark = pytest.mark.wheel

READ_ALL = """
import sys, duckdb
client = duckdb.connect(sys.argv[1], read_only=True)
names = client.execute(
    "SELECT view_name FROM duckdb_views() WHERE NOT internal UNION ALL SELECT table_name FROM duckdb_tables()"
).fetchall()
for name in (*(name for name, in names), "mce_against('tent')", "progress_by(100)", "utility_in_time(0.1, 0.2)"):
    client.execute(f"FROM {name}").fetchall()
print(duckdb.__version__, client.execute("SELECT count(*) FROM evaluations").fetchone()[0])
"""


@pytest.mark.parametrize("version", ["1.1.3", "1.2.2", "1.4.0", "1.4.1", "1.5.1"])
def test_older_clients_read_every_view(tmp_path: Path, version: str):
    """1.4.0 and 1.4.1 do not find the names of a WITH inside a macro."""
    locations = Locations(root=tmp_path / "data")
    for experiment in ("source", "tent"):
        record(locations, experiment=experiment, method=experiment, stream="online", fingerprint=experiment)
    publish_metrics(locations)
    client = tmp_path / "client"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", client, f"duckdb=={version}"]
    subprocess.run(pip, check=True, capture_output=True)

    asked = [sys.executable, "-c", READ_ALL, locations.metrics]
    done = subprocess.run(asked, env={"PYTHONPATH": str(client)}, capture_output=True, text=True, check=False)

    assert f"{version} 2" == done.stdout.strip(), done.stderr
