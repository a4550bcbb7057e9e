"""An edit of a method's code outdates the results that it can affect, and no other."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

import tta_pipeline
from tta_pipeline.methods import METHODS
from tta_pipeline_tests.conftest import launcher

PRINT_HASHES = """
import json, os, sys, warnings
from pathlib import Path

warnings.simplefilter("error")
for name in [each for each in sys.modules if each.partition(".")[0] == "tta_pipeline"]:
    del sys.modules[name] # the copy, in the present folder, is imported in its place
import tta_pipeline
assert Path(tta_pipeline.__file__).parent == Path.cwd()
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.evaluation.fingerprint import method_code_sha256
from tta_pipeline.methods import METHODS
from tta_pipeline.util.source_code import _code

choices = {name: name for name in METHODS}
choices |= {"tent+lora": {"base": "tent", "params": "lora"}, "sar+come": {"base": "sar", "loss": "come"}}
made = {
    name: Experiment(model="m", method=method, preset=[*METHODS[name.partition("+")[0]].presets][0])
    for name, method in choices.items()
}
def print_hashes():
    if (child := os.fork()) == 0:
        print(json.dumps({name: method_code_sha256(experiment) for name, experiment in made.items()}), flush=True)
        os._exit(0)
    os.waitpid(child, 0)

for file in Path("methods").rglob("*.py"):  # parsed once, and not in each process
    _code(file.read_bytes())
print_hashes()
for names in sys.argv[1:]:
    texts = {Path(name): Path(name).read_text() for name in names.split()}
    for file, text in texts.items():
        file.write_text(text + "\\nEDITED = True\\n")
    print_hashes()
    for file, text in texts.items():
        file.write_text(text)
"""
"""After an edit of each file, or of several: a statement at its end stands for any."""
TUNED_TEXTS = {"tpt", "tps", "ctpt"}
GRADIENTS = {name for name, entry in METHODS.items() if entry.presets["imagenet"].takes_gradients} - TUNED_TEXTS
EDITS = {
    "methods/entropy/asr.py": {"asr"},
    "methods/entropy/come.py": {"come", "sar+come"},
    "methods/entropy/added_parameters.py": {"tent+lora"},
    "methods/entropy/diverse_samples.py": {"eta", "eata", "rdumb", "asr", "unient", "ostta"},
    "methods/gradient_method.py": {*GRADIENTS, "tent+lora", "sar+come"},
    "methods/teachers/memory_bank.py": {"rotta", "petta", "adacontrast"},
    "methods/views/augmix.py": {"ttaug", "memo"},
    "methods/clip/crop_views.py": {"zero", "mta", "boostadapter", *TUNED_TEXTS},
    "methods/clip/image_cache.py": {"tda", "oga", "boostadapter"},
    "methods/clip/voting_caches.py": {"tda", "boostadapter"},
    "methods/batch_norm/source.py": {"source", "zero_shot"},
    "methods/method.py": {*METHODS, "tent+lora", "sar+come"},
    "models/normalized.py": {*METHODS, "tent+lora", "sar+come"},
    "methods/entropy/entries.py methods/catalogue.py report/pictures.py": set[str](),
}
"""Methods whose results an edit of each file outdates, or of any of several files."""


@pytest.fixture(scope="module")
def hashes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, str]]:
    """The hash of each method's code after each edit of a copy of the package, each computed by a process of its own.

    Under an empty name: as the package is.
    """
    folder = tmp_path_factory.mktemp("copied")
    shutil.copytree(
        Path(tta_pipeline.__file__).parent, folder / "tta_pipeline", ignore=shutil.ignore_patterns("__pycache__")
    )
    done = launcher().run(
        ["python", "-c", PRINT_HASHES, *EDITS], {**os.environ, "PYTHONPATH": str(folder)}, timeout_s=600,
        folder=folder / "tta_pipeline",
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return dict(zip(["", *EDITS], map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("path", EDITS)
def test_an_edit_outdates_what_it_can_affect(hashes: Mapping[str, Mapping[str, str]], path: str):
    """And nothing else."""
    before, after = hashes[""], hashes[path]

    assert EDITS[path] == {name for name in before if before[name] != after[name]}
