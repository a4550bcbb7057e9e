"""The three Slurm jobs of a benchmark: prepare, an array of its parts, report."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import SubmissionError
from tta_pipeline.util.files import write_atomically

_TIMEOUT_S = 60
"""Timeout of Slurm's commands in seconds."""
_WARN_S = 120
"""Seconds before its time limit at which a job is requeued, to continue later."""
_MOST_REQUEUES = 50
"""Limit on requeueing: a job whose time ends before its first cell would be requeued forever."""
_SCRIPT = """#!/bin/bash
cd {project} || exit 1
export {environment}
# SQLite on a network file system loses data, so the job has its own history, which is deleted at the end.
DAGSTER_HOME=$(mktemp -d) && export DAGSTER_HOME || exit 1
trap '[ "${{SLURM_RESTART_COUNT:-0}}" -lt {most_requeues} ] && scontrol requeue "$SLURM_JOB_ID"' USR1
{command} &
# A signal ends the waiting, but not the command.
wait $!; status=$?
while kill -0 $! 2> /dev/null; do wait $!; status=$?; done
rm -rf "$DAGSTER_HOME"
exit $status
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A batch script, and the options with which it is submitted."""

    name: str
    """`prepare`, `parts` or `report`; also the name of its script."""
    options: tuple[str, ...]
    """Options of `sbatch` without those that name other jobs."""
    after: str
    """Dependency on the previous job, such as `afterok`; empty for the first job."""
    script: str

    def command(self, script: Path, before: str) -> list[str]:
        """Return the command that submits *script*; *before* is the number of the previous job."""
        depends = (
            [f"--dependency={self.after}:{before}", "--kill-on-invalid-dep=yes"]
            if self.after
            else ["--dependency=singleton"]
        )
        return ["sbatch", "--parsable", *self.options, *depends, str(script)]


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One benchmark, submitted as three jobs of the same name.

    The first waits for all earlier jobs of this name (`singleton`), so work that is submitted twice is done once.
    """

    benchmark: str
    locations: Locations
    num_parts: int
    """Number of tasks in the array of evaluations."""
    run_options: tuple[str, ...] = ()
    """Options of `tta-pipeline run`, the same for all jobs."""
    sbatch_options: tuple[str, ...] = ()
    """The user's options for `sbatch`, the same for all jobs."""
    program: str = f"{shlex.quote(sys.executable)} -m tta_pipeline"
    """Shell words that start `tta-pipeline` on a node."""

    @property
    def folder(self) -> Path:
        """Folder of scripts and logs."""
        return self.locations.slurm(self.benchmark)

    def jobs(self) -> tuple[Job, ...]:
        """Return the three jobs, in order; the report is made from the existing results, even after failures."""
        return (
            self._job("prepare", "prepare", log="%j"),
            self._job("parts", f'"$SLURM_ARRAY_TASK_ID/{self.num_parts}"', f"--array=1-{self.num_parts}",
                      log="%A_%a", after="afterok"),
            self._job("report", "report", log="%j", after="afterany"),
        )  # fmt: skip

    def submit(self) -> tuple[str, ...]:
        """Write the scripts and submit them, and return the jobs' numbers; if Slurm rejects one, cancel the others.

        Raises:
            SubmissionError: Slurm rejects a job, or does not respond.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers: list[str] = []
        try:
            for job in self.jobs():
                write_atomically(self.script_path(job), job.script.encode())
                command = job.command(self.script_path(job), numbers[-1] if numbers else "")
                numbers.append(_run_command(command).strip().partition(";")[0])
        except BaseException:
            if numbers:
                _run_command(["scancel", *numbers])
            raise
        return tuple(numbers)

    def script_path(self, job: Job) -> Path:
        """Return the path of the script of *job*."""
        return self.folder / f"{job.name}.sh"

    def _job(self, name: str, part: str, *options: str, log: str, after: str = "") -> Job:
        logs = str(self.folder / name).replace("%", "%%")
        run = shlex.join(["run", self.benchmark, *self.run_options])
        roots = {"TTA_DATA_ROOT": self.locations.root, "TTA_SHARDS_ROOT": os.environ.get("TTA_SHARDS_ROOT")}
        script = _SCRIPT.format(
            project=shlex.quote(str(Path.cwd())),
            environment=" ".join(
                f"{name}={shlex.quote(str(Path(root).absolute()))}" for name, root in roots.items() if root
            ),
            most_requeues=_MOST_REQUEUES,
            command=f"{self.program} {run} --part={part}",
        )
        own = (
            f"--job-name=tta-{self.benchmark.replace('/', '__')}",
            f"--output={logs}-{log}.log",
            "--open-mode=append",
            "--requeue",
            f"--signal=B:USR1@{_WARN_S}",
        )
        return Job(name=name, options=(*own, *options, *self.sbatch_options), after=after, script=script)


def _run_command(command: Sequence[str]) -> str:
    """Run a Slurm command and return its output.

    Raises:
        SubmissionError: the command does not exist, fails, or does not finish in time.
    """
    called = shlex.join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - a Slurm command
    except FileNotFoundError:
        raise SubmissionError(
            f"The command {command[0]} was not found; expected Slurm's commands: submit from a login node"
        ) from None
    except subprocess.TimeoutExpired:
        raise SubmissionError(
            f"`{called}` did not finish within {_TIMEOUT_S} s; expected an answer from Slurm by then: try again later"
        ) from None
    if done.returncode:
        raise SubmissionError(
            f"`{called}` ended with status {done.returncode}: {done.stderr.strip()}; expected 0: correct --sbatch if "
            "Slurm rejects an option, or submit again later"
        )
    return done.stdout
