"""Shards as readers that others wrote want them: their names, their suffix, and limits of both kinds."""

import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.cli import main
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.shard_set_writing import shard_bounds
from tta_pipeline_tests.conftest import in_one_line, write_tree


def run(*arguments: object) -> Result:
    """Run the verb `shards make` in this process."""
    return CliRunner().invoke(main, ["shards", "make", *map(str, arguments), "--jobs", "1"], catch_exceptions=False)


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A split of twelve images in two classes."""
    write_tree(tmp_path / "split", classes={"n01": 6, "n02": 6})
    return tmp_path / "split"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"samples_per_shard": 4}, 3),
        ({"max_shard_bytes": 31_000}, 4),
        ({"samples_per_shard": 2, "max_shard_bytes": 31_000}, 6),
        ({"samples_per_shard": 12, "max_shard_bytes": 31_000}, 4),
    ],
)
def test_both_limits_hold(settings: dict, expected: int):
    """As few shards as the stricter of them allows, and their counts differ by one at most."""
    bounds = shard_bounds([7680] * 12, ShardSettings(**settings))

    assert expected == len(bounds) - 1


def test_shards_and_members_are_named_as_asked(split: Path, tmp_path: Path):
    """`validation-%06d.tar` with `.jpg` members, and others; written again in the same folder, nothing is foreign."""
    Image.new("RGB", (32, 32)).save(split / "n01" / "other.PNG")
    for order in ("permuted", "source"):
        finished = run(
            split, tmp_path / "out", "--class-dir-depth", "0", "--num-shards", "2",
            "--shard-name", "validation-%06d.tar",
            "--suffix", "jpg", "--order", order,
        )  # fmt: skip
        assert 0 == finished.exit_code, finished.output

    assert {"validation-000000.tar", "validation-000001.tar"} == {path.name for path in tmp_path.glob("out/*.tar")}
    table = ShardSet.open(tmp_path / "out").index.table
    assert {".jpg": 12, ".png": 1} == Counter(Path(name).suffix for name in table["source_name"].to_pylist())


def test_a_name_that_would_not_sort_is_refused(split: Path, tmp_path: Path):
    """Without a number, with one of no fixed width, with a folder, or with one that is too narrow."""
    for name in ("all.tar", "v-%d.tar", "a/%03d.tar", "v-%03d-%03d.tar", "v-%03d.zip"):
        finished = run(split, tmp_path / "out", "--class-dir-depth", "0", "--num-shards", "2", "--shard-name", name)
        assert 2 == finished.exit_code, finished.output
        assert "validation-%06d.tar" in finished.stderr
    finished = run(
        split, tmp_path / "out", "--class-dir-depth", "0", "--num-shards", "11", "--shard-name", "v-%01d.tar"
    )
    assert "v-%01d.tar" in finished.stderr


def test_a_file_has_the_options_and_the_command_line_wins(split: Path, tmp_path: Path):
    """Sources and output too; an unknown name is refused with those that there are."""
    config = tmp_path / "shard.yaml"
    config.write_text(
        f"sources: [{split}]\noutput: {tmp_path}/out\nclass_dir_depth: 0\nnum_shards: 3\nlabels: true\norder: source\n"
    )

    assert 0 == run("--config", config).exit_code
    assert 3 == len(list(tmp_path.glob("out/*.tar")))
    assert 0 == run(tmp_path / "other", "--config", config, "--num-shards", "4").exit_code
    assert 4 == len(list(tmp_path.glob("other/*.tar")))

    config.write_text("shards: 3\n")
    refused = run(split, tmp_path / "out", "--config", config)
    assert 2 == refused.exit_code
    assert "shard.yaml has the unknown field shards; expected any of" in in_one_line(refused.stderr)
    assert not {"_q", "q", "config"} & set(re.findall(r"\w+", refused.stderr.partition("expected: any of")[2]))
    assert 2 == run(split).exit_code
