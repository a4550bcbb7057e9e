"""When a cell is finished, and what a person is told."""

import hashlib
import importlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torchvision.models import get_model

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import TRAIN, WHOLE, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError, RecordError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.run_experiment import Board
from tta_pipeline.evaluation.sample_predictions import SamplePredictions, encode_predictions, prediction_problems
from tta_pipeline.results.plans import read_plan
from tta_pipeline.results.result_files import predictions_path, read_result, store_result, utc_now, void_result
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import SMALL, Project
from tta_pipeline_tests.evaluation.conftest import copy_small
from tta_pipeline_tests.evaluation.small import (
    CONTRAST,
    counted,
    evaluated,
    inputs_of,
    killed_after,
    results_of,
    run_at,
    unfinished,
)
from tta_pipeline_tests.result_paths import result_paths

KEY = Cell(corruption=CONTRAST, severity=5)
METHOD = """
from my_scale import SCALE
from tta_pipeline.methods.entry import Hyperparameters, MethodEntry
from tta_pipeline.methods.batch_norm.source import Source

MINE = MethodEntry(
    implementation="my_method:Mine", summary="Mine.", presets=dict.fromkeys(("imagenet", "cifar"), Hyperparameters())
)


class Mine(Source):
    def _predict(self, images):
        '''Return logits.'''
        return SCALE * super()._predict(images)
"""


def short(data: Locations, **changes: object) -> ExperimentResults:
    """Return an experiment over one batch of each cell."""
    return results_of(data, **{"subset": {"first": 32}, **changes})


def told(own: ExperimentResults) -> tuple[bool, list[str]]:
    """Return whether the cell is finished, and what a run says before it begins."""
    lines = list[str]()
    return not unfinished(own, KEY, tell=lines.append), lines


@pytest.fixture
def checkpoint(tmp_path: Path) -> dict:
    """A model of a user's own, in a file."""
    torch.manual_seed(0)
    torch.save(get_model("squeezenet1_1", num_classes=10).state_dict(), tmp_path / "mine.pt")
    sha256 = hashlib.sha256((tmp_path / "mine.pt").read_bytes()).hexdigest()
    normalisation = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    return {"kind": "checkpoint", "architecture": "squeezenet1_1", "path": str(tmp_path / "mine.pt"), "sha256": sha256,
            **normalisation}  # fmt: skip


def with_model(data: Locations, model: dict) -> ExperimentResults:
    """Return the source experiment with *model*."""
    content = {**yaml.safe_load(SMALL), "name": "small", "models": {"mine": model}}
    content["experiments"] = {"own": {"model": "mine", "method": "source", "subset": {"first": 20}}}
    return ExperimentResults(benchmark=Benchmark.model_validate(content), experiment_name="own", locations=data)


def test_another_normalisation_is_evaluated_anew(data: Locations, checkpoint: dict):
    """Whoever corrects the best known mistake of the field gets the right number, and is told why."""
    (before,) = evaluated(with_model(data, checkpoint), KEY)
    for field, was in (("mean", "[0.485"), ("std", "[0.229")):
        own = with_model(data, {**checkpoint, field: [0.1, 0.2, 0.3]})

        is_finished, lines = told(own)
        (after,) = evaluated(own, KEY)

        assert not is_finished
        assert any(f"model.{field} was {was}" in line for line in lines)
        assert before["nll"] != after["nll"]


def test_another_architecture_or_class_file_is_another_model(data: Locations, checkpoint: dict, tmp_path: Path):
    """Which outputs of a model are taken decides predictions, though its weights are the same."""
    names = [str(digit) for digit in range(10)]
    (tmp_path / "classes.json").write_text(json.dumps(names))
    (tmp_path / "others.json").write_text(json.dumps(names[::-1]))
    evaluated(with_model(data, {**checkpoint, "classes": str(tmp_path / "classes.json")}), KEY)

    is_finished, lines = told(with_model(data, {**checkpoint, "classes": str(tmp_path / "others.json")}))

    assert not is_finished
    assert any("model.outputs was" in line for line in lines)


@pytest.mark.parametrize(
    ("flag", "value"), [("deterministic", True), ("benchmark", True)], ids=["deterministic", "benchmark"]
)
def test_a_flag_of_the_arithmetic_decides(data: Locations, monkeypatch: pytest.MonkeyPatch, flag: str, value: bool):  # noqa: FBT001
    """Switches of torch that change how it computes are part of what decides."""
    evaluated(short(data), KEY)

    monkeypatch.setattr(torch.backends.cudnn, flag, value)

    is_finished, lines = told(short(data))
    assert not is_finished
    assert any(f"arithmetic.cudnn_{flag} was false, is true" in line for line in lines)


@pytest.fixture
def own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A method of a user's own, of two files."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "my_method.py").write_text(METHOD)
    (folder / "my_scale.py").write_text("SCALE = 1.0\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield folder
    forget()


def forget() -> None:
    """Let the method be imported anew, as a new process does."""
    for name in ("my_method", "my_scale"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("name", "edit", "is_finished"),
    [
        ("my_method.py", ("SCALE * super", "3 * SCALE * super"), False),
        ("my_scale.py", ("1.0", "2.0"), False),
        ("my_method.py", ("Return logits.", "Return the logits."), True),
        ("my_scale.py", ("SCALE = 1.0", "SCALE = 1.0  # as it is"), True),
    ],
)
def test_an_edited_method_is_evaluated_anew(
    data: Locations, own_method: Path, name: str, edit: tuple[str, str], is_finished: bool  # noqa: FBT001
):  # fmt: skip
    """Its code, and what it imports from beside it, decides; how it is explained does not."""
    (row,) = evaluated(short(data, method="my_method:MINE"), KEY)
    path = own_method / name
    path.write_text(path.read_text().replace(*edit))
    forget()

    own = short(data, method="my_method:MINE")
    assert is_finished is told(own)[0]
    (again,) = evaluated(own, KEY)
    codes = [json.loads(each["fingerprint_parts"])["code"] for each in (row, again)]
    assert is_finished is (codes[0] == codes[1])


def test_a_method_that_is_edited_while_it_runs_is_refused(data: Locations, own_method: Path):
    """The process goes on with what it imported, so its number would be that of other code than lies there."""
    evaluated(short(data, method="my_method:MINE"), KEY)
    (own_method / "my_scale.py").write_text("SCALE = 5.0\n")

    with pytest.raises(EvaluationError, match=r"my_method:MINE.*my_scale\.py"):
        evaluated(short(data, method="my_method:MINE", seed=1), KEY)


def only_result(data: Locations) -> Path:
    """Return the path of the one result."""
    (path,) = result_paths(data.root)
    return path


def test_a_result_of_an_earlier_version_counts_as_unfinished_and_is_named(data: Locations):
    """One line says so; the cell is evaluated again, and the old file stays."""
    own = short(data)
    evaluated(own, KEY)
    path = only_result(data)
    content = json.loads(path.read_bytes()) | {"format": 4}
    old = json.dumps(content).encode()
    name = f"{path.name[:16]}-{hashlib.sha256(old).hexdigest()[:8]}.json"
    path.rename(path.with_name(name)).write_bytes(old)

    is_finished, lines = told(own)

    assert not is_finished
    (line,) = lines
    assert f"{name} was made by an earlier version of tta_pipeline" in line
    evaluated(own, KEY)
    assert 2 == len(result_paths(data.root))


def test_a_new_seed_is_evaluated_for_the_first_time(data: Locations):
    """Nothing is said of the result of another seed."""
    evaluated(short(data, seeds=(0,)), KEY)

    assert (False, []) == told(short(data, seeds=(1,)))


def test_a_reason_to_evaluate_again_is_said_once(data: Locations):
    """Not for each stream that has it."""
    evaluated(short(data), KEY)
    lines = list[str]()
    board = Board(inputs=inputs_of(short(data, batch_size=16)), tell=lines.append)

    assert all([board.find_unfinished(KEY), board.find_unfinished(KEY)])
    assert 1 == len(lines)


def test_bit_rot_in_a_finished_result_makes_it_unfinished_in_one_line(data: Locations):
    """It is read and hashed before it is called finished; the cell is evaluated again, and the damaged file stays."""
    own = short(data)
    (before,) = evaluated(own, KEY)
    path = only_result(data)
    path.write_bytes(path.read_bytes().replace(b'"num_correct":', b'"num_correct": '))

    is_finished, lines = told(own)

    assert not is_finished
    (line,) = lines
    assert str(path) in line
    assert "is damaged" in line
    (after,) = evaluated(own, KEY)
    assert before["predictions_sha256"] == after["predictions_sha256"]
    assert 2 == len(result_paths(data.root))


def test_a_renamed_experiment_finds_its_results(data: Locations):
    """Under its new name, with the predictions of each sample; nothing is evaluated, and nothing is copied."""
    (before,) = evaluated(short(data), KEY)
    path = only_result(data)
    content = {**yaml.safe_load(SMALL), "name": "small"}
    content["experiments"] = {"renamed": short(data).spec.model_dump(mode="json")}
    renamed = ExperimentResults(benchmark=Benchmark.model_validate(content), experiment_name="renamed", locations=data)

    assert (True, []) == told(renamed)
    (after,) = run_at(renamed, KEY)
    (cell,) = replace(renamed).counted_cells(KEY)

    assert ("renamed", "own") == (after.labels.experiment, before["experiment"])
    assert before["predictions_sha256"] == after.predicted.predictions_sha256
    assert (after, path) == (cell.row, only_result(data))
    assert not list(prediction_problems(cell, ShardSet.open(renamed.folder(KEY))))
    assert read_plan(data, "small", "own") is None  # the file has no such experiment


def test_a_result_whose_predictions_are_lost_makes_way_once_it_is_void(data: Locations):
    """Another card computed others for the same cell: which of them counts a person says, and the error says how."""
    own = short(data)
    run_at(own, KEY)
    first, (cell,) = only_result(data), replace(own).counted_cells(KEY)
    kept, stored = SamplePredictions.of(cell), read_result(only_result(data))
    others = encode_predictions({KEY.key: replace(kept, confidences=kept.confidences * np.float32(0.5))})
    row = cell.row.with_samples(hashlib.sha256(others).hexdigest())
    result = replace(stored.result, finished_at=utc_now(), evaluations=(row,))
    second = store_result(own.results_folder, result).path
    predictions_path(second.parent, row).write_bytes(others)
    cell.predictions_path.unlink()

    assert not unfinished(own, KEY)
    with pytest.raises(RecordError, match=rf"results void {first.stem}"):
        SamplePredictions.of(replace(own).counted_cells(KEY)[0])
    void_result(first, "its predictions are lost")
    (counting,) = replace(own).counted_cells(KEY)

    assert (second, 0.5 * kept.confidences[0]) == (counting.path, SamplePredictions.of(counting).confidences[0])


def test_another_experiment_at_the_same_cell_is_not_taken_for_an_earlier_result(data: Locations):
    """A first evaluation is not called another one; `why` still shows what is nearest."""
    content = {**yaml.safe_load(SMALL), "name": "small"}
    spec = short(data).spec.model_dump(mode="json")
    content["experiments"] = {"own": spec, "norm": {**spec, "method": "norm"}}
    norm = ExperimentResults(benchmark=Benchmark.model_validate(content), experiment_name="norm", locations=data)
    evaluated(short(data), KEY)

    assert (False, []) == told(norm)


def test_two_experiments_that_are_the_same_share_a_result(data: Locations):
    """The second is finished by what the first evaluated, and each is called by its own name."""
    content = {**yaml.safe_load(SMALL), "name": "small"}
    spec = short(data).spec.model_dump(mode="json")
    content["experiments"] = {"own": spec, "twin": spec}
    own, twin = (
        ExperimentResults(benchmark=Benchmark.model_validate(content), experiment_name=name, locations=data)
        for name in ("own", "twin")
    )
    run_at(own, KEY)

    assert told(twin)[0]
    run_at(twin, KEY)
    assert ["own", "twin"] == [counted(each, KEY)[0].labels.experiment for each in (own, twin)]
    assert only_result(data) == counted_path(own) == counted_path(twin)


def counted_path(own: ExperimentResults) -> Path:
    """Return the path of the result of *own* that counts."""
    (cell,) = replace(own).counted_cells(KEY)
    return cell.path


def test_a_result_that_was_moved_to_another_cell_is_foreign(data: Locations):
    """Folders of two cells exchanged: neither is believed."""
    own, other = short(data), Cell(corruption=CONTRAST, severity=3)
    evaluated(own, KEY)
    evaluated(own, other)
    folder = data.results("small")
    (folder / f"{CONTRAST}-5").rename(folder / "aside")
    (folder / f"{CONTRAST}-3").rename(folder / f"{CONTRAST}-5")
    (folder / "aside").rename(folder / f"{CONTRAST}-3")

    assert not told(own)[0]
    assert unfinished(own, other)
    for path in result_paths(data.root):
        with pytest.raises(RecordError, match="is in the wrong folder"):
            read_result(path)
    with pytest.raises(RecordError, match=r"contrast\|5 .*\bown\b"):
        counted(own, KEY)


def test_other_settings_of_the_source_model_need_another_training(data: Locations, sweep: Project):
    """Weights that the benchmark file no longer describes are not evaluated."""
    train = sweep.locations.shards("small", TRAIN)
    shutil.copytree(train, data.shards("small", TRAIN), dirs_exist_ok=True)
    content = {**yaml.safe_load(SMALL), "name": "small"}
    content["models"]["cnn"]["epochs"] += 1
    own = ExperimentResults(benchmark=Benchmark.model_validate(content), experiment_name="tent", locations=data)

    with pytest.raises(EvaluationError, match=r'cnn\.safetensors .*"epochs":5\b'):
        told(own)


@pytest.fixture(scope="module")
def broken_off(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> tuple[Locations, list[str]]:
    """A data root with the states of a stream that was broken off, and what a whole stream predicts."""
    data = copy_small(sweep.locations.root, tmp_path_factory.mktemp("broken_off"))
    own = results_of(data, **GRADUAL)
    whole = evaluated(own, WHOLE)
    shutil.rmtree(data.results("small"))
    with killed_after(4):
        run_at(own, WHOLE)
    return data, [row["predictions_sha256"] for row in whole]


GRADUAL = {"protocol": "gradual", "hyperparameters": {"lr": 0.1}, "subset": {"first": 64}}


@pytest.mark.parametrize("damage", ["flip", "exchange"])
def test_a_stream_goes_on_from_its_last_good_state(
    broken_off: tuple[Locations, list[str]], tmp_path: Path, damage: str
):
    """A damaged state is named, the one before serves, and no prediction differs."""
    data = copy_small(broken_off[0].root, tmp_path, with_results=True)
    own = results_of(data, **GRADUAL)
    states = sorted(data.states("small").rglob("*.state"), key=lambda path: path.stat().st_mtime_ns)
    assert 2 == len(states)
    older, newest = states
    if damage == "flip":
        content = bytearray(newest.read_bytes())
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
    else:
        newest.write_bytes(older.read_bytes())
    lines = list[str]()

    run_at(own, WHOLE, tell=lines.append)

    assert broken_off[1] == [row.predicted.predictions_sha256 for row in counted(own, WHOLE)]
    assert any("continues at position 3 of 6" in line for line in lines)
    assert any(str(newest) in line for line in lines)
