"""A record proves itself, says what it is of, and is one typed thing whose fields are said once."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.database import open_metrics, publish_metrics
from tta_pipeline.results.evaluation_record import SHOWN, SHOWN_OF_SEGMENT, Evaluation, columns
from tta_pipeline.results.records import (
    earlier_records,
    latest_record,
    publish_record,
    read_record,
    record_numbers,
)
from tta_pipeline_tests.results.database.made import (
    STARTED_AT,
    evaluation,
    evaluation_at,
    evaluation_facts,
    forge,
    record,
)


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    """An empty data root."""
    return Locations(root=tmp_path)


def test_what_is_written_is_what_is_read(locations: Locations):
    """Every field comes back with its value and type."""
    assert evaluation() == evaluation_at(record(locations).path)


def test_any_flipped_bit_is_found(locations: Locations):
    """Wherever it is, in the record, in its hash or between them, with the file's times restored."""
    path = record(locations).path
    content, status = path.read_bytes(), path.stat()
    for position in {*range(0, len(content), 97), *range(90), len(content) - 1}:
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(RecordError, match=re.escape(str(path))):
            read_record(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1,2]", b"\xff\xfe", b"null", b'{"version":1}'], ids=str)
def test_what_is_no_record_is_named(locations: Locations, content: bytes):
    """Whatever it holds, the error is one line with the path."""
    path = record(locations).path
    path.write_bytes(content)

    with pytest.raises(RecordError, match=re.escape(str(path))):
        read_record(path)


def test_what_cannot_be_read_stops_no_other_record(locations: Locations):
    """A folder or a link to nothing in a record's place: publishing goes on, the next record gets the next number."""
    places = [record(locations, severity=severity).path.with_name("000002.json") for severity in (1, 2)]
    places[0].mkdir()
    places[1].symlink_to("gone")
    for severity, place in enumerate(places, start=1):
        with pytest.raises(RecordError, match=str(place)):
            latest_record(locations.results("made"), kind="evaluations", name=f"tent/fog-{severity}")

    told = "\n".join(publish_metrics(locations).set_aside)

    for severity, place in enumerate(places, start=1):
        assert str(place) in told
        assert 3 == record(locations, severity=severity).sequence


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"error": 0.4}, "error is 0.4, num_correct is 60, num_samples is 80; expected error to be"),
        ({"num_correct": 61}, "expected error to be 1 - num_correct / num_samples"),
        ({"top5_error": 0.5}, "expected top5_error to be"),
        ({"num_correct_top5": 10, "top5_error": 0.875}, "expected them in ascending order"),
        ({"ece": 0.0}, "expected the errors that follow from the bins"),
        ({"max_calibration_error": 0.0}, "expected the errors that follow from the bins"),
        ({"images_per_s": 1189.0}, "expected images_per_s to be (num_samples + num_unknown) / wall_s"),
        ({"class_counts": {"num_samples": [80], "num_correct": [61]}}, "expected the classes to have these sums"),
        ({"data_wait_s": 0.0}, "expected batches of these numbers and sums"),
        ({"num_batches": 3}, "expected batches of these numbers and sums"),
        ({"seed": True}, "seed is True; expected a whole number"),
        ({"seed": 2**70}, "seed is 1180591620717411303424; expected less than or equal to"),
        ({"severity": "5"}, "severity is '5'; expected a whole number"),
        ({"severity": 5.0}, "severity is 5.0; expected a whole number"),
        ({"generated": 0}, "generated is 0; expected true or false"),
        ({"wall_s": -1.0}, "wall_s is -1.0; expected greater than 0"),
        ({"corruption": "fogg"}, "it is of tent/fogg-5; expected tent/fog-5"),
        ({"model": None}, "model is None; expected text"),
        ({"mean": 0.5}, "mean is 0.5; expected a list"),
        ({"mean": ["0.5"]}, "mean.0 is '0.5'; expected a number"),
        ({"calibration": [1]}, "calibration is [1]; expected fields by name"),
        ({"num_images": 79}, "expected no more samples than images"),
        ({"speed": 1}, "has speed, which is not one of its fields; expected the fields of Evaluation"),
    ],
    ids=str,
)  # fmt: skip
def test_a_record_edited_by_hand_is_refused_by_name(locations: Locations, changes: dict[str, Any], message: str):
    """Even if somebody computes its hash again: the message has the path, the field and the value."""
    path = record(locations).path
    forge(path, **changes)

    with pytest.raises(RecordError) as caught:
        read_record(path)

    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize("part", [None, "calibration", "class_counts", "batches", "first_samples"])
def test_a_missing_field_is_named(part: str | None):
    """Nothing is made up for what a record does not say, nor for any part of it; a later column may have a default."""
    facts = evaluation_facts()
    of = facts if part is None else facts[part]
    later = {field.name for field in fields(Evaluation) if part is None and field.default is not MISSING}

    for field in of.keys() - later:
        without = {name: value for name, value in of.items() if name != field}
        path = field if part is None else f"{part}.{field}"
        with pytest.raises(RecordError, match=rf"\b{re.escape(path)}\b"):
            Evaluation.from_facts(without if part is None else facts | {part: without})


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        ({"started_at": 1e9}, r"started_at .*\b1000000000\.0\b"),
        ({"started_at": "yesterday"}, "started_at .*'yesterday'"),
        ({"run_id": 5}, r"run_id .*\b5\b"),
        ({"versions": {"python": 3}}, r"versions\.python .*\b3\b"),
        ({"kind": "shard_sets"}, "kind .*'shard_sets'.*evaluations"),
        ({"sequence": 2}, r" 2\b.* 1\b"),
        ({"sequence": True}, r" True\b.* 1\b"),
        ({"version": 3}, r" 3\b.* 4\b.*tta-pipeline run"),
        ({"version": True}, r" True\b.* 4\b"),
        ({"more": 1}, r"\bmore\b"),
    ],
    ids=str,
)
def test_what_is_around_the_facts_is_looked_at_too(locations: Locations, frame: dict[str, Any], found: str):
    """Time, run, kind and number have types, and the number is that of the file."""
    path = record(locations).path
    forge(path, frame=frame)

    with pytest.raises(RecordError, match=found):
        read_record(path)


def test_a_record_in_another_place_is_foreign(locations: Locations):
    """In another benchmark's folder, under another experiment or cell, or under another number."""
    first = record(locations, error=0.5).path
    second = record(locations, error=0.25).path
    cells = first.parents[1]
    for target, found in (
        (locations.results("copy") / "evaluations" / "tent" / "fog-5" / "000001.json", "'made'.*copy"),
        (cells / "contrast-5" / "000001.json", "tent/fog-5.*tent/contrast-5"),
        (cells.with_name("source") / "fog-5" / "000001.json", "tent/fog-5.*source/fog-5"),
        (locations.results("made") / "loader_benchmarks" / "fog-5" / "000001.json", "'evaluations'.*loader_benchmarks"),
        (second, r" 1\b.* 2\b"),
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(first, target)
        with pytest.raises(RecordError, match=found):
            read_record(target)


def test_exchanged_folders_are_noticed(locations: Locations):
    """The results of two cells under each other's names are foreign, all of them."""
    one, other = (record(locations, severity=severity).path.parent for severity in (1, 5))
    one.rename(one.with_name("aside"))
    other.rename(one)
    one.with_name("aside").rename(other)

    assert 2 == len(publish_metrics(locations).set_aside)
    for folder, found in ((one, other), (other, one)):
        with pytest.raises(RecordError, match=rf"tent/{found.name}\b.*tent/{folder.name}\b"):
            latest_record(locations.results("made"), kind="evaluations", name=f"tent/{folder.name}")


def test_never_an_older_record_in_silence(locations: Locations):
    """Whose newest record is damaged has no newest evaluation, in files and database, until there is a newer one."""
    results = locations.results("made")
    record(locations, error=0.5)
    publish_metrics(locations)
    path = record(locations, error=0.25).path
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(RecordError, match=re.escape(str(path))):
        latest_record(results, kind="evaluations", name="tent/fog-5")
    assert [] == latest(locations)

    record(locations, error=0.75)
    assert 0.75 == latest_record(results, kind="evaluations", name="tent/fog-5").evaluation.error
    assert [(3, 0.75)] == latest(locations)


def test_records_before_the_newest_are_told_backwards(locations: Locations):
    """Without those that are damaged."""
    _, second, *_ = (record(locations) for _ in range(4))
    second.path.write_bytes(second.path.read_bytes()[:-3])

    earlier = earlier_records(locations.results("made"), kind="evaluations", name="tent/fog-5")

    assert [3, 1] == [each.sequence for each in earlier]


def latest(locations: Locations) -> list[tuple[Any, ...]]:
    """Publish and return sequence and error of the latest evaluations."""
    publish_metrics(locations)
    with open_metrics(locations.metrics) as connection:
        return connection.execute("SELECT sequence, error FROM evaluations WHERE is_latest").fetchall()


def test_a_result_that_contradicts_itself_is_not_recorded(locations: Locations):
    """No file is left of it."""
    with pytest.raises(RecordError, match=r"tent/fog-5\b.*\berror .*\b0\.4\b"):
        publish_record(
            locations.results("made"), kind="evaluations", name="tent/fog-5", run_id="r", started_at=STARTED_AT,
            facts=evaluation_facts() | {"error": 0.4},
        )  # fmt: skip
    assert [] == list(locations.root.rglob("*.json"))


def test_an_evaluation_is_declared_without_torch():
    """What reads results does not wait for it."""
    program = "import sys, tta_pipeline.results.records; print({'torch', 'numpy', 'duckdb'} & {*sys.modules})"
    assert "set()\n" == subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout  # noqa: PLW1510


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with one record, opened by a session that may write."""
    locations = Locations(root=tmp_path_factory.mktemp("one"))
    record(locations)
    publish_metrics(locations)
    with duckdb.connect(locations.metrics) as connection:
        yield connection


def test_the_table_follows_from_the_record(database: duckdb.DuckDBPyConnection):
    """Every field has its column with its comment, in their order, and the database refuses what the record refuses."""
    found = database.execute(
        "SELECT column_name, comment, is_nullable FROM duckdb_columns() WHERE table_name = 'evaluations'"
    ).fetchall()
    fields = {field.name: (field.column.comment, field.is_nullable) for field in columns()}
    assert fields == {name: (comment, nullable) for name, comment, nullable in found if name in fields}
    assert list(fields) == [name for name, *_ in found if name in fields]
    assert {"error", "predictions_sha256"} < set(SHOWN)
    assert {"position", "error"} < set(SHOWN_OF_SEGMENT)


@pytest.mark.parametrize(
    "sql",
    ["error = 0.4", "num_correct = 81", "severity = -1", "wall_s = 0", "ece = 'nan'", "precision = 'fp8'",
     "top5_error = 0.5", "bin_counts = [1]", "images_per_s = 1"],
)  # fmt: skip
def test_the_database_has_the_constraints_that_hold(database: duckdb.DuckDBPyConnection, sql: str):
    """What no record says, no session can write either."""
    with pytest.raises(duckdb.ConstraintException):
        database.execute(f"UPDATE evaluations SET {sql}")


def test_numbers_are_those_of_files(locations: Locations):
    """Whatever else lies in the folder has none."""
    folder = record(locations).path.parent
    for name in ("x.json", "000002.json.bak", ".unpublished-1-000003.json", "٣.json"):
        (folder / name).write_text("")

    assert [1] == record_numbers(folder)
