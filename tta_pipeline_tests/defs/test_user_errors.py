"""Errors in a run: those of this project take one line of its log, others keep their traceback."""

import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tta_pipeline.defs.resources import console
from tta_pipeline.defs.user_errors import as_failure, say_error, with_one_line_errors
from tta_pipeline.errors import EvaluationError
from tta_pipeline.util.files import read_if_sha256_matches
from tta_pipeline.util.plurals import count_of


@dg.asset
@with_one_line_errors
def mistaken() -> None:
    """Fail by a user's mistake, with a cause."""
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        raise EvaluationError("w.pth is missing; expected weights: restore it") from error


@dg.asset
@with_one_line_errors
def of_the_disk() -> None:
    """Fail in this project for a reason that lies in the disk."""
    read_if_sha256_matches(Path("/dev/null/w.pth"), "")


@dg.asset
@with_one_line_errors
def unexpected() -> Iterator[dg.MaterializeResult[None]]:
    """Fail by an error of this project that nobody expected."""
    yield dg.MaterializeResult(metadata={"count": count_of(None, "run")})  # type: ignore[arg-type]


@dg.asset
@with_one_line_errors
def of_the_user() -> None:
    """Fail in code of the user's, which is all that lies outside the package."""
    _ = 1 / 0


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    vars(sys).pop("tracebacklimit", None)


@pytest.mark.parametrize("assets", [[mistaken, unexpected], [unexpected, mistaken]])
def test_only_an_unexpected_error_has_a_traceback(assets: list[dg.AssetsDefinition]):
    """In one process, whichever comes first; the failure of the whole run says no more than its step."""
    said = {}
    for asset in assets:
        result = dg.materialize([asset], raise_on_error=False)
        (failure,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]
        (run,) = [event.job_failure_data for event in result.all_events if event.is_job_failure]
        said[asset.key.to_user_string()] = failure.error_display_string, run.error.to_string()

    line = "dagster._core.definitions.events.Failure: w.pth is missing; expected weights: restore it"
    assert (line, line) == tuple(each.strip() for each in said["mistaken"])
    assert all("unsupported format" in each and "plurals.py" in each for each in said["unexpected"])


def test_an_error_in_the_users_code_has_its_line_and_no_other_frames():
    """Frames of Dagster and of this project say nothing to its author."""
    result = dg.materialize([of_the_user], raise_on_error=False)
    (failure,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]

    assert "ZeroDivisionError" in failure.error_display_string
    assert "test_user_errors.py, line " in failure.error_display_string
    assert 'user_errors.py", line' not in failure.error_display_string


def test_an_error_of_the_disk_has_no_frames_of_this_project():
    """They would hide that it is full, read-only or another thing that only the user can mend."""
    result = dg.materialize([of_the_disk], raise_on_error=False)
    (failure,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]

    assert "/dev/null/w.pth" in failure.error_display_string.splitlines()[0]
    assert '/defs/user_errors.py"' not in failure.error_display_string


def test_the_terminal_says_the_same(capfd: pytest.CaptureFixture[str]):
    """The console logger has one line for a mistake, and the user's own line of code for an unexpected error."""
    for asset in (mistaken, unexpected):
        definitions = dg.Definitions(assets=[asset], loggers={"console": console})
        job = definitions.resolve_implicit_job_def_def_for_assets([asset.key])
        job.execute_in_process(run_config={"loggers": {"console": {}}}, raise_on_error=False)

    said = capfd.readouterr().err.split("ERROR unexpected: ")
    assert said[0].splitlines()[0].endswith("ERROR mistaken: w.pth is missing; expected weights: restore it")
    assert "Stack Trace" not in said[0]
    assert "Stack Trace" in said[1]
    assert "plurals.py" in said[1]


def test_an_error_that_an_interrupt_caused_is_no_failure():
    """Whoever cancels a run has made no mistake."""
    with pytest.raises(EvaluationError), as_failure(lambda error: (say_error(error), {})):
        raise EvaluationError("a worker ended; expected its batch: wait") from KeyboardInterrupt()
