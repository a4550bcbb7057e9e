"""Libraries that come with an extra are there whole, or one error says what is wrong."""

from pathlib import Path

import pytest

from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.libraries import import_library


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('x')", r".*ImportError\('x'\)"),
        ("import json\njson.no_such_name", ".*AttributeError.*'no_such_name'"),
        ("import ctypes\nctypes.CDLL('libno-such.so')", r".*OSError\('libno-such\.so"),
        ("import no_such_module", ".*ModuleNotFoundError.*'no_such_module'"),
        ("", "[^']*"),
    ],
)
def test_a_library_that_is_half_installed_is_named(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With what its import raised, and what to install."""
    monkeypatch.syspath_prepend(tmp_path)
    if code:
        (tmp_path / "halves.py").write_text(f"{code}\n")

    with pytest.raises(EvaluationError, match=rf"halves{said}.*pip install 'tta_pipeline\[timm\]'"):
        import_library("halves", extra="timm")
