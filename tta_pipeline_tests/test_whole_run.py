"""What one run from an archive to a report shows: where a class lacks, letters beside ASCII, no need of the archive."""

import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tta_pipeline_tests.conftest import Project, jpeg, launcher, new_project

BENCHMARK = """
title: K\u00e4se
custom: {{names: [dusk, fog, snow], severities: [1]}}
images: {{kind: archive, archives: [{archive}]}}
image_size: 32
shards: {{num_shards: 1}}
models: {{m: {{kind: python, factory: "nets:net", weights: none, mean: [0, 0, 0], std: [1, 1, 1]}}}}
experiments: {{source: {{model: m, method: source}}, norm: {{model: m, method: norm}}}}
"""
NETWORK = """
from torch import nn
def net(num_classes):
    return nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))
"""
IN_ASCII = """
import locale, os
locale.setlocale(locale.LC_ALL, "C")
with open(os.devnull) as file:
    assert "UTF-8" != file.encoding
from tta_pipeline.cli import main
main(["run", "one", "--part", "prepare"], standalone_mode=False)
os.remove("in.zip")
main(["run", "one"], standalone_mode=False)
main(["results", "publish", "one", "out"], standalone_mode=False)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive in which fog lacks a class, and a benchmark file of it."""
    folder = tmp_path_factory.mktemp("uneven")
    with zipfile.ZipFile(folder / "in.zip", "w") as archive:
        for number in range(8):
            for shift in ("dusk", "fog", "snow") if number % 2 else ("dusk", "snow"):
                archive.writestr(f"{shift}/1/K\u00e4{number % 2}/{number}.JPEG", jpeg(number))
    (folder / "nets.py").write_text(NETWORK)
    return folder


@pytest.fixture(scope="module")
def project(folder: Path) -> Project:
    """The project of the benchmark."""
    project = new_project(folder)
    project.add_benchmark("one", BENCHMARK.format(archive=folder / "in.zip"))
    return project


@pytest.fixture(scope="module")
def run(project: Project, folder: Path) -> subprocess.CompletedProcess[str]:
    """A run with a report, without the archive once there are shards, and its publication, in a locale of ASCII."""
    return launcher().run(["python", "-c", IN_ASCII], project.environment, timeout_s=600, folder=folder)


def test_a_cell_without_a_class_is_named_everywhere(
    project: Project, run: subprocess.CompletedProcess[str], folder: Path
):
    """By the run, the doctor, the leaderboard for people and programs, and the pages and figures of the report."""
    doctor, leaderboard, table = (
        launcher().run(["tta-pipeline", *words], project.environment, timeout_s=600, folder=folder)
        for words in (("doctor", "one", "--json"), ("leaderboard",), ("leaderboard", "--format", "csv"))
    )

    sentence = "fog|1 has 4 images of 1 classes, but other cells have 8 images of 2 classes"
    assert 1 == run.stderr.count(sentence)
    assert sentence in [each["found"] for each in json.loads(doctor.stdout)]
    assert sentence in " ".join(leaderboard.stdout.split())
    assert sentence in table.stderr
    report = project.locations.report("one")
    assert sentence in (report / "index.html").read_text()
    assert sentence in (report / "compare.html").read_text()
    assert "fog|1 has" in (report / "figures" / "heat_map.svg").read_text()


def test_other_letters_reach_the_report_under_a_locale_of_ascii(
    project: Project, run: subprocess.CompletedProcess[str], folder: Path
):
    """Text files are written in UTF-8 whatever the locale says."""
    assert 0 == run.returncode, run.stderr
    assert "K\u00e4se" in (project.locations.report("one") / "index.html").read_text(encoding="utf-8")
    assert (folder / "out").is_dir()


def test_a_run_needs_no_source_once_there_are_shards(
    project: Project, run: subprocess.CompletedProcess[str], folder: Path
):
    """It evaluates and reports from the shards alone, after the images are gone, and says what to type next."""
    assert 0 == run.returncode, run.stderr
    assert not (folder / "in.zip").exists()
    plans = (project.locations.results("one") / "plans").iterdir()
    assert {"norm.json", "source.json"} == {path.name for path in plans}
    report = project.locations.report("one") / "index.html"
    assert f"report: {report}; next: tta-pipeline leaderboard, tta-pipeline compare norm source" in run.stdout
    assert {"norm", "source"} <= set(re.findall(r"\w+", report.read_text()))
