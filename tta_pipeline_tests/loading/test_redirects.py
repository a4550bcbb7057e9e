"""A server may send us elsewhere; what only it should know stays with it."""

from pathlib import Path

import pytest

from tta_pipeline.data.remote_files import read_whole
from tta_pipeline_tests.loading.servers import web_server


def test_the_token_of_the_hub_follows_no_redirect_to_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file arrives from there."""
    for name in ("hub", "other"):
        (tmp_path / name / "files" / "datasets" / "o" / "n").mkdir(parents=True)
    (tmp_path / "other" / "files" / "datasets" / "o" / "n" / "a.txt").write_text("found")
    monkeypatch.setenv("HF_TOKEN", "secret")

    with web_server(tmp_path / "hub" / "files") as hub, web_server(tmp_path / "other" / "files") as other:
        hub.send_to(other.url)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        data = read_whole("hf://datasets/o/n/a.txt")

        assert b"found" == data
        assert "secret" in hub.headers()
        assert other.headers()
        assert "secret" not in other.headers()
