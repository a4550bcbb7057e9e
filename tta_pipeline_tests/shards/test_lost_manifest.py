"""A shard set whose manifest is gone is counted, and told by every verb over many sets."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tta_pipeline.cli import main
from tta_pipeline_tests.conftest import write_tree


def run(*arguments: object) -> Result:
    """Run a verb in this process."""
    return CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def two_sets(tmp_path: Path) -> Path:
    """Two cells of shards, whose second one has lost its manifest."""
    for severity in "12":
        write_tree(tmp_path / "tree" / "fog" / severity, classes={"n01": 2})
    assert (
        0 == run("shards", "make", tmp_path / "tree", tmp_path / "sets", "--num-shards", "1", "--jobs", "1").exit_code
    )
    (tmp_path / "sets" / "fog" / "2" / "manifest.json").unlink()
    return tmp_path / "sets"


@pytest.mark.parametrize("also_lost", [[], ["writer.json"], ["samples.parquet", "writer.json", "verified.json"]])
def test_verify_counts_a_set_without_manifest(two_sets: Path, also_lost: list[str]):
    """It is one of two, and not intact, whichever of its other files is still there."""
    for name in also_lost:
        (two_sets / "fog" / "2" / name).unlink()

    finished = run("shards", "verify", two_sets, "--json")

    assert 1 == finished.exit_code
    assert [0, 1] == [len(verdict["problems"]) for verdict in json.loads(finished.stdout)]
    assert f"{two_sets}/fog/2/manifest.json cannot be read" in finished.stderr


def test_what_a_process_is_still_writing_is_no_set(two_sets: Path):
    """The folder beside a set that another process writes, or left when it was killed, is not verified."""
    (two_sets / "fog" / "2").rename(two_sets / "fog" / f".unpublished-{'0' * 32}-2")

    assert 0 == run("shards", "verify", two_sets).exit_code
