"""A result proves itself, says what it is of, and is one typed thing whose fields are said once."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.evaluation_record import SHOWN, SHOWN_OF_SEGMENT, Evaluation, columns
from tta_pipeline.results.names import find_results, read_void
from tta_pipeline.results.result_files import Result, read_result, store_result, utc_now, void_result
from tta_pipeline_tests.flat_facts import changed
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
            read_result(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1,2]", b"\xff\xfe", b"null", b'{"version":1}'], ids=str)
def test_what_is_no_result_is_named(locations: Locations, content: bytes):
    """Whatever it holds, the error is one line with the path."""
    path = record(locations).path
    path.write_bytes(content)

    with pytest.raises(RecordError, match=re.escape(str(path))):
        read_result(path)


def _result() -> Result:
    """Return the result of `evaluation`."""
    row = evaluation()
    return Result(
        kind="evaluation", benchmark="made", key="fog-5", fingerprint=row.setup.fingerprint, run_id="r",
        started_at=STARTED_AT, finished_at=STARTED_AT, versions={}, evaluations=(row,),
    )  # fmt: skip


def test_what_cannot_be_read_stops_no_other_result(locations: Locations):
    """A folder or a link to nothing in a result's place is named, and publishing goes on."""
    kept = record(locations)
    places = [kept.path.with_name(f"{number:016x}-00000000.json") for number in (1, 2)]
    places[0].mkdir()
    places[1].symlink_to("gone")
    for place in places:
        with pytest.raises(RecordError, match=str(place)):
            read_result(place)

    publication = publish_metrics(locations)

    assert 1 == publication.num_added
    for place in places:
        assert str(place) in "\n".join(publication.set_aside)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"error": 0.4}, "scores.error is 0.4, scores.num_correct is 60, scores.num_samples is 80; expected"),
        ({"num_correct": 61}, "expected error to be 1 - num_correct / num_samples"),
        ({"top5_error": 0.5}, "expected top5_error to be at most error"),
        ({"ece": 0.0}, "expected the error that follows from the bins"),
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
        ({"model": None}, "model is None; expected text"),
        ({"bins": [1]}, "calibration.bins is [1]; expected fields by name"),
        ({"class_counts": {"num_samples": 0.5, "num_correct": []}}, "class_counts.num_samples is 0.5; expected a list"),
        ({"class_counts": {"num_samples": [80], "num_correct": ["61"]}}, "class_counts.num_correct.0 is '61'"),
        ({"speed": 1}, "has speed, which is not one of its fields; expected the fields of Evaluation"),
    ],
    ids=str,
)  # fmt: skip
def test_a_result_edited_by_hand_is_refused_by_name(locations: Locations, changes: dict[str, Any], message: str):
    """Even if somebody names it as it hashes then: the message has the path, the field and the value."""
    path = forge(record(locations).path, **changes)

    with pytest.raises(RecordError) as caught:
        read_result(path)

    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize("changes", [{"host_to_device_s": [0.0]}, {"num_correct": [50, 10]}], ids=str)
def test_batches_are_columns_of_equal_length_without_more_hits_than_images(
    locations: Locations, changes: dict[str, Any]
):
    """Though their sums are those of the cell."""
    path = forge(record(locations).path, batches={**evaluation_facts()["batches"], **changes})

    with pytest.raises(RecordError, match="expected batches of these numbers and sums"):
        read_result(path)


def test_a_result_has_a_cell_and_the_name_of_a_result(locations: Locations):
    """The error says what was expected."""
    path = record(locations).path
    empty = forge(path, frame={"payload": {"shared": {}, "cells": []}})

    with pytest.raises(RecordError, match="at least one cell"):
        read_result(empty)
    with pytest.raises(RecordError, match="expected a name such as"):
        read_result(empty.rename(empty.with_name("renamed.json")))


def test_a_missing_field_is_named():
    """Nothing is made up for what a record does not say, nor for any part of it."""
    facts = evaluation(num_unknown=8, auroc=0.5, fpr95=0.5, aupr=0.5).facts()

    for path in _paths(facts):
        without = json.loads(json.dumps(facts))
        *parts, last = path
        del reduce(getitem, parts, without)[last]
        with pytest.raises(RecordError, match=rf"\b{re.escape('.'.join(path))}\b"):
            Evaluation.from_facts(without)


def _paths(facts: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in facts.items():
        yield (name,)
        if isinstance(value, Mapping):
            yield from ((name, *path) for path in _paths(value))


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        ({"started_at": 1e9}, r"started_at .*\b1000000000\.0\b"),
        ({"started_at": "yesterday"}, "started_at .*'yesterday'"),
        ({"run_id": 5}, r"run_id .*\b5\b"),
        ({"versions": 3}, r"versions .*\b3\b"),
        ({"kind": "shard_sets"}, "kind .*'shard_sets'"),
        ({"previous": 2}, r"previous .*\b2\b"),
        ({"format": 3}, "made by an earlier version of tta_pipeline"),
        ({"key": "fog-4"}, "belongs to fog-4 of made; expected the folder results/made/fog-4"),
        ({"benchmark": "other"}, "belongs to other; expected the folder results/other"),
        ({"fingerprint": "0" * 64}, "to another segment"),
        ({"more": 1}, r"\bmore\b"),
    ],
    ids=str,
)
def test_what_is_around_the_facts_is_looked_at_too(locations: Locations, frame: dict[str, Any], found: str):
    """Time, run, kind, place and fingerprint have types, and are those of the file's name and folder."""
    path = forge(record(locations).path, frame=frame)

    with pytest.raises(RecordError, match=found):
        read_result(path)


def test_a_result_in_another_place_is_foreign(locations: Locations):
    """In another benchmark's folder, or under another cell; under another name it is damaged."""
    first = record(locations, error=0.5).path
    for target, found in (
        (locations.results("copy") / "fog-5" / first.name, "belongs to made; expected the folder results/made"),
        (first.parents[1] / "contrast-5" / first.name, "belongs to fog-5 of made"),
        (first.with_name(f"{first.name[:16]}-00000000.json"), "is damaged"),
        (first.with_name(f"{'0' * 16}{first.name[16:]}"), "has the content of another file"),
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(first, target)
        with pytest.raises(RecordError, match=found):
            read_result(target)


def test_exchanged_folders_are_noticed(locations: Locations):
    """The results of two cells under each other's names are foreign, all of them."""
    one, other = (record(locations, severity=severity).path.parent for severity in (1, 5))
    one.rename(one.with_name("aside"))
    other.rename(one)
    one.with_name("aside").rename(other)

    assert 2 == len(publish_metrics(locations).set_aside)


def test_equal_results_are_one_file_and_others_have_names_of_their_own(locations: Locations):
    """So a file is never written again, and folders of several machines can be copied together."""
    stored = record(locations)

    again = store_result(locations.results("made"), stored.result)
    later = store_result(locations.results("made"), replace(stored.result, finished_at=utc_now()))

    assert stored == again
    assert stored.path.name[:17] == later.path.name[:17]
    assert [stored.path, later.path] == sorted(find_results(stored.path.parent), key=later.path.__eq__)


def test_results_are_found_by_fingerprint_without_void_ones(locations: Locations):
    """By their names alone; whatever else lies in the folder is none."""
    one, other = record(locations, seed=0), record(locations, seed=1)
    for name in ("x.json", f"{one.path.name}.bak", ".unpublished-1-000003.json", "٣.json"):
        (one.path.parent / name).write_text("")

    assert {one.path, other.path} == {*find_results(one.path.parent)}
    assert [one.path] == [*find_results(one.path.parent, one.result.fingerprint)]
    void_result(one.path, "a test")
    assert [other.path] == [*find_results(one.path.parent)]
    assert "a test" == read_void(one.path).because


def test_a_damaged_note_still_voids(locations: Locations):
    """Somebody meant it to."""
    stored = record(locations)
    void_result(stored.path, "a test").write_text("{")

    assert [] == [*find_results(stored.path.parent)]
    assert "cannot be read" in read_void(stored.path).because


def test_only_a_result_is_made_void(locations: Locations):
    """The error says what a result is called."""
    for path in (locations.root / "x.json", record(locations).path.with_name(f"{'0' * 16}-{'0' * 8}.json")):
        with pytest.raises(RecordError, match=re.escape(str(path))):
            void_result(path, "a test")


def test_a_result_that_contradicts_itself_is_not_stored(locations: Locations):
    """No file is left of it."""
    with pytest.raises(RecordError, match=r"fog-5\b.*\berror .*\b0\.4\b"):
        store_result(locations.results("made"), replace(_result(), evaluations=(changed(evaluation(), error=0.4),)))
    assert [] == list(locations.root.rglob("*.json"))


def test_an_evaluation_is_declared_without_torch():
    """What reads results does not wait for it."""
    program = "import sys, tta_pipeline.results.result_files; print({'torch', 'numpy', 'duckdb'} & {*sys.modules})"
    assert "set()\n" == subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout  # noqa: PLW1510


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with one result, opened by a session that may write."""
    locations = Locations(root=tmp_path_factory.mktemp("one"))
    record(locations)
    publish_metrics(locations)
    with duckdb.connect(locations.metrics) as connection:
        yield connection


def test_the_table_follows_from_the_result(database: duckdb.DuckDBPyConnection):
    """Every field has its column with its comment, in their order, and the database refuses what the result refuses."""
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
    """What no result says, no session can write either."""
    with pytest.raises(duckdb.ConstraintException):
        database.execute(f"UPDATE evaluations SET {sql}")
