"""Whatever is damaged, exchanged, edited or lost, no number becomes another without an error."""

import importlib
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.open_images import load_class_map
from tta_pipeline.domain.cells import CLEAN, WHOLE, PartitionKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import PipelineError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import run_experiment
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.result_files import read_result
from tta_pipeline.shards import build_manifest
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.conftest import SMALL, SMALL_CELLS, Project
from tta_pipeline_tests.evaluation.small import killed_after
from tta_pipeline_tests.faults.damages import KINDS, Damage, damaged
from tta_pipeline_tests.result_paths import result_paths

METHOD = """
from tta_pipeline.methods.entry import Hyperparameters, MethodEntry
from tta_pipeline.methods.batch_norm.norm import Norm


class Mine(Norm):
    def _predict(self, images):
        return SHARPNESS * super()._predict(images)


SHARPNESS = 2.0
MINE = MethodEntry(
    implementation="damaged_method:Mine",
    summary="Sharper.",
    presets=dict.fromkeys(("imagenet", "cifar"), Hyperparameters()),
)
"""
EXPERIMENTS = """
  mine: {model: cnn, method: 'damaged_method:MINE', batch_size: 50}
  rising:
    {model: cnn, method: tent, preset: cifar, batch_size: 50, protocol: gradual, subset: {first: 50},
     hyperparameters: {lr: 0.05}}
"""
BENCHMARK = SMALL.partition("experiments:")[0] + f"experiments:{EXPERIMENTS}"
NUMBERS = "experiment, stream, position, corruption, severity, num_samples, error, ece, nll, predictions_sha256"
LIMIT_S = 90
NUM_DAMAGES = 6
"""To each world: looking at it takes longer than damaging it."""
NUM_KINDS = 2
"""Kinds of damage to a world, where there is one world of each only."""
Numbers = dict[tuple[object, ...], tuple[object, ...]]


@dataclass
class Outcome:
    """What a person saw who ran everything again."""

    numbers: Numbers = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    wall_s: float = 0.0


@dataclass(frozen=True)
class World:
    """A data root, and beside it the method that its benchmark names."""

    root: Path

    @property
    def locations(self) -> Locations:
        """The data root."""
        return Locations(root=self.root / "data")

    def machine(self) -> Machine:
        """Where decoded cells are kept too."""
        folder = str(self.locations.root / "decoded")
        return Machine(device="cpu", decode_threads=1, cache_dir=folder, cache_limit_bytes=2**30)

    def write(self, name: str, text: str) -> None:
        """Write a file of a user's."""
        path = self.root / "data" / "benchmarks" / "small.yaml" if name == "small.yaml" else self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@contextmanager
def imported_from(folder: Path) -> Iterator[None]:
    """Find modules in *folder*, and import them anew."""
    sys.modules.pop("damaged_method", None)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = written
        sys.path.remove(str(folder))
        sys.modules.pop("damaged_method", None)


def run(world: World) -> Outcome:
    """Do what the assets do over the whole benchmark, each after an error of another too, and ask the database."""
    outcome, started = Outcome(), time.monotonic()
    locations = world.locations

    @contextmanager
    def step(what: str) -> Iterator[None]:
        signal.alarm(LIMIT_S)
        try:
            yield
        except PipelineError as error:
            outcome.errors.append(f"{what}: {error}")
        except Exception as error:  # noqa: BLE001 - counted
            outcome.tracebacks.append(f"{what}: {error!r}")
        finally:
            signal.alarm(0)

    with imported_from(world.root), step("benchmark file"):
        benchmark = load_benchmark(locations.benchmark_files / "small.yaml")
        for cell in (*SMALL_CELLS, CLEAN):
            with step(f"manifest of {cell.key}"):
                class_map = load_class_map(benchmark, locations)
                folder = locations.shards("small", cell)
                publish_shard_set(folder, class_map, quiet_reporter("", 0))
        for experiment in benchmark.experiments:
            own = ExperimentResults(benchmark=benchmark, experiment_name=experiment, locations=locations)
            for key in own.keys:
                with step(f"{experiment} {key.key}"):
                    evaluate(world, own, key)
        with step("publication"):
            outcome.errors += publish_metrics(locations).set_aside
        with step("question"), open_metrics(locations.metrics) as connection:
            rows = connection.execute(f"SELECT {NUMBERS} FROM evaluations WHERE counts").fetchall()
            outcome.numbers = {row[:5]: row[5:] for row in rows}
    outcome.wall_s = time.monotonic() - started
    return outcome


def evaluate(world: World, own: ExperimentResults, key: PartitionKey, *, num_segments: int | None = None) -> None:
    """Evaluate the streams at *key*, or so many segments of them only, as if killed behind these."""
    with killed_after(num_segments) if num_segments else nullcontext():
        found = run_experiment(own, [key], machine=world.machine(), run_id="damaged", tell=lambda _: None)
        # Where only the predictions were damaged, the row that counts stays that of the first timing.
        assert [row.predicted.predictions_sha256 for row in replace(own).rows(key)] == [
            row.predicted.predictions_sha256 for row in found[key]
        ]


@pytest.fixture(scope="module", autouse=True)
def _timed() -> Iterator[None]:
    """Turn what hangs into an error that is counted, and wait for no other process."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"still at it after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_manifest, "_ATTEMPT_EVERY_S", 0.0)  # no other process is about to bring a folder back
        yield
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def whole(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The small benchmark with a method of a user's own, and a stream broken off behind four of six segments."""
    world = World(root=tmp_path_factory.mktemp("whole"))
    world.write("small.yaml", BENCHMARK)
    world.write("damaged_method.py", METHOD)
    ignored = shutil.ignore_patterns("results", "report", "predictions", "train", "source")
    shutil.copytree(sweep.locations.root / "small", world.locations.root / "small", ignore=ignored)
    with imported_from(world.root):
        benchmark = load_benchmark(world.locations.benchmark_files / "small.yaml")
        rising = ExperimentResults(benchmark=benchmark, experiment_name="rising", locations=world.locations)
        mine = ExperimentResults(benchmark=benchmark, experiment_name="mine", locations=world.locations)
        for key in mine.keys:
            evaluate(world, mine, key)
        evaluate(world, rising, WHOLE, num_segments=4)
    publish_metrics(world.locations)
    return world


def copy_of(whole: World, folder: Path) -> World:
    """Return another world with the same files, where all was looked at once: caches believe what they saw."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole.root, folder)
    world = World(root=folder)
    for cell in (*SMALL_CELLS, CLEAN):
        ShardSet.open(world.locations.shards("small", cell)).note_verified()
    publish_metrics(world.locations)
    return world


@pytest.fixture(scope="module")
def expected(whole: World, tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    """The numbers where nothing is damaged, the stream gone on to its end."""
    outcome = run(copy_of(whole, tmp_path_factory.mktemp("undamaged") / "world"))

    assert not outcome.errors
    assert not outcome.tracebacks
    assert 5 + 6 == len(outcome.numbers)
    return outcome.numbers


def soak(
    whole: World, expected: Numbers, folder: Path, *, seed: int, num_worlds: int, num_kinds: int = 1
) -> tuple[list[str], Counter[str]]:
    """Damage so many worlds in each way, each six times; return what went wrong, and how often there was an error.

    With more *num_kinds* than one, a world is damaged in so many ways that follow each other in the list.
    """
    rng, faults, told = random.Random(seed), list[str](), Counter[str]()
    for place in range(0, len(KINDS), num_kinds):
        kinds = [*KINDS][place : place + num_kinds]
        for number in range(num_worlds):
            world = copy_of(whole, folder / "world")
            # What is finished, or kept decoded, is not read: in every other world the cells are yet to be evaluated.
            if (place // num_kinds + number) % 2 == 0:
                forget(world, "mine")
                if not any("decoded" in kind for kind in kinds):
                    shutil.rmtree(world.locations.root / "decoded")
            damages = [damaged(world.locations, kind, rng) for kind in kinds for _ in range(NUM_DAMAGES // len(kinds))]
            outcome = run(world)
            told.update(kinds if outcome.errors else ())
            faults += judged(damages, outcome, expected)
    return faults, told


def forget(world: World, experiment: str) -> None:
    """Remove the results of *experiment*."""
    for path in result_paths(world.locations.root):
        if read_result(path).result.evaluations[0].labels.experiment == experiment:
            path.unlink()


def judged(damages: list[Damage], outcome: Outcome, expected: Numbers) -> list[str]:
    """Return what a person would have been led into: a wrong number, one that is gone in silence, a traceback, a hang.

    A number that is there must be right, even beside errors: of six damages one may be told and another not.
    """
    found = [f"{damages}: {traceback}" for traceback in outcome.tracebacks]
    found += [f"{damages}: {key} is {row}" for key, row in outcome.numbers.items() if expected.get(key) != row]
    if not outcome.errors and outcome.numbers.keys() != expected.keys():
        found.append(f"{damages}: without an error lacks {sorted(map(str, expected.keys() - outcome.numbers.keys()))}")
    return found


def test_no_damage_becomes_a_number(whole: World, expected: Numbers, tmp_path: Path):
    """Forty-two random damages, three of each kind or more: no other number without an error, no hang."""
    faults, told = soak(whole, expected, tmp_path, seed=1, num_worlds=1, num_kinds=NUM_KINDS)

    assert not faults, "\n".join(faults)
    assert len(told) > len(KINDS) / 2, told  # which ones are met by what is read depends on the sizes of files


@pytest.mark.slow
def test_no_damage_becomes_a_number_in_a_long_soak(whole: World, expected: Numbers, tmp_path: Path):
    """The same with a thousand."""
    faults, told = soak(whole, expected, tmp_path, seed=int(time.time()), num_worlds=13)

    sys.stderr.write(f"worlds of 13 in which there was an error: {dict(told)}\n")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "change", ["sharpness", *(pytest.param(each, marks=pytest.mark.slow) for each in ("lr", "batch_size"))]
)
def test_what_a_person_changes_changes_the_numbers(whole: World, expected: Numbers, tmp_path: Path, change: str):
    """An edited method or setting gives the numbers that it gives where nothing was evaluated before."""
    edits = {
        "sharpness": ("damaged_method.py", METHOD, METHOD.replace("SHARPNESS = 2.0", "SHARPNESS = 0.5")),
        "lr": ("small.yaml", BENCHMARK, BENCHMARK.replace("lr: 0.05", "lr: 0.2")),
        "batch_size": ("small.yaml", BENCHMARK, BENCHMARK.replace("batch_size: 50", "batch_size: 25")),
    }
    name, before, after = edits[change]
    assert before != after
    world, anew = copy_of(whole, tmp_path / "world"), copy_of(whole, tmp_path / "anew")
    shutil.rmtree(anew.locations.results("small"))
    for each in (world, anew):
        each.write(name, after)

    outcome, from_nothing = run(world), run(anew)

    assert not outcome.errors + outcome.tracebacks
    assert from_nothing.numbers == outcome.numbers != expected
