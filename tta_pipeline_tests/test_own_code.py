"""A user's own method, network and corruption lie in the project folder, and every verb finds them there."""

import hashlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import click
import dagster as dg
import pytest
import torch

from tta_pipeline.cli import main
from tta_pipeline.extras.new_project import create_project
from tta_pipeline_tests.conftest import in_one_line, launcher
from tta_pipeline_tests.result_paths import results_of

GUIDES = Path(__file__).parents[1] / "docs/guides"
HOW_TO = "".join((GUIDES / f"own-{name}.md").read_text() for name in ("model", "images", "method"))
CORRUPTION = """
import numpy as np


def darker(image: np.ndarray) -> np.ndarray:
    return (image * 0.7).astype(np.uint8)
"""
BENCHMARK = """
title: Everything of one's own
images: {{kind: digits, num_test: 60, severity_table: imagenet_c}}
corruptions: [contrast]
severities: [3, 5]
image_size: 32
shards: {{samples_per_shard: 60, function: "my_corruption:darker"}}
models:
  mine:
    kind: python
    factory: "my_models:SmallResNet"
    weights: {weights}
    sha256: "{sha256}"
    mean: [0.5, 0.5, 0.5]
    std: [0.5, 0.5, 0.5]
experiments:
  tent: {{model: mine, method: tent, preset: cifar, batch_size: 20}}
  mirrored: {{model: mine, method: "my_method:MIRRORED"}}
  mirrored_few: {{model: mine, method: "my_method:MIRRORED", batch_size: 20}}
"""
LEFT_OUT = re.compile(
    r"left out|importing '.*' raised|No module named|found 0 benchmarks|(There is|has) no experiment|Traceback"
)
READ_ONLY = (
    "run mine --dry-run",
    "results list mine",
    "leaderboard",
    "query 'FROM leaderboard'",
    "compare mirrored tent",
    "why mine mirrored_few 'contrast|5'",
    "submit mine --dry-run",
    "doctor",
    "models check mine mine --limit 20",
    "prune --dry-run",
    "results publish mine ../published",
    "results reproduce ../published mirrored --cell 'contrast|5'",
    "evaluate data/mine/shards/contrast/5 --model my_models:SmallResNet --weights none --method my_method:MIRRORED",
)
"""Verbs that load benchmarks, as they are typed in the project folder; they change nothing in the data root."""
REFUSED = {
    "tune mine tent": "no tuning for tent",
}
"""Verbs that load benchmarks, and that need what this benchmark lacks; they say so."""
LOAD_NONE = frozenset({
    "init", "new-benchmark", "download", "shards make", "shards verify", "shards index",
    "shards split", "shards bench", "results add", "results void", "results verify", "results rebuild",
})  # fmt: skip
"""Verbs that load no benchmark file."""


def recipe(name: str) -> str:
    """Return the Python of a recipe that contains *name*."""
    (text,) = [text for text in re.findall(r"```python\n(.*?)```", HOW_TO, re.DOTALL) if name in text]
    return text


def verbs_of(command: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each verb under *command* by the words that are typed for it."""
    if isinstance(command, click.Group):
        for name, verb in command.commands.items():
            yield from verbs_of(verb, *words, name)
    else:
        yield " ".join(words), command


def typed(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment in *folder*, such as the project's, as its user does."""
    unset = ("TTA_DATA_ROOT", "TTA_SHARDS_ROOT", "DAGSTER_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PYTHONWARNINGS": "ignore", **variables}
    return launcher().run(list(command), environment, timeout_s=600, folder=folder)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `init` writes, the recipes' files beside it, and every experiment evaluated by `run`, without a report."""
    folder = tmp_path_factory.mktemp("own") / "project"
    create_project(folder)
    (folder / "my_method.py").write_text(recipe("MIRRORED"))
    (folder / "my_models.py").write_text(recipe("SmallResNet"))
    (folder / "my_corruption.py").write_text(CORRUPTION)
    namespace: dict[str, type[torch.nn.Module]] = {}
    exec(recipe("SmallResNet"), namespace)
    torch.manual_seed(0)
    weights = folder / "mine.pth"
    torch.save(namespace["SmallResNet"]().state_dict(), weights)
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folder / "data/benchmarks/mine.yaml").write_text(BENCHMARK.format(weights=weights, sha256=sha256))
    (folder / "data/benchmarks/first.yaml").unlink()
    made = typed(folder, "tta-pipeline", "run", "mine", "--no-report")
    assert made.returncode == 0, made.stderr[-5000:]
    assert not LEFT_OUT.search(made.stderr), made.stderr
    return folder


@pytest.mark.parametrize("command", READ_ONLY)
def test_every_verb_finds_what_lies_in_the_project_folder(project: Path, command: str):
    """Nothing is left out, and every answer that should name the own experiment does."""
    done = typed(project, "tta-pipeline", *shlex.split(command))

    said = done.stdout + done.stderr
    assert not LEFT_OUT.search(said), said
    assert done.returncode == 0 or command == "doctor", said  # the doctor may find a fault of this machine
    assert "fault  mine" not in said
    if command.split(maxsplit=1)[0] in ("leaderboard", "compare") or command == "results list mine":
        assert "mirrored" in said


@pytest.mark.parametrize("command", REFUSED)
def test_a_refusal_is_about_the_benchmark(project: Path, command: str):
    """The benchmark is loaded with its own method, and one line says what it lacks."""
    done = typed(project, "tta-pipeline", *shlex.split(command))

    assert done.returncode == 1
    assert not LEFT_OUT.search(done.stderr), done.stderr
    assert REFUSED[command] in in_one_line(done.stderr)


def test_no_verb_is_forgotten():
    """Each verb of the command line is typed here, or its file loads no benchmark."""
    verbs = dict(verbs_of(main))
    typed_here = {verb for verb in verbs for command in (*READ_ONLY, *REFUSED) if f"{command} ".startswith(f"{verb} ")}

    assert set(verbs) - typed_here == LOAD_NONE
    for verb in LOAD_NONE:
        assert "load_all_benchmarks" not in Path(inspect.getfile(inspect.unwrap(verbs[verb].callback))).read_text()


def test_a_second_run_evaluates_nothing_wherever_it_is_typed(project: Path, tmp_path: Path):
    """In another folder, the data root alone says where the own modules and the history are."""
    done = typed(tmp_path, "tta-pipeline", "run", "mine", "--no-report", TTA_DATA_ROOT=str(project / "data"))

    assert done.returncode == 0, done.stderr
    assert "nothing of it is unfinished" in in_one_line(done.stderr)
    assert not LEFT_OUT.search(done.stderr), done.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def broken(project: Path, tmp_path: Path) -> Path:
    """A copy of the project with another experiment, and one that always fails, and without results."""
    there = Path(shutil.copytree(project, tmp_path / "there"))
    method = recipe("MIRRORED").replace("return (", "raise RuntimeError('no') or (").replace("my_method:", "broken:")
    (there / "broken.py").write_text(method)
    with (there / "data/benchmarks/mine.yaml").open("a") as file:
        file.write('  norm: {model: mine, method: norm}\n  broken: {model: mine, method: "broken:MIRRORED"}\n')
    shutil.rmtree(there / "data/results")
    return there


def test_a_run_chooses_cells_and_experiments_and_reports_what_did_not_fail(broken: Path, tmp_path: Path):
    """Only the chosen cell is evaluated, by a run in the history of the project that the data root belongs to.

    If one of two experiments fails, the other is reported.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    chosen = ("--corruption", "contrast", "--severity", "5", "--experiment", "broken", "--experiment", "norm")
    done = typed(elsewhere, "tta-pipeline", "run", "mine", *chosen, TTA_DATA_ROOT=str(broken / "data"))

    assert done.returncode == 1
    assert done.stderr.endswith("run the same command again, which skips finished work\n")
    assert {"contrast-5"} == {each.result.key for each in results_of(broken / "data", "mine", "norm")}
    with chdir(broken), dg.DagsterInstance.from_config(str(broken)) as instance:
        assert {"contrast|5"} == instance.get_materialized_partitions(dg.AssetKey(["mine", "evaluation", "norm"]))
    assert not list(elsewhere.iterdir())
    assert (broken / "data/mine/report/index.html").exists()


def test_a_run_in_which_everything_fails_reports_nothing(broken: Path):
    """There is nothing to report, and what to do is said."""
    done = typed(broken, "tta-pipeline", "run", "mine", "--cell", "contrast|5", "--experiment", "broken")

    assert done.returncode == 1
    assert done.stderr.endswith("run the same command again, which skips finished work\n")
    assert not (broken / "data/mine/report/index.html").exists()


@pytest.mark.parametrize(
    ("mistake", "answer"),
    [
        ("run mine --cell 'contrast|4'", "did you mean contrast|5"),
        ("run mine --corruption contrst", "did you mean contrast?"),
        ("run mine --severity 5 --cell 'clean|0'", "No cell matches all of"),
        ("run mine --experiment mirored", "mirrored"),
    ],
)
def test_a_misspelt_choice_is_answered_with_candidates(project: Path, mistake: str, answer: str):
    """Before anything is planned."""
    done = typed(project, "tta-pipeline", *shlex.split(mistake))

    assert done.returncode != 0
    assert answer in in_one_line(done.stderr)


def test_what_a_run_would_refuse_is_found_before_it(project: Path, tmp_path: Path):
    """Missing weights are named by `run` before it makes shards, and by the doctor; a list needs none."""
    there = Path(shutil.copytree(project, tmp_path / "there"))
    file = there / "data/benchmarks/mine.yaml"
    file.write_text(file.read_text().replace("mine.pth", "lost.pth"))

    listed = typed(there, "tta-pipeline", "results", "list", "mine")
    done = {verb: typed(there, "tta-pipeline", verb, "mine") for verb in ("run", "doctor")}

    assert 0 == listed.returncode
    assert "mirrored" in listed.stdout
    assert {1} == {each.returncode for each in done.values()}
    assert all("lost.pth" in each.stdout + each.stderr for each in done.values())
    assert 1 == len(in_one_line(done["run"].stderr).splitlines())


def test_results_by_earlier_shards_code_and_settings_are_said(project: Path, tmp_path: Path):
    """Beside the leaderboard and the list of experiments; `compare` takes the cells that both have now."""
    there = Path(shutil.copytree(project, tmp_path / "there"))
    method = there / "my_method.py"
    edited = method.read_text().replace(") / 2", ") * 0.5")
    assert edited != method.read_text()

    file = there / "data/benchmarks/mine.yaml"
    file.write_text(file.read_text().replace("samples_per_shard: 60", "samples_per_shard: 60, seed: 1"))
    evaluate = ("tta-pipeline", "run", "mine", "--cell", "contrast|5", "--no-report", "--experiment")
    typed(there, *evaluate, "tent")
    by_shards = typed(there, "tta-pipeline", "leaderboard")
    method.write_text(edited)
    by_code = typed(there, "tta-pipeline", "leaderboard")
    setting = "class Chosen(Hyperparameters):\n    share: float = 0.5\n\n\nMIRRORED ="
    method.write_text(edited.replace("MIRRORED =", setting).replace(", Hyperparameters())", ", Chosen())"))
    typed(there, *evaluate, "mirrored")
    by_setting = [typed(there, "tta-pipeline", *verb) for verb in (["leaderboard"], ["results", "list", "mine"])]
    compared = typed(there, "tta-pipeline", "compare", "mirrored", "tent", "--json")

    on_other_shards = " ".join(by_shards.stdout.split())
    assert "shards that were replaced: mirrored (1 of 3 cells), mirrored_few (1 of 3 cells)" in on_other_shards
    assert "again: tta-pipeline run mine --experiment mirrored --experiment mirrored_few" in on_other_shards
    of_code = " ".join(by_code.stdout.split())
    assert "my_method.py of mine were edited since the last run" in of_code
    assert "run mine --experiment mirrored --experiment mirrored_few --dry-run" in of_code
    assert all("mirrored (1 of 3 cells)" in " ".join((each.stdout + each.stderr).split()) for each in by_setting)
    assert 1 == json.loads(compared.stdout)[0]["num_cells"]
    assert "1 of 3 cells" in in_one_line(compared.stderr)


def test_the_table_for_a_paper_has_intervals(project: Path):
    """Each row of the own method has the ends of its interval."""
    done = typed(project, "tta-pipeline", "leaderboard", "--format", "latex")

    rows = [line for line in done.stdout.splitlines() if "mirrored" in line]
    assert len(rows) == 2
    assert not [row for row in rows if " - & - " in row]


def plans_in(folder: Path) -> set[str]:
    """Return the names of the published experiments in *folder*."""
    return {path.stem for path in folder.glob("results/mine/plans/*.json")}


def test_what_is_published_is_everything(project: Path, tmp_path: Path):
    """The results of each experiment of the file, and its plan."""
    done = typed(project, "tta-pipeline", "results", "publish", "mine", str(tmp_path / "out"))

    assert done.returncode == 0, done.stderr
    assert {"tent", "mirrored", "mirrored_few"} == plans_in(tmp_path / "out")


def test_what_publishing_leaves_out_is_named(project: Path, tmp_path: Path):
    """A method that cannot be imported and an experiment without results are left out, and the status is 1."""
    there = Path(shutil.copytree(project, tmp_path / "there"))
    (there / "my_method.py").unlink()
    with (there / "data/benchmarks/mine.yaml").open("a") as file:
        file.write("  norm: {model: mine, method: norm}\n")

    done = typed(there, "tta-pipeline", "results", "publish", "mine", str(tmp_path / "out"))
    asked = typed(there, "tta-pipeline", "results", "publish", "mine", str(tmp_path / "other"), "--experiment", "tent",
                  "--experiment", "norm")  # fmt: skip

    assert done.returncode == 1
    assert {"tent"} == plans_in(tmp_path / "out")
    for name in ("experiments.mirrored:", "experiments.mirrored_few:", "norm has no results"):
        assert f"{name}" in in_one_line(done.stderr)
    assert asked.returncode == 2
    assert "has no results of norm" in in_one_line(asked.stderr)
    assert not (tmp_path / "other").exists()


FOLDER = """
title: images of a folder
images: {kind: folder, root: images}
custom: {names: [dusk, rain]}
corruptions: [dusk, rain]
image_size: 32
shards: {samples_per_shard: 10, seed: 0}
models:
  net: {kind: python, factory: "my_models:SmallResNet", weights: none}
experiments:
  source: {model: net, method: source}
"""


def test_a_missing_source_is_named_before_anything_is_made(tmp_path: Path):
    """In one line with field and path; the model with random weights is no obstacle before the classes are known."""
    files = tmp_path / "data" / "benchmarks"
    files.mkdir(parents=True)
    (files / "lost.yaml").write_text(FOLDER.replace("root: images", "root: nowhere"))
    (tmp_path / "my_models.py").write_text(recipe("SmallResNet"))

    done = typed(tmp_path, "tta-pipeline", "run", "lost")

    assert done.returncode == 1
    assert re.search(r"lost: images\.root is \S*nowhere, which does not exist", done.stderr), done.stderr
    assert not (tmp_path / "data" / "lost" / "shards").exists()
