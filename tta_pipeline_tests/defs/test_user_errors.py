"""Errors in a run: those of this project take one line of its log, others keep their traceback."""

import sys
from collections.abc import Iterator

import dagster as dg
import pytest

from tta_pipeline.defs.resources import console
from tta_pipeline.defs.user_errors import with_one_line_errors
from tta_pipeline.errors import EvaluationError


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
def unexpected() -> Iterator[dg.MaterializeResult[None]]:
    """Fail by an error that nobody expected."""
    yield dg.MaterializeResult(metadata={"quotient": 1 / 0})


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
    assert all("division by zero" in each and "test_user_errors.py" in each for each in said["unexpected"])


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
    assert "test_user_errors.py" in said[1]
