"""Slurm: an array of jobs for each stage, which begins when the stage before has ended."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from tta_pipeline.cluster.engine import NUM_TRIES
from tta_pipeline.cluster.pieces import ON_A_DEVICE, STAGES, Stage
from tta_pipeline.cluster.submission import Condition, State, Submission
from tta_pipeline.errors import SubmissionError
from tta_pipeline.files import read_file, write_atomically
from tta_pipeline.mistakes import mistakes
from tta_pipeline.sections import Section
from tta_pipeline.stopping import EXIT_STATUS, SIGNAL
from tta_pipeline.yaml_document import read_document

_ANSWER_S = 60
"""Seconds in which a command of Slurm's must answer."""
_JOBS = "slurm_jobs.json"
_LARGEST_ARRAY = 1_000
"""Tasks of an array at most: Slurm's MaxArraySize is 1001 unless a site raises it. A task may have several pieces."""
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SUSPENDED"}


class SlurmConfig(Section):
    """The file that says how jobs are submitted on a cluster."""

    device: tuple[str, ...] = ("--gres=gpu:1", "--cpus-per-task=8", "--time=12:00:00")
    """Options of `sbatch` for pieces that train or evaluate, each on a device of its own."""
    cpu: tuple[str, ...] = ("--cpus-per-task=8", "--time=12:00:00")
    """Options of `sbatch` for pieces that write shards, and for the report."""
    before: tuple[str, ...] = ()
    """Lines of shell before each piece, such as `module load cuda`."""
    container: str = ""
    """Command that runs another command in a container, such as `apptainer exec --nv image.sif`; empty: none."""
    python: str = sys.executable
    """Python with tta_pipeline on the nodes; in the container if there is one."""
    warn_s: int = Field(default=120, ge=0, le=65_535)
    """Seconds before a job's time is over at which its piece is asked to end after the cell that it is at; it is then
    put into the queue again. 0: never."""


def read_slurm_config(path: Path | None) -> SlurmConfig:
    """Return what the YAML file *path* says; without a file, the defaults.

    Raises:
        SubmissionError: it cannot be read, or does not say what it should.
    """
    if path is None:
        return SlurmConfig()
    try:
        return SlurmConfig.model_validate(read_document(path))
    except ValidationError as error:
        raise SubmissionError(f"{path}: {'; '.join(mistakes(error, ''))}: correct it") from error


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """The engine `slurm`."""

    config: SlurmConfig
    data_root: Path
    num_devices: int
    """Pieces of a stage that run at a time, at most."""

    def require_ready(self) -> None:
        """Refuse to submit where no Slurm answers."""
        _answer("sinfo", "--version")
        _answer("squeue", "--noheader", "--user", _user())

    def start(self, submission: Submission) -> None:
        """Submit an array of jobs for each stage."""
        jobs: dict[Stage, str] = {}
        for stage in STAGES:
            if not submission.of_stage(stage):
                continue
            script = self._written_script(submission, stage)
            after = [f"--dependency=afterany:{[*jobs.values()][-1]}"] if jobs else []
            try:
                answer = _answer("sbatch", "--parsable", *after, str(script))
            except SubmissionError:
                self._cancel(jobs)
                raise
            jobs[stage] = answer.strip().partition(";")[0]
            write_atomically(submission.folder / _JOBS, json.dumps(jobs).encode())

    def states(self, submission: Submission) -> tuple[State, ...]:
        """Return what `squeue` says of each piece that is not over, and what each other one noted when it ended."""
        queue = _queue(_jobs(submission))
        found = {}
        for stage in STAGES:
            tasks = _tasks(submission.of_stage(stage))
            for task, numbers in enumerate(tasks):
                for number in numbers:
                    found[number] = _state(submission, number, queue.get((stage, task)))
        return tuple(found[number] for number in range(len(submission.pieces)))

    def cancel(self, submission: Submission) -> None:
        """Cancel all its jobs."""
        submission.note_cancelled()
        self._cancel(_jobs(submission))

    def _cancel(self, jobs: Mapping[Stage, str]) -> None:
        if jobs:
            _answer("scancel", *jobs.values())

    def _written_script(self, submission: Submission, stage: Stage) -> Path:
        """Write the script of *stage*, and beside it a line for each of its tasks with the numbers of its pieces."""
        tasks = _tasks(submission.of_stage(stage))
        lists = submission.folder / f"{stage}.txt"
        write_atomically(lists, "".join(" ".join(map(str, numbers)) + "\n" for numbers in tasks).encode())
        script = submission.folder / f"{stage}.sbatch"
        write_atomically(script, self.script(submission, stage, num_tasks=len(tasks)).encode())
        submission.log_path(0).parent.mkdir(exist_ok=True)
        return script

    def script(self, submission: Submission, stage: Stage, *, num_tasks: int) -> str:
        """Return the script that `sbatch` starts for each task of *stage*."""
        config = self.config
        options = [
            f"--job-name={submission.name}-{stage}",
            f"--array=0-{num_tasks - 1}%{self.num_devices}",
            f"--output={submission.folder}/logs/{stage}-%a.log",
            "--open-mode=append",
            "--requeue",
            "--export=ALL",
            *([f"--signal={SIGNAL.name.removeprefix('SIG')}@{config.warn_s}"] if config.warn_s else []),
            *(config.device if stage in ON_A_DEVICE else config.cpu),
        ]
        module = f"{shlex.quote(config.python)} -m tta_pipeline.assets.piece"
        return _SCRIPT.format(
            options="\n".join(f"#SBATCH {option}" for option in options),
            before="\n".join(config.before),
            project=shlex.quote(str(Path.cwd())),
            data_root=shlex.quote(str(self.data_root)),
            lists=shlex.quote(str(submission.folder / f"{stage}.txt")),
            command=" ".join(filter(None, [config.container, module])),
            folder=shlex.quote(str(submission.folder)),
            num_tries=NUM_TRIES,
            ended_on_request=EXIT_STATUS,
        )


_SCRIPT = """#!/bin/bash
{options}
cd {project} || exit 1
export TTA_DATA_ROOT={data_root}
{before}
status=0
for number in $(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {lists}); do
  for try in $(seq {num_tries}); do
    srun --quit-on-interrupt {command} {folder} "$number"
    ended=$?
    [ "$ended" = 0 ] && break
    # Its time is nearly over: what is left of it goes into the queue again.
    [ "$ended" = {ended_on_request} ] && exec scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
  done
  [ "$ended" = 0 ] || status=1
done
exit $status
"""


def _tasks(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Return which pieces each task has: one, or several where an array would be too large."""
    num_tasks = min(len(numbers), _LARGEST_ARRAY)
    return [numbers[task::num_tasks] for task in range(num_tasks)]


def _jobs(submission: Submission) -> dict[Stage, str]:
    """Return the job of each stage that was submitted."""
    path = submission.folder / _JOBS
    try:
        jobs: dict[Stage, str] = json.loads(read_file(path, limit_bytes=2**20))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SubmissionError(f"{path} cannot be read ({error}); expected the jobs of the submission") from error
    return jobs


def _queue(jobs: Mapping[Stage, str]) -> dict[tuple[Stage, int], str]:
    """Return Slurm's state of each task that is not over."""
    stages = {job: stage for stage, job in jobs.items()}
    found = {}
    for line in _answer("squeue", "--noheader", "--array", "--user", _user(), "--format=%F|%K|%T").splitlines():
        job, task, state = line.split("|")
        if job in stages and task.isdecimal():
            found[stages[job], int(task)] = state
    return found


def _state(submission: Submission, number: int, in_queue: str | None) -> State:
    outcome = _outcome(submission, number)
    log = str(submission.log_path(number)) if submission.log_path(number).exists() else ""
    if outcome == "done":
        return State(condition="done", log=log)
    if in_queue is not None:
        return State(condition="waiting" if in_queue in _WAITING else "running", log=log)
    ended: Condition = "failed" if outcome == "failed" else "cancelled" if submission.is_cancelled else "lost"
    return State(condition=ended, log=log)


def _outcome(submission: Submission, number: int) -> str:
    try:
        noted: str = json.loads(read_file(submission.outcome_path(number), limit_bytes=2**20))["condition"]
    except (OSError, ValueError, KeyError):
        return ""
    return noted


def _answer(*command: str) -> str:
    """Return what a command of Slurm's prints.

    Raises:
        SubmissionError: there is no such command, it fails, or it does not answer in time.
    """
    called = shlex.join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)  # noqa: S603 - a command of Slurm's
    except FileNotFoundError:
        raise SubmissionError(f"found no {command[0]}; expected Slurm's commands: submit from a login node") from None
    except subprocess.TimeoutExpired:
        raise SubmissionError(
            f"`{called}` did not answer in {_ANSWER_S} s; expected an answer: ask again later"
        ) from None
    if done.returncode:
        raise SubmissionError(
            f"`{called}` ended with status {done.returncode}: {done.stderr.strip()}; expected 0: correct the "
            "options in the file of --config if they are refused, or ask again later"
        )
    return done.stdout


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
