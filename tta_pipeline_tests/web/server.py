"""The web UI as started by `make ui`, and the requests of tests."""

import http.client
import ipaddress
import json
import os
import re
import shlex
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tta_pipeline_tests.conftest import Project, launcher
from tta_pipeline_tests.ports import free_ports

REPOSITORY = Path(__file__).parents[2]
_LISTENING = "0A"
_EVENTS = """query ($run: ID!) {
  runOrError(runId: $run) { ... on Run { eventConnection { events { __typename ... on MessageEvent { message } } } } }
}"""
_CANCEL = "mutation ($run: String!) { terminateRun(runId: $run) { __typename } }"
_PATIENCE_S = 400.0  # 60 s were not enough on a busy machine


@dataclass(frozen=True, kw_only=True)
class Run:
    """Status of an ended run, and the text of its errors."""

    run_id: str
    status: str
    errors: str


@dataclass(frozen=True, kw_only=True)
class WebServer:
    """A running `dg dev`: the web server, the daemon, the code server and the runs they start."""

    process: subprocess.Popen[str]
    port: int
    project: Project

    @property
    def url(self) -> str:
        """URL for a browser."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the data that answer a GraphQL query."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            body = json.dumps({"query": query, "variables": variables})
            connection.request("POST", "/graphql", body, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert "errors" not in answer, answer["errors"]
        data: dict[str, Any] = answer["data"]
        return data

    def launch(self, asset: str, partition: str) -> Run:
        """Materialize one partition of *asset* as the web UI does, and wait for the end of the run."""
        return self.end(self.start(asset, partition))

    def start(self, asset: str, partition: str) -> str:
        """Start to materialize one partition of *asset* as the web UI does, and return the run's id."""
        return self.start_job("__ASSET_JOB", [asset], {"dagster/partition": partition})

    def start_job(self, name: str, assets: Sequence[str] | None, tags: Mapping[str, str]) -> str:
        """Start *assets* of a job, or all of it, as the web UI does, and return the run's id."""
        launched = self.ask(_LAUNCH, execution=_execution(name, assets, tags))["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return str(launched["run"]["runId"])

    def end(self, run_id: str) -> Run:
        """Wait for the end of a run."""
        _wait_until(lambda: self._has_ended(run_id), what=f"the end of run {run_id}")
        run = self.ask(_RUN, run=run_id)["runOrError"]
        errors = [json.dumps(event["error"]) for event in run["eventConnection"]["events"] if event.get("error")]
        return Run(run_id=run_id, status=run["status"], errors="\n".join(errors))

    def cancel(self, run_id: str) -> Run:
        """Cancel a run as the button of the web UI does, and wait for its end."""
        answer = self.ask(_CANCEL, run=run_id)["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer
        return self.end(run_id)

    def runs(self) -> list[str]:
        """Return the ids of all runs, the newest first."""
        found = self.ask("{ runsOrError { ... on Runs { results { runId } } } }")["runsOrError"]["results"]
        return [run["runId"] for run in found]

    def checks_made(self, run_id: str) -> int:
        """Return the number of check results in a run."""
        return self._num_events(run_id, "AssetCheckEvaluationEvent")

    def steps_started(self, run_id: str) -> int:
        """Return the number of steps of a run that have begun."""
        return self._num_events(run_id, "ExecutionStepStartEvent")

    def messages(self, run_id: str) -> list[str]:
        """Return what the log of a run says."""
        events = self.ask(_EVENTS, run=run_id)["runOrError"]["eventConnection"]["events"]
        return [event["message"] for event in events if "message" in event]

    def listening(self) -> set[tuple[str, int]]:
        """Return the address and port of every TCP socket on which a process of the server listens."""
        own = {inode for process_id in self._process_ids() for inode in _socket_inodes(process_id)}
        return {address for inode, address in _listening_sockets() if inode in own}

    def is_alive(self) -> bool:
        """Return whether any process of the server is left, runs and orphans included."""
        return self.process.poll() is None or bool(self._process_ids())

    def stop(self) -> bool:
        """Stop the server as Ctrl-C does, and return whether that was enough; otherwise kill all its processes."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        # A code server that gets no signal ends after 45 seconds without a heartbeat.
        stopped = happens(lambda: not self.is_alive(), within_s=180)
        if not stopped:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=60)
        return stopped

    def has_loaded(self) -> bool:
        """Return whether the server answers and the code location has loaded."""
        assert self.process.poll() is None, "dg dev ended by itself"
        try:
            workspace = self.ask(_WORKSPACE)["workspaceOrError"]
        except OSError:
            return False
        loaded = [entry["locationOrLoadError"] for entry in workspace["locationEntries"]]
        assert not [each for each in loaded if each and each["__typename"] == "PythonError"], loaded
        return bool(loaded) and all(loaded)

    def _num_events(self, run_id: str, kind: str) -> int:
        events = self.ask(_EVENTS, run=run_id)["runOrError"]["eventConnection"]["events"]
        return sum(event["__typename"] == kind for event in events)

    def _has_ended(self, run_id: str) -> bool:
        return self.ask(_STATUS, run=run_id)["runOrError"]["status"] in {"SUCCESS", "FAILURE", "CANCELED"}

    def _process_ids(self) -> list[int]:
        """Return the living processes of the server's process group, which its children inherit."""
        return [process_id for process_id, group, state in _processes() if group == self.process.pid and state != "Z"]


@contextmanager
def web_server(project: Project, log: Path) -> Iterator[WebServer]:
    """Start the web UI of *project* by the command in the Makefile, and stop it at the end."""
    port = free_ports(1)[0]
    with log.open("wb") as output:
        process = launcher().start(
            ["dg", *_makefile_arguments(port)],
            cwd=REPOSITORY,
            env=project.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that it can be killed with all its children
        )
    server = WebServer(process=process, port=port, project=project)
    try:
        _wait_until(server.has_loaded, what=f"the web server, which writes to {log}")
        yield server
    finally:
        stopped = server.stop()
    assert stopped, f"SIGINT left processes of the web server behind: {log.read_text()[-3000:]}"


def happens(condition: Callable[[], bool], *, within_s: float) -> bool:
    """Return whether *condition* holds within *within_s* seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def is_running(process_id: int) -> bool:
    """Return whether a process is alive."""
    return any(each == process_id and state != "Z" for each, _, state in _processes())


def _makefile_arguments(port: int) -> list[str]:
    """Return the arguments that `make ui` passes to dg, with its port replaced by *port*."""
    found = re.search(r"/dg (dev .* -p) \d+$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert found, "the Makefile has no line '... dg dev ... -p <port>'"
    return [*shlex.split(found[1]), str(port)]


def _wait_until(result: Callable[[], Any], *, what: str) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if found := result():
            return found
        time.sleep(0.2)
    raise TimeoutError(f"waited {_PATIENCE_S:.0f} s for {what}")


def _execution(job: str, assets: Sequence[str] | None, tags: Mapping[str, str]) -> Mapping[str, Any]:
    return {
        "selector": {
            "repositoryLocationName": "tta_pipeline.definitions",
            "repositoryName": "__repository__",
            "pipelineName": job,
            "assetSelection": None if assets is None else [asset_key(asset) for asset in assets],
            "assetCheckSelection": None,  # all of the asset
        },
        "mode": "default",
        "runConfigData": {},
        "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
    }


def asset_key(asset: str) -> Mapping[str, Sequence[str]]:
    """Return the key in the form of GraphQL."""
    return {"path": asset.split("/")}


def _processes() -> Iterator[tuple[int, int, str]]:
    """Yield id, group and state of every process."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = status.read_text().rpartition(") ")[2].split()[:3]
            yield int(status.parent.name), int(group), state


def _socket_inodes(process_id: int) -> Iterator[str]:
    with suppress(OSError):
        for descriptor in Path(f"/proc/{process_id}/fd").iterdir():
            with suppress(OSError):
                found = re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink()))
                if found:
                    yield found[1]


def _listening_sockets() -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield inode and address of every TCP socket that listens, of IPv4 and IPv6."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == _LISTENING:
                address, port = fields[1].split(":")
                yield fields[9], (_address(address), int(port, 16))


def _address(hexadecimal: str) -> str:
    """Return the address that the kernel prints as 32-bit words in this machine's byte order."""
    words = [int(hexadecimal[start : start + 8], 16) for start in range(0, len(hexadecimal), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))


_WORKSPACE = """{
  workspaceOrError {
    ... on Workspace { locationEntries { locationOrLoadError { __typename ... on PythonError { message } } } }
  }
}"""
_LAUNCH = """mutation ($execution: ExecutionParams!) {
  launchPipelineExecution(executionParams: $execution) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}"""
_STATUS = "query ($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
_RUN = """query ($run: ID!) {
  runOrError(runId: $run) {
    ... on Run {
      status
      eventConnection {
        events { ... on ErrorEvent { error { className message errorChain { error { className message } } } } }
      }
    }
  }
}"""
