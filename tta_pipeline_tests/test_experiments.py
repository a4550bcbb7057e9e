"""The verb `results list` lists what a benchmark file asks for."""

import json

import pytest
from click.testing import CliRunner, Result

from tta_pipeline.cli import main
from tta_pipeline_tests.conftest import SMALL, Project

MATRIX = "matrix: {models: [cnn], methods: [{tent: {lr: 0.5}, name: tent_fast}], protocols: [continual], group: few}\n"


def listed(project: Project, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    """Return what the verb answers."""
    monkeypatch.setenv("TTA_DATA_ROOT", str(project.locations.root))
    return CliRunner().invoke(main, ["results", "list", "small", *options], catch_exceptions=False)


def test_each_experiment_is_a_row_with_its_settings(project: Project, monkeypatch: pytest.MonkeyPatch):
    """Where it comes from, the hyperparameters that are not the preset's, its streams and its asset."""
    project.add_benchmark("small", SMALL + MATRIX)

    rows = json.loads(listed(project, monkeypatch, "--json").stdout)

    assert ["source", "norm", "tent", "tent_fast_continual"] == [row["experiment"] for row in rows]
    assert [5, 5, 5, 2] == [row["num_streams"] for row in rows]
    assert {
        "experiment": "tent_fast_continual", "model": "cnn", "method": "tent", "preset": "imagenet",
        "hyperparameters": "lr 0.5", "protocol": "continual", "subset": "all", "severities": [3, 5], "num_streams": 2,
        "num_recorded": 0, "origin": "matrix", "group": "small_few_streams",
        "asset": "small/evaluation/tent_fast_continual",
    } == rows[-1]  # fmt: skip
    assert (None, "experiments", "small") == tuple(rows[2][name] for name in ("hyperparameters", "origin", "group"))


def test_a_faulty_experiment_is_named_after_the_list(project: Project, monkeypatch: pytest.MonkeyPatch):
    """The list is of those that would be evaluated, and the exit status says that it is not all."""
    project.add_benchmark("small", SMALL + MATRIX.replace("lr:", "lra:"))

    answer = listed(project, monkeypatch)

    assert 1 == answer.exit_code
    assert "tent_fast" not in answer.stdout
    assert "left out: " in answer.stderr
    assert "matrix.tent_fast_continual: tent hyperparameters: unknown field lra" in answer.stderr


def test_people_get_the_columns_that_fit(project: Project, monkeypatch: pytest.MonkeyPatch):
    """In 80 columns what is evaluated and how far it is; with --wide everything."""
    project.add_benchmark("small", SMALL + MATRIX)

    short, wide = (listed(project, monkeypatch, *options).stdout for options in ((), ("--wide",)))

    assert max(map(len, short.splitlines())) <= 80
    assert "recorded" in " ".join(short.split())
    assert "small/evaluation/tent_fast_continual" in wide


def test_recorded_streams_are_counted(sweep: Project, monkeypatch: pytest.MonkeyPatch):
    """Each cell of a benchmark that was evaluated, and the clean images."""
    rows = json.loads(listed(sweep, monkeypatch, "--json").stdout)

    assert [(5, 5)] * 3 == [(row["num_streams"], row["num_recorded"]) for row in rows]
