"""What a user's own method does wrong is one line, with the user's file and line."""

import inspect
from pathlib import Path

import pytest

from tta_pipeline.errors import PipelineError
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.own_code import arose_in_own_code, describe_raised, own_traceback
from tta_pipeline.util.plurals import count_of
from tta_pipeline_tests.evaluation import wrong_methods
from tta_pipeline_tests.evaluation.test_evaluator import evaluated, evaluator


def line_of(text: str) -> str:
    """Return the line of the only place of *text* among the wrong methods, as messages say it."""
    lines = inspect.getsource(wrong_methods).splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return f"wrong_methods.py, line {number}"


@pytest.mark.parametrize(
    ("name", "found", "place"),
    [
        ("FEW_CLASSES", "float32 (", None),
        ("LABELS", "int64 (", None),
        ("NOTHING", "NoneType", None),
        ("GRADIENTS", "gradients", None),
        ("RAISES", "RuntimeError", "@ torch.zeros(7, 7)"),
        ("UNBUILT", "KeyError('threshold')", '_SETTINGS["threshold"]'),
        ("NOT_DERIVED", "NotDerived", "class NotDerived"),
    ],
)
def test_a_wrong_method_is_refused_with_its_place(shard_set: ShardSet, name: str, found: str, place: str | None):
    """With what was found and where; else a line of ours would be blamed, or a number be wrong without a word."""
    with pytest.raises(PipelineError) as refused:
        evaluated(evaluator(f"{wrong_methods.__name__}:{name}"), shard_set)

    (line,) = str(refused.value).splitlines()
    assert found in line
    assert (line_of(place) if place else "wrong_methods.py, line ") in line


def test_the_traceback_is_that_of_the_users_code_and_of_what_it_called():
    """One line has said the place; what it called is worth more lines, and what called it is not."""
    with pytest.raises(OSError, match="missing") as raised:
        Path("missing").read_text(encoding="utf-8")

    assert arose_in_own_code(raised.value)
    assert "test_wrong_methods.py, line " in describe_raised(raised.value)
    assert "test_wrong_methods.py" in own_traceback(raised.value).splitlines()[0]
    assert "pathlib" in own_traceback(raised.value)


def test_an_error_of_this_project_is_not_the_users():
    """It keeps its whole traceback."""
    with pytest.raises(ValueError, match="Cannot specify") as raised:
        count_of("seven", "run")  # type: ignore[arg-type]

    assert not arose_in_own_code(raised.value)
