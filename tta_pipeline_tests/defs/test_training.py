"""Several processes train a source model together, as one would, and each model of a benchmark is an asset."""

import json
from pathlib import Path

import dagster as dg
import pytest
import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.definitions import build_definitions
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.extras.training.source_training import SourceTraining
from tta_pipeline.results.result_files import read_result
from tta_pipeline.results.training_record import TrainingRun
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark, launcher, new_project
from tta_pipeline_tests.launcher import forked_python
from tta_pipeline_tests.result_paths import result_paths

HERE = Machine(device="cpu", decode_threads=1)
BY_CHECKPOINTS = SMALL.replace("epochs: 4", "epochs: 4, checkpoint_s: 0")


@pytest.fixture
def untrained(tmp_path: Path, sweep: Project) -> Project:
    """A copy of the small benchmark with its shards, but without model and results."""
    project = new_project(tmp_path)
    copy_benchmark(sweep, project, without=("source", "source_models", "training", "results"))
    project.add_benchmark("small", SMALL)
    return project


def launched(command: str) -> str:
    """Return the run configuration that has the training done by *command*."""
    launch = {"small__source_model": {"config": {"launch": command}}}
    return json.dumps({"ops": launch, "resources": {"compute": {"config": {"device": "cpu"}}}})


def training(project: Project) -> SourceTraining:
    """Return the training of the small benchmark's model in *project*."""
    benchmark = Benchmark.model_validate({**yaml.safe_load(BY_CHECKPOINTS), "name": "small"})
    return SourceTraining(benchmark=benchmark, model="cnn", locations=project.locations)


def recorded(project: Project) -> TrainingRun:
    """Return the only result of a training in *project*."""
    (path,) = result_paths(project.locations.root, "small/trainings")
    return read_result(path).result.training


@pytest.mark.slow
def test_two_processes_go_on_with_the_training_of_one(untrained: Project, sweep: Project):
    """They see every sample once an epoch, and learn as much as one process with batches of the same size."""

    def interrupted(line: str) -> None:
        if line.startswith("epoch 2"):
            raise KeyboardInterrupt

    own = training(untrained)
    with pytest.raises(KeyboardInterrupt):
        own.train(machine=HERE, say=interrupted)  # its last checkpoint is that of the last batch of epoch 2
    python = forked_python(launcher().address)
    by_two = launched(f"{python} -m torch.distributed.run --nproc-per-node 2 --no-python {python}")
    finished = untrained.materialize("small/source_model", "--config-json", by_two)
    assert finished.returncode == 0, finished.stderr[-3000:]

    alone, together = recorded(sweep), recorded(untrained)
    assert (1, 0, 2, 1) == (alone.num_ranks, alone.num_resumed, together.num_ranks, together.num_resumed)
    assert together.fingerprint == alone.fingerprint
    assert {each.num_samples for each in together.epochs} == {alone.num_samples}
    for number in (0, 1):
        assert together.epochs[number].train_loss == pytest.approx(alone.epochs[number].train_loss, rel=1e-4)
    assert together.epochs[3].train_loss == pytest.approx(alone.epochs[3].train_loss, rel=0.25)
    assert together.validation_error == pytest.approx(alone.validation_error, abs=0.08)
    assert together.wall_s > sum(each.wall_s for each in together.epochs)
    assert 1 == finished.stderr.count("epoch 4 of 4: loss")
    assert "unexpected message" not in finished.stderr
    assert not list(own.folder.glob("*.checkpoint"))


def test_processes_that_fail_fail_the_run(untrained: Project):
    """What stops them is on its error output; nothing is trained."""
    finished = untrained.materialize("small/source_model", "--config-json", launched("ls --no-such-option"))

    assert 0 != finished.returncode
    assert "unrecognized option" in finished.stderr
    assert not training(untrained).path.exists()


def test_launched_processes_train_on_the_shards_of_the_store(untrained: Project, tmp_path: Path):
    """The own data root has none, and gets the weights."""
    own = new_project(tmp_path / "own")
    own.add_benchmark("small", SMALL.replace("epochs: 4", "epochs: 1"))
    select = ("--select", "small/source_model", "--config-json", launched(str(forked_python(launcher().address))))

    finished = launcher().run(
        ["dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", *select],
        {**own.environment, "TTA_SHARDS_ROOT": str(untrained.locations.root)}, timeout_s=600,
    )  # fmt: skip

    assert 0 == finished.returncode, finished.stderr[-3000:]
    assert (own.locations.root / "small/source_models/cnn.safetensors").exists()


def test_each_of_two_models_is_an_asset_and_an_evaluation_waits_for_its_own(project: Project):
    """The clean images, which validate both, come before both."""
    two = SMALL.replace("experiments:", "  wide: {kind: trained, epochs: 1, width: 16}\nexperiments:")
    project.add_benchmark("pair", two.replace("norm: {model: cnn", "norm: {model: wide"))
    graph = build_definitions(project.locations).resolve_asset_graph()

    def parents(key: str) -> set[str]:
        return {parent.to_user_string() for parent in graph.get(dg.AssetKey(["pair", *key.split("/")])).parent_keys}

    assert "pair/source_model" not in {key.to_user_string() for key in graph.get_all_asset_keys()}
    for experiment, model in (("source", "cnn"), ("norm", "wide")):
        for evaluation in (f"evaluation/{experiment}", f"clean/evaluation/{experiment}"):
            models = {key for key in parents(evaluation) if "source_model" in key}
            assert models == {f"pair/source_model/{model}"}
        assert parents(f"source_model/{model}") == {"pair/train/shard_manifest", "pair/clean/shard_manifest"}
