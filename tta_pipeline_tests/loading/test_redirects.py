"""A server may send us elsewhere; what only it should know stays with it."""

from pathlib import Path

import pytest

from tta_pipeline.data.remote_files import read_whole
from tta_pipeline_tests.loading.servers import web_server


def test_the_token_of_the_hub_follows_no_redirect_to_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file arrives from there; if the hub itself has it, all requests for it have the token."""
    for name in ("hub", "other"):
        (tmp_path / name / "files" / "datasets" / "o" / "n").mkdir(parents=True)
        (tmp_path / name / "files" / "datasets" / "o" / "n" / "a.txt").write_text(f"found in {name}")
    monkeypatch.setenv("HF_TOKEN", "secret")

    with web_server(tmp_path / "hub" / "files") as hub, web_server(tmp_path / "other" / "files") as other:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert b"found in hub" == read_whole("hf://datasets/o/n/a.txt")
        asked = hub.headers().lower()
        assert 0 < asked.count("authorization: bearer secret") == asked.count("host: ")

        hub.send_to(other.url)
        assert b"found in other" == read_whole("hf://datasets/o/n/a.txt")
        assert other.headers()
        assert "secret" not in other.headers()
