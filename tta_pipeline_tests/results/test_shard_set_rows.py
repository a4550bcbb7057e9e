"""What making shard sets cost, in files beside their manifests, becomes the table `shard_sets`."""

import json
import shutil
from pathlib import Path

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.shard_set_rows import MEASUREMENTS_FILE, read_shard_set_rows, write_shard_set_row
from tta_pipeline_tests.results.database.made import SHARD_SET

ROW = {**SHARD_SET, "benchmark": "pics"}


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    """A data root with the measurements of one shard set."""
    folder = tmp_path / "pics/shards/fog/5"
    folder.mkdir(parents=True)
    write_shard_set_row(folder, ROW, run_id="first", started_at="2026-01-01T00:00:00+00:00")
    return Locations(root=tmp_path)


def test_a_cut_measurement_stops_no_publication(locations: Locations):
    """The database is made without its row."""
    path = locations.root / "pics/shards/fog/5" / MEASUREMENTS_FILE
    path.write_bytes(path.read_bytes()[:-20])

    assert [] == published(locations)


def test_a_row_of_another_version_is_left_out(locations: Locations):
    """A column that is gone or new stops no publication."""
    write_shard_set_row(
        locations.root / "pics/shards/fog/5", {**ROW, "colour": "grey"}, run_id="first", started_at="2026-01-01"
    )

    assert [] == published(locations)


def published(locations: Locations) -> list[tuple[object, ...]]:
    """Publish, and return what the database has of shard sets."""
    publish_metrics(locations)
    with open_metrics(locations.metrics) as connection:
        question = "SELECT benchmark, corruption, severity, num_samples, run_id FROM shard_sets ORDER BY ALL"
        return connection.execute(question).fetchall()


FOG = ("pics", "fog", 5, 80, "first")


def test_measurements_are_published_and_go_with_their_folder(locations: Locations):
    """Another run over the set replaces the row, and a set that is removed takes its row with it."""
    assert [FOG] == published(locations)

    folder = locations.root / "pics/shards/fog/5"
    write_shard_set_row(folder, ROW, run_id="second", started_at="2026-01-02T00:00:00+00:00")
    assert [(*FOG[:-1], "second")] == published(locations)

    shutil.rmtree(folder)
    assert [] == published(locations)


def test_a_copied_folder_counts_once(locations: Locations):
    """Neither a backup of the benchmark nor a set in another cell's place adds a row or stops a publication."""
    shutil.copytree(locations.root / "pics", locations.root / "pics_backup")
    shutil.copytree(locations.root / "pics/shards/fog/5", locations.root / "pics/shards/contrast/5")

    assert [FOG] == published(locations)


@pytest.mark.parametrize("benchmark", ["sets/imagenet_c", "sets/other"])
def test_a_set_of_a_file_with_several_lies_below_its_name(tmp_path: Path, benchmark: str):
    """Under the name of another dataset it does not count."""
    file, _, dataset = benchmark.partition("/")
    folder = tmp_path / file / "shards" / dataset / "fog/5"
    folder.mkdir(parents=True)
    write_shard_set_row(folder, {**ROW, "benchmark": file}, run_id="first", started_at="2026-01-01T00:00:00+00:00")

    _, rows = read_shard_set_rows(tmp_path)

    assert (dataset == "imagenet_c") == bool(rows)


@pytest.mark.parametrize("name", sorted(ROW))
def test_an_edited_measurement_is_left_out(locations: Locations, name: str):
    """Whatever is changed by hand no longer fits the hash beside it; publication goes on without the row."""
    path = locations.root / "pics/shards/fog/5" / MEASUREMENTS_FILE
    content = json.loads(path.read_bytes())
    content["row"][name] = -1
    path.write_text(json.dumps(content))

    assert () == read_shard_set_rows(locations.root)[1]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"row": 1, "sha256": ""}', '{"row": {}}', "\0"])
def test_what_is_no_measurement_is_left_out(locations: Locations, text: str):
    """A file that was cut, or is another's, has no row."""
    (locations.root / "pics/shards/fog/5" / MEASUREMENTS_FILE).write_text(text)

    assert () == read_shard_set_rows(locations.root)[1]
