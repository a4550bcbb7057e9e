"""An edit of a method's code outdates the results that it can affect, and no other."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import tta_pipeline
from tta_pipeline.methods import METHODS

PRINT_HASHES = """
import json
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.evaluation.fingerprint import method_code_sha256
from tta_pipeline.methods import METHODS

choices = {name: name for name in METHODS}
choices |= {"tent+lora": {"base": "tent", "params": "lora"}, "sar+come": {"base": "sar", "loss": "come"}}
made = {
    name: Experiment(model="m", method=method, preset=[*METHODS[name.partition("+")[0]].presets][0])
    for name, method in choices.items()
}
print(json.dumps({name: method_code_sha256(experiment) for name, experiment in made.items()}))
"""
GRADIENTS = {name for name, entry in METHODS.items() if entry.presets["imagenet"].takes_gradients} - {"tpt"}
EDITS = {
    "methods/entropy/asr.py": {"asr"},
    "methods/entropy/come.py": {"come", "sar+come"},
    "methods/entropy/added_parameters.py": {"tent+lora"},
    "methods/entropy/diverse_samples.py": {"eta", "eata", "rdumb", "asr"},
    "methods/gradient_method.py": {*GRADIENTS, "tent+lora", "sar+come"},
    "methods/teachers/memory_bank.py": {"rotta", "petta", "adacontrast"},
    "methods/views/augmix.py": {"ttaug", "memo"},
    "methods/batch_norm/source.py": {"source", "zero_shot"},
    "methods/method.py": {*METHODS, "tent+lora", "sar+come"},
    "models/normalized.py": {*METHODS, "tent+lora", "sar+come"},
    "methods/entropy/entries.py": set[str](),
    "methods/catalogue.py": set[str](),
    "report/pictures.py": set[str](),
}
"""Methods whose results an edit of each file outdates."""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, to be edited."""
    folder = tmp_path_factory.mktemp("copied")
    shutil.copytree(
        Path(tta_pipeline.__file__).parent, folder / "tta_pipeline", ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder


def hashes(folder: Path) -> Mapping[str, str]:
    """Return the hash of each method's code in *folder*, computed in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRINT_HASHES], cwd=folder, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )  # fmt: skip
    assert not done.returncode, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def before(copied: Path) -> Mapping[str, str]:
    """The hashes of the package as it is."""
    return hashes(copied)


@pytest.mark.parametrize("path", EDITS)
def test_an_edit_outdates_what_it_can_affect(copied: Path, before: Mapping[str, str], path: str):
    """A statement at the end of the file stands for any edit."""
    file = copied / "tta_pipeline" / path
    text = file.read_text()

    file.write_text(text + "\nEDITED = True\n")
    after = hashes(copied)
    file.write_text(text)

    assert EDITS[path] == {name for name in before if before[name] != after[name]}
