"""The verb `submit` where nothing runs yet: what it writes, and which submission it asks for."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree

import pytest

from tta_pipeline.cluster.submission import Submission, find_submission, open_submissions
from tta_pipeline.errors import SubmissionError
from tta_pipeline.locations import Locations
from tta_pipeline_tests.cluster.submitting import FEW, ROOT, SubmittingProject


@pytest.fixture
def project(tmp_path: Path) -> SubmittingProject:
    """The small benchmark, and a history that no daemon reads."""
    project = SubmittingProject(engine="local", locations=Locations(root=tmp_path / "data"), home=tmp_path / "dagster")
    project.configure(ROOT / "dagster.yaml")
    project.add_benchmark("few", FEW)
    assert [] == project.runs()  # Dagster makes the history at its first use, and not twice at once
    return project


def submissions(locations: Locations) -> list[Submission]:
    """Return all submissions, in their order."""
    return [find_submission(locations, "few", int(path.parent.name)) for path in
            sorted(locations.submissions("few").glob("*/submission.json"))]  # fmt: skip


def test_of_two_that_submit_at_once_one_finds_nothing_to_submit(project: SubmittingProject):
    """The same work is never submitted twice."""
    with ThreadPoolExecutor(2) as threads:
        told = [each.result() for each in [
            threads.submit(project.submit, "--experiments", "source", "--device", "cpu") for _ in range(2)
        ]]  # fmt: skip

    assert [0, 0] == [each.returncode for each in told], [each.stderr for each in told]
    assert 1 == len(submissions(project.locations))
    assert 1 == sum("run or wait already" in each.stderr for each in told)


def test_a_submission_is_asked_for_by_its_number(project: SubmittingProject):
    """Of two, the older one is cancelled, and the newer one waits."""
    project.submit("--experiments", "source", "--device", "cpu")
    first = find_submission(project.locations, "few")
    Submission.create(project.locations, benchmark="few", engine="local", pieces=first.pieces, compute=first.compute)
    cancelled = project.submit("--cancel", "--number", "1")

    assert "cancelled: submission 1 of few" in cancelled.stderr
    assert [True, False] == [each.is_cancelled for each in submissions(project.locations)]


def test_another_engine_is_not_asked_for_a_submission(project: SubmittingProject):
    """Slurm would say that all its pieces are lost."""
    project.submit("--experiments", "source", "--device", "cpu")
    told = project.submit("--status", "--engine", "slurm")

    assert 2 == told.returncode
    assert "submission 1 of few is with local, not with slurm" in told.stderr


def test_a_number_that_no_submission_has_is_refused(tmp_path: Path):
    """With those that there are."""
    locations = Locations(root=tmp_path)
    Submission.create(locations, benchmark="few", engine="local", pieces=(), compute={})

    with pytest.raises(SubmissionError, match="no submission 2 of few; expected one from 1 to 1"):
        find_submission(locations, "few", 2)


def test_the_marks_of_a_removed_submission_are_not_those_of_the_next(tmp_path: Path):
    """Who still watches it notes its end, before and after its number is given again."""
    locations = Locations(root=tmp_path)

    def create() -> Submission:
        return Submission.create(locations, benchmark="few", engine="local", pieces=(), compute={})

    removed = create()
    rmtree(removed.folder)
    removed.note_ended()
    following = create()
    removed.note_cancelled()
    removed.note_ended()

    assert [following] == list(open_submissions(locations, "few"))
    assert not following.is_cancelled


def test_a_folder_that_has_lost_its_file_is_not_taken_again(tmp_path: Path):
    """Its mark would end the next submission before it begins."""
    locations = Locations(root=tmp_path)
    first = Submission.create(locations, benchmark="few", engine="local", pieces=(), compute={})
    first.note_ended()
    (first.folder / "submission.json").unlink()

    following = Submission.create(locations, benchmark="few", engine="local", pieces=(), compute={})

    assert [following] == list(open_submissions(locations, "few"))


@pytest.mark.parametrize("options", [("--number", "3"), ("--cancel", "--dry-run"), ("--experiments", "source,,")])
def test_options_that_contradict_each_other_do_nothing(project: SubmittingProject, options: tuple[str, ...]):
    """Neither is anything submitted nor cancelled."""
    told = project.submit(*options)

    assert 2 == told.returncode, told.stderr
    assert [] == submissions(project.locations)
