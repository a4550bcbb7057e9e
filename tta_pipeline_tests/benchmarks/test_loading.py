"""One faulty file or experiment is named and left out; everything else is read."""

import os
import re
from pathlib import Path

import pytest

from tta_pipeline.benchmarks.load_files import Fault, load_benchmark, load_benchmarks
from tta_pipeline.domain.locations import EMBEDDED_BENCHMARKS
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline_tests.conftest import SMALL

FAULTY = """
  unknown: {model: cnn, method: nrom}
  n-1: {model: cnn, method: source}
  strange: {model: cnn, method: tent, hyperparameters: {learning: 1}}
  modelless: {model: vit, method: source}
  cut: 3
  elsewhere: {model: cnn, method: source, severities: [1]}
  exits: {model: cnn, method: "exiting:METHOD"}
  raises: {model: cnn, method: "raising:METHOD"}
  unparsed: {model: cnn, method: "unparsed:METHOD"}
  presetless: {model: cnn, method: "presetless:METHOD"}
  Norm: {model: cnn, method: source}
  two: {model: cnn, method: norm, protocols: [reset_each_shift, mixed]}
  two_mixed: {model: cnn, method: source}
"""
MODULES = {
    "exiting": "import sys; sys.exit(3)",
    "raising": "1 / 0",
    "unparsed": "def",
    "presetless": "from tta_pipeline.methods.catalogue import MethodEntry\n"
    "METHOD = MethodEntry(implementation='x:y', summary='', presets={})",
}


def by_experiment(faults: tuple[Fault, ...]) -> dict[str | None, str]:
    """Return the sentences by experiment."""
    return {fault.experiment: fault.sentence for fault in faults}


def test_faulty_experiments_leave_the_others_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each that is wrong is named with its sentence; the others of the benchmark are there."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.yaml").write_text(SMALL + FAULTY)

    loaded = load_benchmarks(tmp_path)

    found = by_experiment(loaded.faults)
    expected = {
        "unknown": "method is 'nrom'", "n-1": "letters, digits", "strange": "learning", "modelless": "'vit'",
        "cut": "experiments.cut", "elsewhere": "severities is [1]", "exits": "SystemExit(3)",
        "raises": "ZeroDivisionError", "unparsed": "SyntaxError", "presetless": "preset is 'imagenet'",
        "Norm": "norm, Norm differ only in case", "two_mixed": "already exists",
    }  # fmt: skip
    assert set(expected) == set(found)
    assert all(part in found[name] and str(tmp_path / "mine.yaml") in found[name] for name, part in expected.items())
    assert ["source", "norm", "tent", "two", "two_mixed"] == list(loaded.benchmarks["mine"].experiments)
    assert all(len(sentence.splitlines()) == 1 for sentence in found.values())


@pytest.mark.parametrize("fault", ["images: {kind", "experiments:"])
def test_nothing_of_a_faulty_file_outlives_its_sentence(tmp_path: Path, fault: str):
    """The error, kept as long as a web server likes, holds no validator or frame of what it was raised for."""
    path = tmp_path / "mine.yaml"
    path.write_text(SMALL.replace(fault, "sauce: {kind" if "images" in fault else "matrix: 3\nexperiments:"))

    with pytest.raises(BenchmarkFileError) as raised:
        load_benchmark(path)

    assert raised.value.__context__ is None
    assert raised.value.__cause__ is None


def test_faulty_files_leave_the_other_benchmarks_alive(tmp_path: Path):
    """Whatever lies there in place of a benchmark file, those that are right are read."""
    (tmp_path / "right.yaml").write_text(SMALL)
    (tmp_path / "sourceless.yaml").write_text(SMALL.replace("images: {kind", "sauce: {kind"))
    (tmp_path / "text.yaml").write_text("title: [")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "a name.yaml").write_text(SMALL)
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml"))).write_text(SMALL)
    (tmp_path / "._right.yaml").write_text("left by an archive of another system")

    loaded = load_benchmarks(EMBEDDED_BENCHMARKS, tmp_path)

    assert ["digits_c", "right"] == list(loaded.benchmarks)
    assert {"sourceless", "text", "folder", "a name", "\udcff"} == {each.benchmark for each in loaded.faults}
    assert all(each.sentence.encode() for each in loaded.faults)


def test_two_files_cannot_share_a_name(tmp_path: Path):
    """A file that would hide an embedded benchmark is left out, and one whose name some disks hold for the same."""
    for name in ("digits_c", "Digits_C"):
        (tmp_path / f"{name}.yaml").write_text(SMALL)

    loaded = load_benchmarks(EMBEDDED_BENCHMARKS, tmp_path)

    assert ["digits_c"] == list(loaded.benchmarks)
    assert 75 == len(loaded.benchmarks["digits_c"].cells)
    assert {"digits_c", "Digits_C"} == {each.benchmark for each in loaded.faults}
    assert all(str(EMBEDDED_BENCHMARKS / "digits_c.yaml") in each.sentence for each in loaded.faults)
    with pytest.raises(BenchmarkFileError, match="have the same name"):
        loaded.experiment("digits_c", "of_the_second_file")


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path):
    """Benchmarks that are silently not there would look like none."""
    (tmp_path / "benchmarks").write_text("")

    assert "cannot be listed" in load_benchmarks(EMBEDDED_BENCHMARKS, tmp_path / "benchmarks").faults[0].sentence
    assert not load_benchmarks(tmp_path / "nowhere").faults


def test_who_names_a_faulty_one_gets_its_sentence(tmp_path: Path):
    """And who names what nobody knows is told what there is."""
    (tmp_path / "mine.yaml").write_text(SMALL + "  wrong: {model: cnn, method: nrom}\n")
    (tmp_path / "cut.yaml").write_text("title: [")
    loaded = load_benchmarks(tmp_path)

    assert "tent" == loaded.experiment("mine", "tent").method
    for benchmark, experiment, found in (
        ("mine", "wrong", r"experiments\.wrong: .*'nrom'.*\bnorm\b"),
        ("cut", "tent", r"cut\.yaml .*\bline 2, column 1\b"),
        ("mine", "none", r"\bmine\b.*'none'.*\bsource, norm, tent\b"),
        ("none", "tent", rf"'none' .*{re.escape(str(tmp_path))}\b.*\bmine\b.*\bTTA_DATA_ROOT\b"),
    ):
        with pytest.raises(BenchmarkFileError, match=found):
            loaded.experiment(benchmark, experiment)
