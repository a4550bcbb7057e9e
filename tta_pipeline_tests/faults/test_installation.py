"""What must hold of the installation: Dagster's home and settings, what listens, and what a run is told."""

import ipaddress
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
import yaml

from tta_pipeline_tests.conftest import SMALL, SMALL_CELLS, Project, launcher
from tta_pipeline_tests.web.server import WebServer, web_server

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SETTINGS = REPOSITORY / "dagster.yaml"
CELL = SMALL_CELLS[-1]
RUNS = "{ runsOrError { ... on Runs { results { runId } } } }"


READ_ONLY = """
import ctypes, os, subprocess
assert 0 == ctypes.CDLL(None).unshare(0x20000)  # CLONE_NEWNS: it sees mounts of its own
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", os.environ["DAGSTER_HOME"]], check=True)
"""
"""Makes Dagster's home a folder in which nothing can be written, for one process alone."""


@pytest.fixture
def _may_mount() -> None:
    """Skip where file systems cannot be mounted."""
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode:
        pytest.skip("needs the right to mount file systems")


def test_the_shipped_settings_end_what_a_power_cut_left_and_repeat_only_crashes(tmp_path: Path, monkeypatch):
    """Dagster itself reads them so, and keeps its history beside them without an environment variable."""
    shutil.copy(SETTINGS, tmp_path)
    monkeypatch.chdir(tmp_path)

    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.run_monitoring_enabled
        assert instance.run_launcher.supports_check_run_worker_health
        assert 0 == instance.run_monitoring_max_runtime_seconds
        assert (True, 1) == (instance.run_retries_enabled, instance.run_retries_max_retries)
        assert not instance.run_retries_retry_on_asset_or_op_failure
        assert not instance.telemetry_enabled
        (limit,) = instance.get_concurrency_config().run_queue_config.tag_concurrency_limits
    assert ("dagster/partition", 1, {"applyLimitPerUniqueValue": True}) == (
        limit["key"],
        limit["limit"],
        limit["value"],
    )
    assert {".dagster", "dagster.yaml"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_a_run_that_a_power_cut_ended_is_repeated(project: Project, tmp_path: Path):
    """With everything killed the run stays started; by the shipped settings it is ended and done by another one."""
    settings = yaml.safe_load(SETTINGS.read_text())
    for place in ("storage", "local_artifact_storage", "compute_logs"):
        del settings[place]
    settings["run_monitoring"]["poll_interval_seconds"] = 1
    (project.home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    project.add_benchmark("small", SMALL)
    with web_server(project, tmp_path / "first.log") as server:
        run_id = server.start("small/images", CELL.key)
        while not server.steps_started(run_id):
            time.sleep(0.02)
        os.killpg(server.process.pid, signal.SIGKILL)
    with dg.DagsterInstance.from_config(str(project.home)) as instance:
        assert dg.DagsterRunStatus.STARTED == instance.get_run_by_id(run_id).status

    with web_server(project, tmp_path / "second.log") as server:
        assert "FAILURE" == server.end(run_id).status
        until = time.monotonic() + 60
        while len(runs := server.ask(RUNS)["runsOrError"]["results"]) < 2:
            assert time.monotonic() < until
            time.sleep(0.5)
        assert "SUCCESS" == server.end(runs[0]["runId"]).status


@pytest.mark.usefixtures("_may_mount")
@pytest.mark.parametrize("home", ["missing", "read-only"])
def test_a_dagster_home_that_is_none_is_one_line(project: Project, tmp_path: Path, home: str):
    """`make` ends with a line that names the path, and makes nothing there."""
    for name in ("Makefile", "dagster.yaml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "installed"):
        (tmp_path / name).touch()
    path = {"missing": tmp_path / "missing", "read-only": project.home}[home]
    code = f"{READ_ONLY if home == 'read-only' else ''}\nfrom dagster._cli import main; main()"
    forked = tmp_path / "bin" / "dagster"
    forked.parent.mkdir()
    forked.write_text(f'#!/bin/sh\nexec {launcher().python} -c {shlex.quote(code)} "$@"\n')
    forked.chmod(0o755)

    done = subprocess.run(
        ["make", "-s", "-C", tmp_path, f"BIN={forked.parent}", "INSTALLED=installed", ".dagster/.initialised"],
        env={**project.environment, "DAGSTER_HOME": str(path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    said, of_make = done.stderr.splitlines()
    assert str(path) in said
    assert "*** [" in of_make
    assert not (tmp_path / ".dagster" / ".initialised").exists()


@pytest.mark.usefixtures("_may_mount")
def test_a_read_only_history_is_a_fault_to_the_doctor(project: Project):
    """It names the folder and the way out."""
    look = (
        "from pathlib import Path; from tta_pipeline.extras.doctor.dagster_checks import check_dagster; "
        "print(*check_dagster(Path(os.environ['DAGSTER_HOME'])))"
    )

    done = project.run("python", "-c", f"{READ_ONLY}\n{look}")

    assert "mark='fault'" in done.stdout
    assert f"{project.home} cannot be written" in done.stdout
    assert "set DAGSTER_HOME to your own folder" in done.stdout


def test_no_document_or_program_opens_a_port_to_others():
    """Of all that is shipped nothing binds every address, and every command that serves names 127.0.0.1."""
    shipped = [REPOSITORY / name for name in ("Makefile", "README.md", "SECURITY.md", "dagster.yaml", "workspace.yaml")]
    for folder, pattern in (("docs", "*.md"), ("tta_pipeline", "*.*"), ("bench", "*.py")):
        shipped += [path for path in (REPOSITORY / folder).rglob(pattern) if path.suffix != ".pyc"]
    lines = [line for path in shipped if path.suffix != ".png" for line in path.read_text().splitlines()]

    assert not [line for line in lines if re.search(r"\b0\.0\.0\.0\b|(-h|--host)[ =](?!127\.0\.0\.1)[\d:]", line)]
    serving = [line for line in lines if re.search(r"\b(dagster|dg) dev |dagster-webserver -|-m http\.server", line)]
    assert len(serving) >= 2
    assert not [line for line in serving if not re.search(r"-[hb] 127\.0\.0\.1", line)]


@pytest.mark.slow
def test_people_who_only_look_can_only_look_and_only_from_here(project: Project):
    """The command that SECURITY.md gives them listens on loopback alone and starts no run."""
    (command,) = re.findall(r"`(dagster-webserver .*?)`", (REPOSITORY / "SECURITY.md").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program, *arguments = shlex.split(re.sub(r"-p \d+", f"-p {port}", command))
    process = subprocess.Popen(
        [BIN / program, *arguments], cwd=REPOSITORY, env=project.environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    server = WebServer(process=process, port=port, project=project)
    try:
        until = time.monotonic() + 60
        while not server.has_loaded():
            assert time.monotonic() < until
            time.sleep(0.2)
        listening = server.listening()
        with pytest.raises(AssertionError, match="UnauthorizedError"):
            server.start("digits_c/images", "fog|5")
    finally:
        assert server.stop()

    assert ("127.0.0.1", server.port) in listening
    assert all(ipaddress.ip_address(address).is_loopback for address, _ in listening), listening
