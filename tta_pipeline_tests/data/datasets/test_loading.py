"""A dataset of one's own is a file beside the benchmark files; a faulty one is refused with path and field."""

import re
from pathlib import Path, PurePosixPath

import dagster as dg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tta_pipeline.benchmarks.load_files import load_benchmarks
from tta_pipeline.data.datasets.dataset import SHIFT_PATTERN, ShiftName
from tta_pipeline.data.datasets.dataset_files import find_dataset, read_own_sets, shipped_sets
from tta_pipeline.domain.cells import Cell, parse_key
from tta_pipeline.errors import BenchmarkFileError

NAME = TypeAdapter(ShiftName)
LINES = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def written(folder: Path, text: str, *, name: str = "mine") -> Path:
    """Write a dataset file with *text*, and return its path."""
    path = folder / f"{name}.dataset.yaml"
    path.write_text(text)
    return path


def test_an_own_set_is_found_by_its_file(tmp_path: Path):
    """The name is that of the file; what is left out has defaults."""
    written(tmp_path, "{names: [dusk, night], severities: [1, 3]}", name="evening")
    written(tmp_path, "names: [objectnet]", name="objectnet")

    evening, objectnet = read_own_sets(tmp_path)

    assert ("evening", ("dusk", "night"), (1, 3)) == (evening.name, evening.names, evening.cell_severities)
    assert ("objectnet", (0,), ("objectnet",)) == (objectnet.name, objectnet.cell_severities, objectnet.in_mean)
    assert evening == find_dataset("evening", tmp_path)


def test_a_dataset_is_not_taken_for_a_benchmark(tmp_path: Path):
    """Both lie in one folder and end in .yaml."""
    written(tmp_path, "names: [dusk]")

    assert load_benchmarks(tmp_path).faults == ()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("severities: [1]", "names"),
        ("names: []", r"names.*\[\]"),
        ("names: [dusk, dusk]", r"names.*\['dusk', 'dusk'\]"),
        ("names: [Dusk, dusk]", r"names.*\['Dusk', 'dusk'\]"),
        ("names: [dusk, clean]", r"names.*\['dusk', 'clean'\]"),
        ("names: [../dusk]", r"names\.0.*'\.\./dusk'"),
        ("names: ['dusk|1']", r"names\.0.*'dusk\|1'"),
        ("names: [dusk...night]", r"names\.0.*'dusk\.\.\.night'"),
        ("names: [dusk]\nseverities: [2, 1]", r"severities.*\[2, 1\]"),
        ("names: [dusk]\nseverities: [0]", r"severities\.0.*\b0\b"),
        ("names: [dusk]\nseverities: [2.35]", r"severities\.0.*2\.35"),
        ("names: [dusk]\nfamilies: {light: [dawn]}", "families.*dawn"),
        ("names: [dusk]\nheld_out: [dawn]", "held_out.*dawn"),
        ("names: [dusk]\nfolders: {dusk: ../elsewhere}", r"folders.*'\.\./elsewhere'"),
        ("names: [dusk]\nfolders: {dusk: /elsewhere}", "folders.*'/elsewhere'"),
        ("names: [dusk]\nseverity_folder: level", "severity_folder.*'level'"),
        ("names: [dusk]\narchives: {dusk.tar: {md5: 12}}", r"archives\.dusk\.tar\.md5.*\b12\b"),
        ("names: [dusk]\narchives: {dusk.tar: {shifts: [dawn]}}", "archives.*dawn"),
        ("names: [dusk]\nclass_folders: numbers", "class_folders.*numbers.*classes"),
        ("names: [dusk]\nnormaliser: resnet50", "normaliser"),
        ("names: [dusk]\nlicense: MIT", "license"),
        ("names: [dusk", r"line 1\b"),
        ("", ""),
    ],
)
def test_a_faulty_set_is_refused_with_path_and_field(tmp_path: Path, text: str, field: str):
    """Every sentence begins with the file and names the field."""
    path = written(tmp_path, text)

    with pytest.raises(BenchmarkFileError, match=rf"mine\.dataset\.yaml.*{field}") as caught:
        find_dataset("mine", tmp_path)

    assert all(line.startswith(str(path)) for line in str(caught.value).splitlines())


@pytest.mark.parametrize("name", sorted(shipped_sets()))
def test_an_own_set_that_hides_a_shipped_one_is_refused(tmp_path: Path, name: str):
    """Results on two sets would have one name."""
    path = written(tmp_path, "names: [dusk]", name=name)

    with pytest.raises(BenchmarkFileError, match=re.escape(str(path))):
        find_dataset(name, tmp_path)


@pytest.mark.parametrize("name", ["imagenet_x", "../sets/imagenet_c", "", "/"])
def test_an_unknown_set_is_refused_with_the_known_ones(tmp_path: Path, name: str):
    """The sentence names the nearest ones, the page that lists all, and where a file would lie."""
    with pytest.raises(BenchmarkFileError) as caught:
        find_dataset(name, tmp_path)

    number = str(len(shipped_sets()))
    assert all(value in str(caught.value) for value in (repr(name), number, "docs/guides/datasets.md", str(tmp_path)))


@given(
    st.one_of(
        st.from_regex(re.compile(SHIFT_PATTERN, re.ASCII)),
        st.text(alphabet=st.sampled_from("aZ9_+-.|/\\ ,\0~" + LINES), max_size=8),
        st.text(max_size=120),
    ),
    st.integers(0, 100),
)
@example("a\n", 1)
@example("a..b", 0)
@example("..", 0)
@example("-a", 0)
@settings(max_examples=40, deadline=None)
def test_an_accepted_name_is_one_folder_and_one_half_of_a_key(name: str, severity: int):
    """Whatever text is accepted is a single component of a path, and comes back from a Dagster key with two halves."""
    try:
        NAME.validate_python(name)
    except ValidationError:
        return
    cell = Cell(corruption=name, severity=severity)
    key = dg.MultiPartitionKey({"corruption": name, "severity": str(severity)})

    assert (name,) == PurePosixPath(name).parts
    assert name.isascii()
    assert not set(name) & set("|/\\ ,\0~" + LINES)
    assert name not in {".", ".."}
    assert len(name) <= 100
    assert [name, str(severity)] == str(key).split("|") == cell.key.split("|")
    assert "..." not in str(key)
    assert cell is parse_key(str(key), (cell,))
