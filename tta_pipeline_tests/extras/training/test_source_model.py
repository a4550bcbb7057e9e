"""A source model learns from the images it is given, and the same training gives the same weights."""

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import CLEAN, TRAIN
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.extras.training.source_training import SourceTraining
from tta_pipeline.models.trained_models import load_trained_model
from tta_pipeline.results.result_files import read_result
from tta_pipeline.results.training_record import TrainingRun
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import benchmark_conversion, convert
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.conftest import SMALL, Project, run_python
from tta_pipeline_tests.result_paths import result_paths
from tta_pipeline_tests.shards.cell import QUIET, flip

HERE = Machine(device="cpu", decode_threads=1)
QUICK = {"kind": "trained", "width": 4, "epochs": 2, "flip": False}
KILLED = {"epochs": 4, "batch_size": 32, "checkpoint_s": 0.02, "ema": 0.9, "mixup": 0.2}


@pytest.fixture(scope="module")
def few(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> Locations:
    """The small benchmark with its clean images, and shards of a seventh of its training images."""
    found = Locations(root=tmp_path_factory.mktemp("few"))
    for place in (lambda data: data.shards("small", CLEAN), lambda data: data.generated_source("small")):
        place(found).parent.mkdir(parents=True, exist_ok=True)
        place(found).symlink_to(place(sweep.locations))
    conversion = benchmark_conversion(training(found).benchmark, found, quiet_reporter)
    with conversion.session([TRAIN]) as session:
        task = session.task(TRAIN)
        listing = task.listing.in_memory()
        convert(replace(task, listing=replace(listing, images=listing.images[::7])), quiet_reporter)
    publish_shard_set(found.shards("small", TRAIN), conversion.class_map, QUIET)
    return found


@pytest.fixture
def data(few: Locations, tmp_path: Path) -> Locations:
    """A data root of one's own with a copy of them."""
    return Locations(root=shutil.copytree(few.root, tmp_path / "data", symlinks=True))


@pytest.fixture(scope="module")
def learnt(few: Locations, tmp_path_factory: pytest.TempPathFactory) -> Locations:
    """Another copy of them, where the quick model has learnt."""
    found = Locations(root=shutil.copytree(few.root, tmp_path_factory.mktemp("learnt") / "data", symlinks=True))
    trained(found)
    return found


@pytest.fixture
def finished(learnt: Locations, tmp_path: Path) -> Locations:
    """A data root of one's own with a copy of the finished training."""
    return Locations(root=shutil.copytree(learnt.root, tmp_path / "finished", symlinks=True))


def training(data: Locations, **settings: Any) -> SourceTraining:
    """Return the training of a model with *settings* in place of those of the small benchmark."""
    content = {**yaml.safe_load(SMALL), "name": "small"}
    content["models"]["cnn"] = QUICK | settings
    return SourceTraining(benchmark=Benchmark.model_validate(content), model="cnn", locations=data)


def trained(data: Locations, said: list[str] | None = None, **settings: Any) -> TrainingRun:
    """Train as `training` says and return its result."""
    own = training(data, **settings)
    own.train(machine=HERE, say=[].append if said is None else said.append)
    return own.require_finished()


def test_the_small_benchmark_is_learnt(sweep: Project):
    """After a few epochs hardly a training image is taken for another digit; the asset has recorded how."""
    stated = json.loads((sweep.locations.root / "small" / "source_models/cnn.json").read_text())
    (path,) = result_paths(sweep.locations.root, "small/trainings")
    run = read_result(path).result.training

    assert run == TrainingRun.from_facts(stated["run"])
    assert run.num_samples > 1197
    assert run.train_error < 0.15
    assert run.validation_error < 0.15
    assert (4, "clean", 0) == (run.num_epochs_done, run.validated_on, run.num_resumed)
    assert all(epoch.data_wait_s < epoch.wall_s for epoch in run.epochs)


def test_the_same_training_gives_the_same_weights_and_is_not_repeated(finished: Locations, data: Locations):
    """Bit for bit, for any number of decoding threads; and the second call only looks."""
    first = training(finished).require_finished()
    changed_at = training(finished).path.stat().st_mtime_ns
    assert trained(finished) == first
    assert training(finished).path.stat().st_mtime_ns == changed_at

    other = trained(data, seed=1)
    again = training(data)
    again.train(machine=Machine(device="cpu", decode_threads=3), say=lambda _: None)
    assert again.require_finished().weights_sha256 == first.weights_sha256 != other.weights_sha256


PROGRAM = """
import os, signal, sys
from pathlib import Path
from threading import Timer
from tta_pipeline_tests.extras.training.test_source_model import KILLED, training, HERE
from tta_pipeline.domain.locations import Locations
def die(line):
    if line.startswith("epoch 1 of"):
        Timer(0.03, os.kill, (os.getpid(), signal.SIGKILL)).start()
for root, say in zip(sys.argv[1:], (print, die)):
    training(Locations(root=Path(root)), **KILLED).train(machine=HERE, say=say)
"""
"""Trains in one data root, and in another until it is killed in the second epoch."""


def test_a_training_that_was_killed_ends_with_the_same_weights(few: Locations, data: Locations, tmp_path: Path):
    """With mixup and a moving average; the next process goes on from the last checkpoint."""
    other = Locations(root=shutil.copytree(few.root, tmp_path / "other", symlinks=True))
    alone, own = training(other, **KILLED), training(data, **KILLED)

    killed = run_python(PROGRAM, str(other.root), str(data.root))
    assert -signal.SIGKILL == killed.returncode, killed.stderr[-2000:]
    assert not own.path.exists()
    done = run_python(PROGRAM, str(data.root))
    assert 0 == done.returncode, done.stderr[-2000:]

    whole, resumed = alone.require_finished(), own.require_finished()
    assert whole.weights_sha256 == resumed.weights_sha256
    weights, others = load_file(alone.path), load_file(own.path)
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert [epoch.train_loss for epoch in whole.epochs] == [epoch.train_loss for epoch in resumed.epochs]
    assert 1 == resumed.num_resumed
    assert not list(own.folder.glob("*.checkpoint"))


def test_a_training_removes_the_checkpoint_that_a_killed_process_had_begun_to_write(data: Locations):
    """Nothing else of the folder: files of other names may be the user's."""
    folder = training(data).folder
    folder.mkdir(parents=True, exist_ok=True)
    begun, other = folder / f".unpublished-{'0' * 32}-{'1' * 64}-20.checkpoint", folder / "my.checkpoint"
    for path in (begun, other):
        path.write_bytes(b"half")

    trained(data)

    assert not begun.exists()
    assert other.exists()


def interrupt(data: Locations, **settings: Any) -> SourceTraining:
    """Break a training off after two epochs, with a checkpoint of every batch."""

    def ended_early(line: str) -> None:
        if line.startswith("epoch 2"):
            raise KeyboardInterrupt

    own = training(data, checkpoint_s=0, **settings)
    with pytest.raises(KeyboardInterrupt):
        own.train(machine=HERE, say=ended_early)
    return own


def test_an_epoch_that_was_broken_off_at_its_end_has_the_learning_rate_of_its_steps(data: Locations):
    """Not that of the next step, though nothing is learnt after the resumption."""
    whole = trained(data, epochs=3).epochs
    training(data, epochs=3).path.unlink()
    interrupt(data, epochs=3)
    resumed = trained(data, epochs=3).epochs

    assert 3 == len({epoch.lr for epoch in whole})
    assert [epoch.lr for epoch in whole] == [epoch.lr for epoch in resumed]


def test_a_damaged_checkpoint_is_named_and_the_one_before_serves(data: Locations):
    """The weights are those of an uninterrupted training."""
    own, said = interrupt(data, epochs=3), list[str]()
    newest = own.folder / "newest.checkpoint"
    flip(newest, newest.stat().st_size // 2)

    resumed = trained(data, said, epochs=3)
    assert any(f"{newest} is damaged" in line for line in said)
    assert any("continues after" in line for line in said)
    own.path.unlink()
    assert trained(data, epochs=3).weights_sha256 == resumed.weights_sha256


def test_checkpoints_of_other_settings_are_not_used(data: Locations):
    """Nor do they do any harm."""
    said: list[str] = []
    interrupt(data, epochs=3)

    assert 0 == trained(data, said, epochs=3, seed=1).num_resumed
    assert not any("damaged" in line for line in said)


def test_loose_files_give_the_weights_that_shards_give(data: Locations):
    """Pixels and order are the same, and the record has the number of files that were read."""
    shards, loose = (trained(data, loader=loader) for loader in ("indexed", "imagefolder"))

    assert shards.weights_sha256 == loose.weights_sha256
    assert shards.fingerprint != loose.fingerprint
    assert loose.num_samples == loose.num_inodes > shards.num_inodes


def test_held_out_images_choose_the_best_epoch(data: Locations):
    """They are learnt from in no epoch; last and best weights are both kept."""
    run = trained(data, val_fraction=0.25, select="best", epochs=6, lr=0.1)

    assert 0.75 * training(data).shard_set(TRAIN).manifest.num_samples == pytest.approx(run.num_samples, abs=1)
    assert ("held_out", "best") == (run.validated_on, run.selected)
    assert run.best_epoch < run.num_epochs
    assert run.validation_error == run.best_validation_error == min(each.validation_error for each in run.epochs)
    folder = training(data).folder
    best, last = (load_file(folder / f"{name}.safetensors") for name in ("best", "last"))
    kept = load_file(training(data).path)
    assert all(torch.equal(kept[name], best[name]) for name in kept)
    assert any(not torch.equal(last[name], best[name]) for name in kept)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"select": "best"}, "select is best.*val_fraction"),
        ({"warmup_epochs": 1}, "warmup_epochs is 1.* one_cycle"),
        ({"schedule": "cosine", "warmup_epochs": 2}, "warmup_epochs is 2.* 2 "),
        ({"fine_tune": True}, "fine_tune .*small"),
        ({"network": {"kind": "small"}}, "width .*network"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(data: Locations, settings: dict[str, Any], found: str):
    """When the benchmark file is read."""
    with pytest.raises(ValueError, match=found):
        training(data, **settings)


def test_a_loss_that_is_no_number_ends_the_training(data: Locations):
    """The error says what to change, and no model is published."""
    own = training(data, optimizer="sgd", lr=1e9, schedule="cosine")
    with pytest.raises(EvaluationError, match=r"\bnan\b.*\blr\b"):
        own.train(machine=HERE, say=lambda _: None)
    assert not own.path.exists()


def test_weights_that_were_changed_are_not_loaded(finished: Locations):
    """The error says what to do."""
    path = training(finished).path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(EvaluationError, match=re.escape(str(path))):
        load_trained_model("cnn", path)
    assert training(finished).find_finished() is None


@pytest.mark.parametrize("fact", ["mean", "std", "classes", "run"])
def test_facts_that_were_changed_are_not_believed(finished: Locations, fact: str):
    """Mean and std determine every prediction, and nothing else would notice."""
    weights = training(finished).path
    path = weights.with_suffix(".json")
    content = json.loads(path.read_text())
    value = content[fact]
    if fact == "run":
        value["num_samples"] += 1
    else:
        content[fact] = [value[-1], *value[:-1]] if fact == "classes" else [0.5] * 3
    path.write_text(json.dumps(content))
    with pytest.raises(EvaluationError, match=re.escape(str(weights))):
        load_trained_model("cnn", weights)
