"""One history between machines, in a Postgres that the tests start, with the settings in cluster/postgres/."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from tta_pipeline_tests.ports import free_ports
from tta_pipeline_tests.web.server import happens, is_running

SETTINGS = Path(__file__).parents[1] / "cluster" / "postgres" / "dagster.yaml"
PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), default=Path("initdb")).parent
KEY = dg.AssetKey(["mine", "tar_shards"])

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """A server of its own user, as it refuses to be root's."""

    folder: Path
    port: int

    def call(self, program: str, *arguments: str) -> None:
        """Run one of Postgres' programs to its end."""
        user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        subprocess.run([*user, PROGRAMS / program, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-p {self.port} -c unix_socket_directories= -c listen_addresses=127.0.0.1"
        self.call("pg_ctl", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-o", options, "-w", "start")

    def kill(self) -> None:
        """Kill it as a power cut would: all its processes at once, and without a word."""
        first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = subprocess.run(["pgrep", "-P", str(first)], capture_output=True, text=True, check=True).stdout
        everyone = (first, *map(int, children.split()))
        for process_id in everyone:
            os.kill(process_id, signal.SIGKILL)
        assert happens(lambda: not any(map(is_running, everyone)), within_s=60)
        (self.folder / "data" / "postmaster.pid").unlink()  # a zombie, which some containers keep, counts as alive


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    """A server with an empty database, and the environment of those who use it."""
    pytest.importorskip("dagster_postgres")
    if not (PROGRAMS / "initdb").exists():
        pytest.skip("Postgres is not installed")
    folder = Path(tempfile.mkdtemp(prefix="tta-postgres-"))
    server = Postgres(folder=folder, port=free_ports(1)[0])
    (folder / "password").write_text("secret")
    if os.getuid() == 0:
        for path in (folder, folder / "password"):
            shutil.chown(path, "postgres")
    server.call(
        "initdb", "-D", f"{folder}/data", "-U", "dagster", "-A", "scram-sha-256", "--pwfile", f"{folder}/password"
    )
    settings = {
        "HOST": "127.0.0.1",
        "PORT": server.port,
        "DATABASE": "postgres",
        "USER": "dagster",
        "PASSWORD": "secret",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"TTA_POSTGRES_{name}", str(value))
    monkeypatch.setenv("TTA_RUN_LOGS", str(folder / "logs"))
    server.start()
    try:
        yield server
    finally:
        server.call("pg_ctl", "-D", f"{folder}/data", "-m", "immediate", "stop")
        shutil.rmtree(folder)


def machine(folder: Path, open_: ExitStack) -> dg.DagsterInstance:
    """Return the history as a machine with this home has it."""
    folder.mkdir()
    shutil.copy(SETTINGS, folder)
    return open_.enter_context(dg.DagsterInstance.from_config(str(folder)))


def test_what_one_machine_reports_another_sees_also_after_a_power_cut(postgres: Postgres, tmp_path: Path):
    """Each cell once."""
    with ExitStack() as open_:
        one, other = (machine(tmp_path / name, open_) for name in ("one", "other"))
        for number in range(20):
            instance = (one, other)[number % 2]
            instance.report_runless_asset_event(dg.AssetMaterialization(KEY, partition=f"fog|{number}"))

        postgres.kill()
        postgres.start()

    with ExitStack() as open_:
        for name in ("a", "b"):
            instance = machine(tmp_path / name, open_)
            found = instance.fetch_materializations(KEY, limit=100).records
            assert sorted(f"fog|{number}" for number in range(20)) == sorted(each.partition_key for each in found)


def test_a_wrong_password_is_refused(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    """The settings take it from the environment; Dagster says why in its log."""
    monkeypatch.setenv("TTA_POSTGRES_PASSWORD", "wrong")
    refusal = pytest.importorskip("dagster_postgres.utils").DagsterPostgresException

    with ExitStack() as open_, pytest.raises(refusal):
        machine(tmp_path / "one", open_).get_runs()
    assert "password authentication failed" in caplog.text
