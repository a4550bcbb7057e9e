"""The YAML of a benchmark file: no value is another than what stands there, and nothing in it is executed."""

from pathlib import Path

import pytest

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.util.yaml_document import read_document
from tta_pipeline_tests.conftest import SMALL


def refusal(folder: Path, content: str | bytes) -> str:
    """Return what is said of a benchmark file with *content*."""
    path = folder / "mine.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BenchmarkFileError) as caught:
        load_benchmark(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("title: x\n1: 2\n", "line 2 has '1' as a name"),
        ("title: x\nsource: {1: 2}\n", "line 2 has '1' as a name"),
        ("~: 2\n", "line 1 has '~' as a name"),
        ("? [a, b]\n: 2\n", "line 1 has a list or a mapping as a name"),
        ("a: *b", "undefined alias"),
        ("a: !!python/object/apply:os.getcwd []", "tag:yaml.org,2002:python/object"),
        ("a:\n\tb: 1", "cannot start any token"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: {<<: 3}", "expected a mapping"),
        ("", "contains nothing"),
        ("[1, 2]", "contains a list"),
        (b"a: \xff", "utf-8"),
        (SMALL.encode("utf-16"), "utf-8"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_in_one_line(tmp_path: Path, content: str | bytes, named: str):
    """Integers as names, tags that would run code, and files that are no text."""
    said = refusal(tmp_path, content)

    assert named in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("010", "010"), ("1:30", "1:30"), ("off", "off"), ("NO", "NO"), ("2020-13-45", "2020-13-45"), ("'5'", "5"),
        ("1e-3", 0.001), ("1_000", 1000), ("0x10", 16), ("true", True), ("~", None), ("-1.5", -1.5), ("+3", 3),
    ],
)  # fmt: skip
def test_a_value_is_what_stands_there(tmp_path: Path, written: str, value: object):
    """YAML 1.1 would make 010 eight, 1:30 ninety, off and NO false, and 1e-3 a text."""
    path = tmp_path / "mine.yaml"
    path.write_text(f"on: {written}\n")

    assert {"on": value} == read_document(path)


def test_numbers_and_switches_mean_what_people_mean(tmp_path: Path):
    """A number with a zero in front is decimal, and `compile: off` is the mode of that name."""
    path = tmp_path / "mine.yaml"
    text = SMALL.replace("preset: cifar, batch_size: 32", "preset: cifar, batch_size: 010, compile: off")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())

    found = load_benchmark(path).experiments["tent"]

    assert (10, "off") == (found.batch_size, found.compile)


def test_aliases_and_merges_of_ordinary_size_are_read(tmp_path: Path):
    """An anchor and what differs from it."""
    path = tmp_path / "mine.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]\nd: [&d 4, *d]\n")

    read = read_document(path)
    assert ({"x": 1, "y": 3}, [4, 4]) == (read["b"], read["d"])
