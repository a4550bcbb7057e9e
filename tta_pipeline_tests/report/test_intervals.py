"""Intervals are computed once for a set of results, and kept."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.intervals import Interval, Intervals, Keep, add_intervals
from tta_pipeline.report.tables import Table
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline_tests.conftest import Project, copied_results
from tta_pipeline_tests.results.database.made import record

KEPT = Intervals(
    means={"tent": Interval(0.25, 0.2, 0.3, "all"), "norm": Interval(0.5, 0.4, 0.6, "all")},
    p_values={("tent", "norm"): 0.0002},
)


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """A file with intervals."""
    keep = Keep(path=tmp_path / "made" / "intervals" / "imagenet_c.json", sha256="0a" * 32)
    keep.write(KEPT)
    return keep


def test_what_was_kept_is_read(keep: Keep):
    """With comparisons or without."""
    assert keep.read() == KEPT
    keep.write(replace(KEPT, p_values=None))
    assert keep.read() == replace(KEPT, p_values=None)


def test_intervals_of_other_results_are_not_read(keep: Keep):
    """The hash says what they were computed from."""
    assert replace(keep, sha256="0b" * 32).read() is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("0.25", "0.26"),
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "[]",
        lambda _: '{"intervals": 1}',
        lambda _: "\x00\xff",
    ],
)
def test_a_damaged_file_counts_as_none(keep: Keep, damage):
    """So the intervals are computed again."""
    keep.path.write_text(damage(keep.path.read_text()))

    assert keep.read() is None


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path):
    """As in the data root of somebody else."""
    (tmp_path / "made").write_text("no folder")
    keep = Keep(path=tmp_path / "made" / "imagenet_c.json", sha256="0a" * 32)

    keep.write(KEPT)

    assert keep.read() is None


def test_the_hash_changes_with_results_and_the_benchmark_file(tmp_path: Path):
    """And with nothing else: another timing of the same predictions keeps the intervals."""
    locations, hashes = Locations(root=tmp_path), []
    benchmark_file = locations.benchmark_files / "made.yaml"
    for change in (
        lambda: record(locations, error=0.25, samples_sha256="a" * 64),
        lambda: record(locations, error=0.25, samples_sha256="a" * 64, images_per_s=1.0),
        lambda: record(locations, error=0.5, samples_sha256="b" * 64, fingerprint="of other code"),
        benchmark_file.parent.mkdir,
        lambda: benchmark_file.write_text("photograph_pattern: (.*)_fog"),
    ):
        change()
        publish_metrics(locations)
        with open_metrics(locations.metrics) as connection:
            hashes.append(Keep.of(connection, locations, "made", "imagenet_c").sha256)

    first, again, other, same, edited = hashes
    assert first == again
    assert other == same
    assert len({first, other, edited}) == 3


def test_the_leaderboard_reads_what_the_report_has_kept(sweep: Project, tmp_path: Path):
    """Shards are read only when it is damaged: without them, the intervals are gone then."""
    project = copied_results(sweep, tmp_path)
    locations = project.locations
    runner = CliRunner(env={"TTA_DATA_ROOT": str(locations.root)})
    publish_metrics(locations)

    computed = runner.invoke(main, ["leaderboard"]).stdout
    (kept,) = locations.root.glob("small/intervals/*.json")
    content = kept.read_bytes()
    (locations.root / "small" / "shards").rename(tmp_path / "away")
    from_file = runner.invoke(main, ["leaderboard"]).stdout
    kept.write_bytes(content[:-20])
    without = runner.invoke(main, ["leaderboard"]).stdout
    (tmp_path / "away").rename(locations.root / "small" / "shards")
    again = runner.invoke(main, ["leaderboard", "--format", "latex"]).stdout

    rows = json.loads(runner.invoke(main, ["leaderboard", "--json"]).stdout)
    assert {True} == {row["error_low"] < row["mean_error"] < row["error_high"] for row in rows}
    assert "% [" in computed
    assert computed == from_file == runner.invoke(main, ["leaderboard"]).stdout
    assert "[" not in without
    assert r"\footnotesize [" in again
    assert json.loads(kept.read_bytes())["intervals"]["p_values"]


def test_an_interval_stands_beside_the_mean_of_its_own_images():
    """Never beside that of another subset, even if both are the same number."""
    rows = (("tent", "all", 0.25), ("tent", "first 1,000", 0.25), ("norm", "all", 0.3))

    table = add_intervals(Table(columns=("experiment", "subset", "mean_error"), rows=rows), [KEPT] * 3)

    assert [0.2, None, None] == list(table.column("error_low"))
    assert [0.3, None, None] == list(table.column("error_high"))
