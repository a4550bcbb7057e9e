"""A misspelt name is answered with the nearest names, and with all of them only if they are few."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.util.nearest_names import find_near_names, name_choices
from tta_pipeline_tests.conftest import SMALL


def test_few_names_are_all_listed():
    """A reader sees every choice, and the likely one."""
    assert "norm, tent (did you mean tent?)" == name_choices("tant", ["norm", "tent"], listed_in="a page")
    assert "norm, tent" == name_choices("zzz", ["norm", "tent"], listed_in="a page")
    assert "none" == name_choices("tent", [], listed_in="a page")


def test_of_many_names_the_nearest_are_shown():
    """400 names would hide the one that was meant; the message says where they are."""
    many = [f"shift_{number}" for number in range(400)]

    near = name_choices(["shift_7x"], many, listed_in="a page")
    far = name_choices("zzz", many, listed_in="a page")

    assert near.startswith("400 names (did you mean shift_7")
    assert near.endswith("? a page lists them)")
    assert "400 names, such as shift_0, shift_1, shift_2 (a page lists them)" == far


def test_the_case_of_letters_does_not_count():
    """Names of models and datasets are often written in another case."""
    assert ("resnet50",) == find_near_names("ResNet50", ["resnet50", "vit"])[:1]


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("method: norm", "method: nrom", f"{len(METHODS)} names (did you mean norm"),
        ("[gaussian_noise, contrast]", "[gausian_noise]", "did you mean gaussian_noise"),
        ("kind: digits", "kind: digts", "images.kind is 'digts'; expected one of digits, "),
        (
            "kind: trained",
            "kind: traind",
            "(did you mean trained?)",
        ),
        ("preset: cifar", "preset: cifr", "(did you mean cifar?)"),
        ("preset: cifar", "hyperparameters: {learningrate: 1}", "docs/reference/methods.md"),
        ("preset: cifar", "protocol: {shift: mixd}", "(did you mean mixed?)"),
        ("title:", "titel: 1\ntitle:", "did you mean title"),
        ("title:", "dataset: imagenet_d\ntitle:", "did you mean imagenet_"),
    ],
)
def test_a_benchmark_file_is_answered_with_what_it_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, expected: str
):
    """Every kind of name that a file holds."""
    assert right in SMALL
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "small.yaml").write_text(SMALL.replace(right, wrong, 1))
    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path))

    assert expected in CliRunner().invoke(main, ["doctor", "small"]).output


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["results", "list", "digit_c"], "did you mean digits_c?"),
        (["why", "digits_c", "tant", "fog|5"], "did you mean tent"),
        (["why", "digits_c", "tent", "fig|5"], "did you mean fog?"),
        (["download", "imagenet_s", "x"], "did you mean imagenet_"),
        (["shards", "make", "/", "out", "--num-shards", "1", "--dataset", "imagenetc"], "did you mean imagenet_c"),
        (["shards", "mke"], "Did you mean 'make'"),
        (["leaderboard", "--frmat", "csv"], "Did you mean '--format'"),
    ],
)
def test_a_command_is_answered_with_what_it_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], expected: str
):
    """Names of benchmarks, experiments, corruptions, datasets, verbs and options."""
    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path))

    assert expected in CliRunner().invoke(main, command).output
