"""Libraries that come with an extra are there whole, or one error says what is wrong."""

from pathlib import Path

import pytest

from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.libraries import import_library


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "raise ImportError('cannot import name x')",
            r"halves cannot be imported \(ImportError\('cannot import name x",
        ),
        ("import json\njson.no_such_name", r"halves cannot be imported \(AttributeError"),
        ("import ctypes\nctypes.CDLL('libno-such.so')", r"halves cannot be imported \(OSError\('libno-such.so"),
        ("import no_such_module", r"halves cannot be imported \(ModuleNotFoundError"),
        ("", "halves is not installed"),
    ],
)
def test_a_library_that_is_half_installed_is_named(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With what its import raised, and what to install."""
    monkeypatch.syspath_prepend(tmp_path)
    if code:
        (tmp_path / "halves.py").write_text(f"{code}\n")

    with pytest.raises(EvaluationError, match=rf"{said}.*run pip install 'tta_pipeline\[timm\]'"):
        import_library("halves", extra="timm")
