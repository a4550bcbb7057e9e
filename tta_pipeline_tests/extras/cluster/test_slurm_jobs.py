"""What is handed to Slurm, and what is believed of its answers: with commands that answer as Slurm's do."""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tta_pipeline.cli import piece as program
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import SubmissionError
from tta_pipeline.evaluation.work.pieces import Piece
from tta_pipeline.extras.cluster.slurm import Slurm, SlurmConfig, _condition, _distribute, read_slurm_config
from tta_pipeline.extras.cluster.submission import Submission, find_open_submissions, find_submission

ROOT = Path(__file__).parents[3]
EVALUATIONS = tuple(
    Piece(stage="evaluations", assets=("evaluation/source",), keys=(f"{name}|5",)) for name in ("fog", "snow", "frost")
)
PIECES = (Piece(stage="sets", assets=("clean/tar_shards",)), *EVALUATIONS, Piece(stage="report", assets=("report",)))


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    """A data root with a name that shells and Slurm would misread."""
    return Locations(root=tmp_path / 'it\'s 100% "mine" $HOME')


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a test writes the commands that are found first."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def write_program(path: Path, *lines: str) -> None:
    """Write a command whose calls are noted beside it."""
    path.write_text("\n".join(["#!/bin/bash", f'echo "$*" >> "{path}.calls"', *lines, ""]))
    path.chmod(0o755)


def calls(path: Path) -> list[str]:
    """Return with what a command was called."""
    noted = path.with_name(f"{path.name}.calls")
    return noted.read_text().splitlines() if noted.exists() else []


def slurm(locations: Locations, **config: object) -> Slurm:
    """Return the engine."""
    return Slurm(config=SlurmConfig.model_validate(config), data_root=locations.root)


def created(locations: Locations) -> Submission:
    """Return a submission that no engine has yet."""
    return Submission.create(locations, benchmark="mine", engine="slurm", pieces=PIECES, compute={"device": "cpu"})


@pytest.fixture
def submitted(locations: Locations, programs: Path) -> Submission:
    """A submission that `sbatch` took: its jobs are 1, 2 and so on."""
    write_program(programs / "sbatch", f'wc -l < "{programs}/sbatch.calls"')
    write_program(programs / "scontrol", "echo 'MaxArraySize            = 2'")
    write_program(programs / "squeue")
    write_program(programs / "scancel")
    submission = created(locations)
    slurm(locations).start(submission, num_devices=2)
    return submission


def test_each_stage_waits_for_the_one_before(submitted: Submission, programs: Path):
    """By a dependency that a failure does not break; no stage without pieces is submitted."""
    found = [call.split(" ") for call in calls(programs / "sbatch")]

    assert ["sets", "evaluations", "report"] == [call[1].rpartition("-")[2] for call in found]
    dependencies = [[part for part in call if "--dependency" in part] for call in found]
    assert [[], ["--dependency=afterany:1"], ["--dependency=afterany:2"]] == dependencies


def test_an_array_is_no_larger_than_slurm_allows(submitted: Submission, programs: Path):
    """Its tasks then have several pieces each, of nearly the same length, and each piece is in one."""
    assert "--array=0-1%2" in calls(programs / "sbatch")[1]
    assert "1 3\n2\n" == (submitted.folder / "evaluations.txt").read_text()
    assert [[0, 2], [1]] == [list(task) for task in _distribute([0, 1, 2], 2)]
    assert [[0], [1], [2]] == [list(task) for task in _distribute([0, 1, 2], 1000)]


def test_a_site_may_allow_fewer_tasks(locations: Locations, programs: Path, submitted: Submission):
    """`most_tasks` is for limits that Slurm's configuration does not tell."""
    submission = created(locations)
    slurm(locations, most_tasks=1).start(submission, num_devices=2)

    assert "1 2 3\n" == (submission.folder / "evaluations.txt").read_text()


def test_a_refused_array_leaves_nothing_submitted(locations: Locations, programs: Path):
    """The stages before are cancelled, the message is Slurm's, and nobody asks for the submission again."""
    write_program(programs / "sbatch", '[[ "$*" == *evaluations* ]] && { echo "sbatch: no such option" >&2; exit 1; }',
                  "echo 7")  # fmt: skip
    write_program(programs / "scontrol")
    submission = created(locations)
    write_program(programs / "squeue", f"echo '7|0|PENDING|{submission.key}-sets'")
    write_program(programs / "scancel")

    with pytest.raises(SubmissionError, match=r"status 1\b.*no such option"):
        slurm(locations).start(submission, num_devices=2)

    assert ["7"] == calls(programs / "scancel")
    assert [] == list(find_open_submissions(locations, "mine"))
    write_program(programs / "squeue")
    assert {"cancelled"} == {state.condition for state in slurm(locations).states(submission)}


def test_states_are_those_of_the_jobs_with_its_name(locations: Locations, submitted: Submission, programs: Path):
    """A job with the same number and another name is not one of it: numbers begin anew with a new controller."""
    lines = [
        f"1|0|COMPLETED|{submitted.key}-sets",
        f"2|0|RUNNING|{submitted.key}-evaluations",
        "2|1|RUNNING|somebody-evaluations",
        f"3|0|PENDING|{submitted.key}-report",
        "4|N/A|RUNNING|other",
    ]
    write_program(programs / "squeue", *(f"echo '{line}'" for line in lines))
    (submitted.folder / "logs" / "evaluations-1.log").write_text("module: not found\n")

    states = slurm(locations).states(submitted)

    # Pieces 1 and 3 are those of task 0.
    assert ["done", "running", "lost", "running", "waiting"] == [state.condition for state in states]
    assert states[2].log.endswith("evaluations-1.log")


def test_an_array_of_other_days_is_read_as_it_was_written(locations: Locations, submitted: Submission, programs: Path):
    """What each task has stands in the submission, whatever the limits are now."""
    write_program(programs / "squeue", f"echo '2|0|RUNNING|{submitted.key}-evaluations'")

    conditions = [state.condition for state in slurm(locations, most_tasks=1000).states(submitted)]

    assert ["lost", "running", "lost", "running", "lost"] == conditions


def test_only_jobs_that_are_not_over_are_cancelled(locations: Locations, submitted: Submission, programs: Path):
    """Slurm forgets a job some minutes after its end, and may then refuse its number."""
    lines = [f"1|0|COMPLETED|{submitted.key}-sets", f"2|0|RUNNING|{submitted.key}-evaluations", "9|0|RUNNING|other"]
    write_program(programs / "squeue", *(f"echo '{line}'" for line in lines))

    slurm(locations).cancel(submitted)

    assert ["2"] == calls(programs / "scancel")
    assert submitted.is_cancelled


@pytest.mark.parametrize(
    ("outcome", "in_queue", "is_cancelled", "condition"),
    [
        ("", "PENDING", False, "waiting"),
        ("", "RUNNING", False, "running"),
        ("", "COMPLETING", False, "running"),
        ("failed", "RUNNING", False, "running"),  # its second try
        ("failed", "PENDING", False, "waiting"),  # it was asked to end in its second try
        ("done", "RUNNING", False, "done"),  # other pieces of the task are not
        ("", "COMPLETED", False, "done"),  # noted on another machine, and not seen here yet
        ("failed", "FAILED", False, "failed"),
        ("failed", "", False, "failed"),
        ("", "TIMEOUT", False, "lost"),
        ("", "CANCELLED", False, "lost"),
        ("", "CANCELLED", True, "cancelled"),
        ("", "", False, "lost"),
        ("", "", True, "cancelled"),
    ],
)
def test_a_condition_is_that_of_the_queue_before_that_of_an_earlier_try(
    outcome: str, in_queue: str, *, is_cancelled: bool, condition: str
):
    """What is in the queue will still do something; what is not there any more is what the piece noted."""
    assert condition == _condition(outcome, in_queue, is_cancelled=is_cancelled)


def test_an_outcome_of_a_removed_submission_is_not_believed(locations: Locations):
    """Its number is given again, and its last piece may note its end in the new one's folder."""
    submission = created(locations)
    replace(submission, submitted_at="1999-12-31").write_outcome(0, "done")

    assert "" == submission.read_outcome(0)
    submission.write_outcome(0, "done")
    assert "done" == submission.read_outcome(0)


def test_a_job_of_a_removed_submission_does_nothing(locations: Locations, monkeypatch: pytest.MonkeyPatch):
    """It would evaluate a piece of the one that took its place."""
    submission = created(locations)
    monkeypatch.setattr(program.sys, "argv", ["piece", str(submission.folder), "mine-1-1999", "0"])

    with pytest.raises(SystemExit, match=rf"{submission.key}.*\bmine-1-1999\b"):
        program.main()

    assert "" == submission.read_outcome(0)


def run_script(submission: Submission, engine: Slurm, task: int, **environment: str) -> int:
    """Run the script of the evaluations as Slurm does, and return its exit status."""
    script = submission.folder / "evaluations.sbatch"
    script.write_text(engine.script(submission, "evaluations"))
    names = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "2", **environment}
    return subprocess.run(["bash", str(script)], env={**os.environ, **names}, cwd="/", check=False).returncode


@pytest.mark.parametrize(
    ("exits", "num_calls", "status"),
    [([0, 0], 2, 0), ([1, 0, 0], 3, 0), ([1, 1, 0], 3, 1), ([137, 0, 137, 137], 4, 1)],
)
def test_a_piece_that_fails_is_tried_twice_and_the_next_one_goes_on(
    locations: Locations, submitted: Submission, programs: Path, *, exits: list[int], num_calls: int, status: int
):
    """Task 0 has two pieces; a SIGKILL is a failure as well; the task fails if a piece does."""
    write_program(programs / "srun", f'ends=({" ".join(map(str, exits))})',
                  f'exit "${{ends[$(wc -l < "{programs}/srun.calls") - 1]}}"')  # fmt: skip

    assert status == run_script(submitted, slurm(locations), 0)

    found = calls(programs / "srun")
    assert num_calls == len(found)
    assert found[0].endswith(f"{submitted.folder} {submitted.key} 1")
    assert found[-1].endswith(f"{submitted.folder} {submitted.key} 3")
    assert {"1.log", "3.log"} == {path.name for path in (submitted.folder / "logs").iterdir()}


@pytest.mark.parametrize("ended", [75, 138])
def test_a_piece_that_was_asked_to_end_goes_into_the_queue_again(
    locations: Locations, submitted: Submission, programs: Path, ended: int
):
    """Also where the signal ended a Python that still started; but not for ever."""
    write_program(programs / "srun", f"exit {ended}")
    write_program(programs / "scontrol")

    assert 0 == run_script(submitted, slurm(locations), 0)
    assert ["requeue 2_0"] == calls(programs / "scontrol")[-1:]
    assert 1 == len(calls(programs / "srun"))

    assert 1 == run_script(submitted, slurm(locations), 0, SLURM_RESTART_COUNT="50")
    assert 2 == len(calls(programs / "scontrol")), "one for the limit of arrays, one to requeue"


def test_a_job_without_its_list_fails(locations: Locations, submitted: Submission, programs: Path):
    """A folder that was removed is no reason to say that all is done."""
    write_program(programs / "srun")
    (submitted.folder / "evaluations.txt").unlink()

    assert 1 == run_script(submitted, slurm(locations), 0)
    assert [] == calls(programs / "srun")


def test_the_script_says_what_the_configuration_says(locations: Locations, submitted: Submission, programs: Path):
    """Options for the kind of stage, lines before, a container, and as many cores for the step as for the job."""
    write_program(programs / "srun", 'echo "$GREETING $SRUN_CPUS_PER_TASK $TTA_DATA_ROOT"')
    engine = slurm(
        locations, device=["--partition gpu"], cpu=["--mem=4G"], before=["export GREETING=hello"],
        container="apptainer exec x.sif", python="my python",
    )  # fmt: skip

    run_script(submitted, engine, 1, SLURM_CPUS_PER_TASK="8")

    assert "\n#SBATCH --partition gpu\n" in engine.script(submitted, "evaluations")
    assert "\n#SBATCH --mem=4G\n" in engine.script(submitted, "report")
    assert f"hello 8 {locations.root}\n" == submitted.log_path(2).read_text()
    assert "apptainer exec x.sif my python -m tta_pipeline.cli.piece" in calls(programs / "srun")[0]


def test_logs_are_where_a_percent_sign_is(submitted: Submission, programs: Path):
    """Slurm replaces what follows one, unless there are two."""
    assert "100%% " in calls(programs / "sbatch")[0].replace("it's ", "")


def test_a_backslash_in_the_data_root_is_refused(tmp_path: Path, programs: Path):
    """Slurm fails to start such a job, and leaves no log that says why."""
    root = tmp_path / "a\\b"
    with pytest.raises(SubmissionError, match=re.escape(repr(str(root)))):
        slurm(Locations(root=root)).require_ready()


def test_a_machine_without_slurm_is_told_so(locations: Locations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In one line that says what to do."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SubmissionError, match=r"\bsbatch\b"):
        slurm(locations).require_ready()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gres: gpu:1\n", "gres"),
        ("device: --gres=gpu:1\n", "device"),
        ("warn_s: soon\n", "warn_s"),
        ("# nothing yet\n", "device, cpu, before"),
        ("device: [\n", "line 2, column 1.*device, cpu, before"),
    ],
)
def test_a_configuration_that_says_something_else_is_refused(tmp_path: Path, text: str, found: str):
    """With the file, what is wrong, and what there is to say."""
    path = tmp_path / "slurm.yaml"
    path.write_text(text)

    with pytest.raises(SubmissionError, match=rf"slurm\.yaml.*\b{found}\b"):
        read_slurm_config(path)


def test_the_configuration_in_the_repository_is_one(tmp_path: Path):
    """As it stands, and with each line that is commented out."""
    text = (ROOT / "cluster" / "slurm.yaml").read_text()
    (tmp_path / "all.yaml").write_text(text.replace("\n#: ", "\n"))

    shipped, full = read_slurm_config(ROOT / "cluster" / "slurm.yaml"), read_slurm_config(tmp_path / "all.yaml")

    assert "--gres=gpu:1" in shipped.device
    assert set(SlurmConfig.model_fields) == full.model_fields_set


def test_the_newest_submission_is_the_one_that_is_asked_for(locations: Locations, submitted: Submission):
    """Beside the lock of those that submit."""
    (submitted.folder.parent / "submitting.lock").touch()

    assert submitted == find_submission(locations, "mine")
