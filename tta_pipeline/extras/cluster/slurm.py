"""The engine for Slurm: one job array for each stage; it starts when the array of the stage before has ended."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from tta_pipeline.errors import BenchmarkFileError, SubmissionError
from tta_pipeline.evaluation.work.pieces import ON_A_DEVICE, STAGES, Stage
from tta_pipeline.extras.cluster.engine import NUM_TRIES
from tta_pipeline.extras.cluster.submission import Condition, State, Submission
from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.files import write_atomically
from tta_pipeline.util.graceful_stop import EXIT_STATUS, STOP_SIGNAL
from tta_pipeline.util.validation_errors import mistakes
from tta_pipeline.util.yaml_document import read_document

_TIMEOUT_S = 60
"""Timeout of Slurm's commands in seconds."""
_MOST_REQUEUES = 50
"""Limit on how often a piece is requeued: a piece whose time ends before its first cell would be requeued for ever."""
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SUSPENDED"}
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
}  # fmt: skip
"""States of ended tasks, which Slurm still reports for some minutes."""


class SlurmConfig(ConfigModel):
    """The file that says how jobs are submitted on a cluster."""

    device: tuple[str, ...] = ("--gres=gpu:1", "--cpus-per-task=8", "--time=12:00:00")
    """Options of `sbatch` for pieces that train or evaluate, each on a device of its own."""
    cpu: tuple[str, ...] = ("--cpus-per-task=8", "--time=12:00:00")
    """Options of `sbatch` for pieces that write shards, and for the report."""
    before: tuple[str, ...] = ()
    """Lines of shell before each piece, such as `module load cuda`."""
    container: str = ""
    """Prefix that runs a command in a container, such as `apptainer exec --nv image.sif`; empty: no container."""
    python: str = sys.executable
    """Python that has tta_pipeline on the nodes, or in the container if there is one."""
    warn_s: int = Field(default=120, ge=0, le=65_535)
    """Seconds before the time limit of a job at which its piece is asked to end after the present cell. The piece is
    then requeued. 0: never."""
    most_tasks: int = Field(default=1_000, ge=1)
    """Largest number of tasks in an array, for sites that limit the jobs of a user; Slurm's own limit, MaxArraySize,
    is respected too. If there are more pieces, a task has several."""


def read_slurm_config(path: Path | None) -> SlurmConfig:
    """Read the YAML file *path*; None: return the defaults.

    Raises:
        SubmissionError: the file cannot be read, or a setting is invalid.
    """
    if path is None:
        return SlurmConfig()
    try:
        return SlurmConfig.model_validate(read_document(path))
    except BenchmarkFileError as error:
        known = ", ".join(SlurmConfig.model_fields)
        raise SubmissionError(
            f"{path} has no settings of jobs ({error}); expected YAML with some of {known}"
        ) from error
    except ValidationError as error:
        raise SubmissionError(f"{path}: {'; '.join(mistakes(error, ''))}: correct it") from error


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """The engine `slurm`."""

    config: SlurmConfig
    data_root: Path

    def require_ready(self) -> None:
        """Refuse to submit if Slurm does not answer, or could not write its logs."""
        if "\\" in str(self.data_root):
            raise SubmissionError(
                f"the data root is {str(self.data_root)!r}; expected no backslash, which Slurm misreads in names of "
                "logs: rename it"
            )
        _run_command("sbatch", "--version")
        _run_command("squeue", "--noheader", "--user", _user())

    def owner(self) -> str:
        """Return an empty string: `start` hands the pieces to Slurm, which starts them."""
        return ""

    def start(self, submission: Submission, *, num_devices: int) -> None:
        """Submit a job array for each stage; if one is refused, or on Ctrl-C, all are cancelled.

        *num_devices* pieces of a stage run at a time at most.
        """
        largest = min(self.config.most_tasks, _max_array_size())
        before = ""
        try:
            for stage in STAGES:
                if numbers := submission.piece_numbers(stage):
                    tasks = _distribute(numbers, largest)
                    script = self._write_script(submission, stage, tasks)
                    options = self._options(submission, stage, tasks=f"0-{len(tasks) - 1}%{num_devices}")
                    after = [f"--dependency=afterany:{before}"] if before else []
                    before = _run_command("sbatch", *options, *after, str(script)).strip().partition(";")[0]
        except BaseException:
            self.cancel(submission)
            submission.mark_ended()
            raise

    def states(self, submission: Submission) -> tuple[State, ...]:
        """Return the state of each piece: Slurm's if it is in the queue, else the outcome that the piece noted."""
        queue = {(stage, task): state for _, stage, task, state in _read_queue(submission)}
        found = {}
        for stage in STAGES:
            for task, numbers in enumerate(_read_task_list(submission, stage)):
                for number in numbers:
                    found[number] = _state(submission, number, f"{stage}-{task}", queue.get((stage, task), ""))
        return tuple(
            found.get(number) or _state(submission, number, "", "") for number in range(len(submission.pieces))
        )

    def obstacles(self, submission: Submission) -> tuple[str, ...]:
        """Return an empty tuple: `squeue` explains why a job waits."""
        del submission
        return ()

    def cancel(self, submission: Submission) -> None:
        """Cancel all jobs of *submission*."""
        submission.mark_cancelled()
        if jobs := {job for job, _, _, state in _read_queue(submission) if state not in _ENDED}:
            _run_command("scancel", *sorted(jobs))

    def _write_script(self, submission: Submission, stage: Stage, tasks: Sequence[Sequence[int]]) -> Path:
        """Write the script of *stage* and its task list: for each task, a line with the numbers of its pieces."""
        lines = "".join(" ".join(map(str, numbers)) + "\n" for numbers in tasks)
        write_atomically(_list_path(submission, stage), lines.encode())
        script = submission.folder / f"{stage}.sbatch"
        write_atomically(script, self.script(submission, stage).encode())
        submission.log_path(0).parent.mkdir(exist_ok=True)
        return script

    def _options(self, submission: Submission, stage: Stage, *, tasks: str) -> list[str]:
        """Return the options for the command line, where neither the script nor the environment can override them.

        A job is named after the key of its submission and found by this name, since Slurm reuses job numbers.
        """
        warn = f"--signal={STOP_SIGNAL.name.removeprefix('SIG')}@{self.config.warn_s}"
        logs = str(submission.log_path(0).parent).replace("%", "%%")
        return [
            "--parsable",
            f"--job-name={submission.key}-{stage}",
            f"--array={tasks}",
            f"--output={logs}/{stage}-%a.log",
            "--open-mode=append",
            "--requeue",
            "--export=ALL",
            *([warn] if self.config.warn_s else []),
        ]

    def script(self, submission: Submission, stage: Stage) -> str:
        """Return the script that Slurm runs for each task of *stage*."""
        config = self.config
        module = f"{shlex.quote(config.python)} -m tta_pipeline.cli.piece"
        return _SCRIPT.format(
            options="\n".join(
                f"#SBATCH {option}" for option in (config.device if stage in ON_A_DEVICE else config.cpu)
            ),
            before="\n".join(config.before),
            project=shlex.quote(str(Path.cwd())),
            data_root=shlex.quote(str(self.data_root)),
            list=shlex.quote(str(_list_path(submission, stage))),
            logs=shlex.quote(str(submission.log_path(0).parent)),
            command=" ".join(filter(None, [config.container, module])),
            folder=shlex.quote(str(submission.folder)),
            key=shlex.quote(submission.key),
            num_tries=NUM_TRIES,
            ended_on_request=EXIT_STATUS,
            ended_by_request=128 + STOP_SIGNAL,
            most_requeues=_MOST_REQUEUES,
        )


_SCRIPT = """#!/bin/bash
{options}
cd {project} || exit 1
export TTA_DATA_ROOT={data_root}
# srun does not take over the number of cores by itself.
[ -n "$SLURM_CPUS_PER_TASK" ] && export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
{before}
numbers=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {list}) && [ -n "$numbers" ] || exit 1
status=0
for number in $numbers; do
  for try in $(seq {num_tries}); do
    srun --nodes=1 --ntasks=1 --quit-on-interrupt \\
      {command} {folder} {key} "$number" >>{logs}/"$number.log" 2>&1
    ended=$?
    [ "$ended" = 0 ] && break
    # Its time is nearly over: what is left of it goes into the queue again. The signal ends a Python that still starts.
    if [ "$ended" = {ended_on_request} ] || [ "$ended" = {ended_by_request} ]; then
      [ "${{SLURM_RESTART_COUNT:-0}}" -ge {most_requeues} ] && exit 1
      exec scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
    fi
  done
  [ "$ended" = 0 ] || status=1
done
exit $status
"""


def _distribute(numbers: Sequence[int], largest: int) -> list[Sequence[int]]:
    """Distribute pieces over tasks: one piece each, or several if an array would have more than *largest* tasks."""
    num_tasks = min(len(numbers), largest)
    return [numbers[task::num_tasks] for task in range(num_tasks)]


def _max_array_size() -> int:
    """Return the largest number of tasks in an array in Slurm's configuration."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _run_command("scontrol", "show", "config"), re.MULTILINE)
    return max(1, int(found[1]) if found else 1)


def _list_path(submission: Submission, stage: Stage) -> Path:
    return submission.folder / f"{stage}.txt"


def _read_task_list(submission: Submission, stage: Stage) -> list[list[int]]:
    """Return the piece numbers of each task of *stage*; empty if the stage was not submitted."""
    try:
        lines = _list_path(submission, stage).read_bytes().decode().splitlines()
    except FileNotFoundError:
        return []
    return [[int(number) for number in line.split()] for line in lines]


def _read_queue(submission: Submission) -> Iterator[tuple[str, Stage, int, str]]:
    """Yield job, stage, task and state of each task of *submission* in Slurm's queue, whoever submitted it."""
    stages = {f"{submission.key}-{stage}": stage for stage in STAGES}
    answer = _run_command(
        "squeue", "--noheader", "--array", "--states=all", f"--name={','.join(stages)}", "--format=%F|%K|%T|%j",
    )  # fmt: skip
    for line in answer.splitlines():
        job, task, state, name = line.split("|", 3)
        if name in stages and task.isdecimal():
            yield job, stages[name], int(task), state


def _state(submission: Submission, number: int, task_name: str, in_queue: str) -> State:
    logs = submission.log_path(number), submission.log_path(number).with_name(f"{task_name}.log")
    return State(
        condition=_condition(submission.read_outcome(number), in_queue, is_cancelled=submission.is_cancelled),
        log=next((str(log) for log in logs if log.exists()), ""),
    )


def _condition(outcome: str, in_queue: str, *, is_cancelled: bool) -> Condition:
    """Return the condition of a piece from the *outcome* that it noted and its task's state *in_queue*; "" if none.

    The piece of a completed task is done even if its note is not visible on this machine yet.
    """
    if outcome == "done" or in_queue == "COMPLETED":
        return "done"
    if in_queue and in_queue not in _ENDED:
        return "waiting" if in_queue in _WAITING else "running"
    if outcome == "failed":
        return "failed"
    return "cancelled" if is_cancelled else "lost"


def _run_command(*command: str) -> str:
    """Run a command of Slurm's and return its output.

    Raises:
        SubmissionError: the command does not exist, fails, or does not answer in time.
    """
    called = shlex.join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - a command of Slurm's
    except FileNotFoundError:
        raise SubmissionError(f"found no {command[0]}; expected Slurm's commands: submit from a login node") from None
    except subprocess.TimeoutExpired:
        raise SubmissionError(
            f"`{called}` did not answer in {_TIMEOUT_S} s; expected an answer: ask again later"
        ) from None
    if done.returncode:
        raise SubmissionError(
            f"`{called}` ended with status {done.returncode}: {done.stderr.strip()}; expected 0: correct the "
            "options in the file of --engine-config if they are refused, or ask again later"
        )
    return done.stdout


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
