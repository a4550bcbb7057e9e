"""A method made of pieces in a benchmark file is another way to write its hyperparameters."""

from pathlib import Path

import pytest

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.load_files import load_benchmarks
from tta_pipeline_tests.conftest import SMALL


def experiment(method: object, **changes: object) -> Experiment:
    """Return the experiment of *method*."""
    return Experiment.model_validate({"model": "m", "method": method, "preset": "cifar", **changes})


def test_pieces_are_hyperparameters():
    """So that a method is evaluated once, however it is written."""
    written_out = experiment("tent", hyperparameters={"loss": "come", "reset": "asr", "lr": 0.1})

    assert written_out == experiment({"base": "tent", "loss": "come", "reset": "asr", "lr": 0.1})
    assert written_out == experiment({"base": "tent", "loss": "come", "reset": "asr"}, hyperparameters={"lr": 0.1})


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("tent", "tent"),
        ({"base": "tent", "lr": 0.1}, "tent"),
        ({"base": "tent", "reset": "asr", "loss": "come"}, "tent+come+asr"),
        ({"base": "eata", "params": "last"}, "eata+last"),
        ({"base": "tent", "loss": "come", "params": "lora", "reset": "asr"}, "tent+come+lora+asr"),
        ("come", "come"),
        ({"base": "come", "loss": "come"}, "come"),
        ({"base": "rdumb", "reset": "never"}, "rdumb+never"),
        ("norm", "norm"),
    ],
)
def test_a_name_has_the_pieces_that_are_not_the_presets(method: object, name: str):
    """In the order of the pieces, however they are written; other hyperparameters are not in it."""
    assert name == experiment(method).method_name


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"method": {"loss": "come"}}, r"method .*\{'loss': 'come'\}.*\{base: tent, loss: come"),
        ({"method": {"base": ["tent"]}}, r"method .*\{'base': \['tent'\]\}.*\{base: tent, loss: come"),
        ({"method": {"base": "tant"}}, r"method .*'tant'.*\btent\b"),
        ({"method": {"base": "tent", "loss": "dice"}}, r"tent hyperparameters\.loss .*'dice'.*\bentropy, come, gce\b"),
        ({"method": {"base": "norm", "loss": "come"}}, r"norm hyperparameters: .*\bloss;"),
        ({"method": {"base": "cotta", "loss": "come"}}, r"cotta hyperparameters: .*\bloss;.*\blr, optimizer\b"),
        (
            {"method": {"base": "tent", "loss": "come"}, "hyperparameters": {"loss": "gce"}},
            r"\bmethod and hyperparameters\b.*\bloss;",
        ),
        ({"method": {"base": "tent", "loss": "come"}, "hyperparameters": [1]}, "hyperparameters"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(changes: dict[str, object], found: str):
    """Where the file is read, with what would do."""
    with pytest.raises(ValueError, match=found):
        experiment(**changes)


def test_a_matrix_names_experiments_after_pieces(tmp_path: Path):
    """Without what a name cannot have; a name of one's own comes first."""
    methods = "[{base: sar, loss: come, lr: 0.5}, {base: sar, reset: asr, name: mine}, {base: sar}]"
    (tmp_path / "mine.yaml").write_text(f"{SMALL}matrix: {{models: [cnn], methods: {methods}, preset: cifar}}\n")
    found = load_benchmarks(tmp_path).benchmark("mine").experiments

    assert ["sar_come", "mine", "sar"] == list(found)[3:]
    assert {"loss": "come", "lr": 0.5} == found["sar_come"].hyperparameters
    assert ["sar+come", "sar+asr", "sar"] == [found[name].method_name for name in ("sar_come", "mine", "sar")]
