"""Runs the tour in its own folder, and writes one file for each step."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tta_pipeline_tests.loading.servers import running, web_server
from tta_pipeline_tests.net.contents import database, made, seen
from tta_pipeline_tests.net.normal import Normal
from tta_pipeline_tests.net.tour import BUCKET, STEPS, Step, help_steps
from tta_pipeline_tests.net.world import complete_project, make_sources, md5

_BIN = Path(sys.executable).parent
_PROBES = Path(__file__).with_name("probes")
_LIMIT_S = 900
_SERVER_STARTS_S = 60.0
_S3 = {"AWS_ACCESS_KEY_ID": "net", "AWS_SECRET_ACCESS_KEY": "net", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished step with its output."""

    step: Step
    status: int
    stdout: str
    stderr: str
    wall_s: float


def record(out: Path, root: Path, steps: Sequence[Step] = STEPS) -> Iterator[Finished]:
    """Run *steps* below the new folder *root*, write their effects into *out*, and yield each.

    Args:
        out: New folder, with a file for each step, `database.json`, `history.json`, `command_line.json`, and
            `times.json`, which is not compared.
        root: New folder for everything that the steps read and write.
        steps: The tour, or a part of it; its first step makes the project.
    """
    out.mkdir(parents=True)
    root.mkdir(parents=True)
    make_sources(root)
    with ExitStack() as stack:
        web = stack.enter_context(web_server(root / "web"))
        s3 = stack.enter_context(_s3_server(root / "tmp" / "s3.log"))
        tour = _Tour(
            root=root,
            out=out,
            environment=_environment(root, s3),
            words={"web": web.url, "root": str(root), "md5": md5(root / "sources" / "noise.tar")},
        )
        known = tour.probe("command_line")
        package = str(known.pop("package"))
        tour.normal = Normal(tour.places | {"<code>": str(Path(package).parent)})
        tour.write("command_line", known)
        _make_bucket(s3)
        for number, step in enumerate((*steps, *help_steps(known))):
            finished = tour.run(step, number, stack)
            if number == 0:
                complete_project(root, web=web.url, examples=Path(package).parent / "examples")
                tour.before = seen(root)
            yield finished
        tour.write("history", tour.probe("history"))
    tour.write("times", tour.times)
    tour.write("database", database(root / "project" / "data" / "metrics.duckdb", tour.normal))


class _Tour:
    """Shared state of the steps of one recording."""

    def __init__(self, *, root: Path, out: Path, environment: Mapping[str, str], words: Mapping[str, str]) -> None:
        self.root, self.project, self.out = root, root / "project", out
        self.environment, self.words = environment, dict(words)
        self.places = {"<root>": str(root), "<env>": str(_BIN.parent), "<python>": sys.base_prefix}
        self.normal = Normal(self.places)
        self.before = seen(root)
        self.times: dict[str, float] = {}

    def run(self, step: Step, number: int, stack: ExitStack) -> Finished:
        """Run *step* to its end and record it, or start it if it stays in the background."""
        argv = self.argv(step)
        environment = {**self.environment, **{name: self.filled(value) for name, value in step.environment.items()}}
        begun = time.monotonic()
        if step.stays:
            stack.enter_context(_background(argv, self.cwd, environment, self.root / "tmp" / f"{number}.log"))
            return Finished(step=step, status=0, stdout="", stderr="", wall_s=0.0)
        done = _run(argv, self.cwd, environment)
        while done.returncode != 0 and time.monotonic() - begun < step.until_s:
            time.sleep(1.0)
            done = _run(argv, self.cwd, environment)
        finished = Finished(
            step=step, status=done.returncode, stdout=done.stdout, stderr=done.stderr, wall_s=time.monotonic() - begun
        )
        self.keep(finished, number)
        return finished

    def keep(self, finished: Finished, number: int) -> None:
        """Write the output and the files of *finished*."""
        after = seen(self.root)
        files = made(self.root, self.before, after, self.normal)  # first, since it learns the names for the output
        self.times[f"{number:03d} {finished.step.name}"] = round(finished.wall_s, 1)
        self.write(
            f"{number:03d}-{re.sub('[^A-Za-z0-9_.-]+', '-', finished.step.name)}",
            {
                "command": finished.step.command,
                "status": finished.status,
                "files": files,
                "stdout": self.normal.said(finished.stdout),
                "stderr": self.normal.lines(finished.stderr),
            },
        )
        self.before = after

    def probe(self, name: str) -> dict[str, Any]:
        """Run the probe *name* on the code under test, and return its output."""
        done = _run([sys.executable, "-W", "ignore", str(_PROBES / f"{name}.py")], self.cwd, self.environment)
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write *content* into the recording."""
        (self.out / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    @property
    def cwd(self) -> Path:
        """The project's folder, or the root until that exists."""
        return self.project if self.project.exists() else self.root

    def filled(self, text: str) -> str:
        """Replace the words after @ in *text* by their values."""
        for word, value in (self.words | self.runs).items():
            text = text.replace(f"@{word}", value)
        return text

    @property
    def runs(self) -> dict[str, str]:
        """The words for runs that have evaluated a cell."""
        records = sorted((self.project / "data" / "first" / "results").glob("evaluations/norm/fog-5/*.json"))
        return {
            f"run{at}": json.loads(path.read_text())["record"]["run_id"] for at, path in enumerate(records, start=1)
        }

    def argv(self, step: Step) -> list[str]:
        """Return the command of *step* with the program of this environment."""
        program, *rest = shlex.split(self.filled(step.command))
        own = _BIN / program
        return [str(own) if own.exists() else program, *rest]


def _environment(root: Path, s3: str) -> dict[str, str]:
    project = root / "project"
    own = {
        "PATH": f"{_BIN}:{os.environ['PATH']}",
        "HOME": str(root / "home"),
        "TMPDIR": str(root / "tmp"),
        "TTA_DATA_ROOT": str(project / "data"),
        "DAGSTER_HOME": str(project),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
        "AWS_ENDPOINT_URL": s3,
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TTA_", "DAGSTER_"))}
    return inherited | own | _S3


@contextmanager
def _s3_server(log: Path) -> Iterator[str]:
    """Run a server with the S3 protocol, and yield its URL; its output goes to *log*, since a pipe would fill up."""
    with log.open("wb") as said, running([_BIN / "moto_server", "-H", "127.0.0.1", "-p", "0"], stderr=said.fileno()):
        limit = time.monotonic() + _SERVER_STARTS_S
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
            if time.monotonic() > limit:
                raise RuntimeError(f"the server did not say where it is: {log.read_text()}")
            time.sleep(0.1)
        yield found[0]


def _make_bucket(s3: str) -> None:
    import s3fs  # type: ignore[import-untyped]

    s3fs.S3FileSystem(key=_S3["AWS_ACCESS_KEY_ID"], secret=_S3["AWS_SECRET_ACCESS_KEY"], endpoint_url=s3).mkdir(BUCKET)


def _run(argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=cwd, env=environment, check=False, capture_output=True, text=True, errors="replace",
        stdin=subprocess.DEVNULL, timeout=_LIMIT_S,
    )  # fmt: skip


@contextmanager
def _background(argv: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path) -> Iterator[None]:
    """Run *argv* in the background until the block ends."""
    with log.open("wb") as said:
        process = subprocess.Popen(argv, cwd=cwd, env=environment, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)
