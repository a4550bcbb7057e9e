"""Protocols and subsets as benchmark files name them, and what is refused before anything runs."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.protocol import Protocol, Subset
from tta_pipeline.benchmarks.stream_plans import partition_keys, stream_plans
from tta_pipeline.domain.cells import WHOLE, StreamKey
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline_tests.conftest import SMALL


def benchmark(**experiment: object) -> Benchmark:
    """Return the small benchmark with one experiment."""
    own = {"model": "cnn", "method": "tent", "preset": "cifar", **experiment}
    return Benchmark.model_validate({**yaml.safe_load(SMALL), "name": "small", "experiments": {"own": own}})


@pytest.mark.parametrize(
    "name",
    [
        "reset_each_shift", "episodic", "continual", "gradual", "mixed", "slow", "correlated", "mixed_correlated",
        "gradual_correlated", "reset_each_shift_correlated", "dynamic", "dynamic_correlated",
    ],
)  # fmt: skip
def test_a_name_alone_is_a_protocol(name: str):
    """And it is what tables call it."""
    assert name == Protocol.model_validate(name).name


def keys(own: Benchmark) -> tuple[str, ...]:
    """Return the partition keys of the experiment."""
    return tuple(key.key for key in partition_keys(own, "own"))


def test_streams_are_of_cells_of_severities_or_of_all():
    """The keys are those of Dagster's partitions; the clean images, which have none, come last."""
    cells = ("gaussian_noise|3", "gaussian_noise|5", "contrast|3", "contrast|5")

    assert (*cells, "clean|0") == keys(benchmark())
    assert (*cells[1::2], "clean|0") == keys(benchmark(severities=[5]))
    assert ("3", "5") == keys(benchmark(protocol="continual")) == keys(benchmark(protocol="dynamic"))
    assert ("all",) == keys(benchmark(protocol="gradual"))


def test_clean_images_come_where_they_are_asked_for():
    """After each corruption, or at the end."""
    for clean, expected in (
        ("after_each", ["gaussian_noise|5", "clean|0", "contrast|5", "clean|0"]),
        ("at_end", ["gaussian_noise|5", "contrast|5", "clean|0"]),
    ):
        own = benchmark(protocol={"shift": "continual", "clean": clean})
        (plan,) = stream_plans(own, "own", StreamKey(severity=5))
        assert expected == [cell.key for segment in plan.segments for cell in segment.cells]


def test_severities_rise_and_fall_in_a_gradual_stream():
    """Whatever their order in the file."""
    experiments = {"own": {"model": "cnn", "method": "norm", "protocol": "gradual"}}
    content = {**yaml.safe_load(SMALL), "name": "small", "severities": [5, 2, 3], "experiments": experiments}
    own = Benchmark.model_validate(content)

    (plan,) = stream_plans(own, "own", WHOLE)

    cells = [segment.cells[0] for segment in plan.segments]
    assert [2, 3, 5, 3, 2] * 2 == [cell.severity for cell in cells]
    assert ["gaussian_noise"] * 5 + ["contrast"] * 5 == [cell.corruption for cell in cells]


def test_a_seeded_order_of_corruptions_is_one_of_the_seed():
    """Over twenty seeds both orders of two corruptions come, each the same again."""
    own = benchmark(protocol={"shift": "continual", "corruption_order": "seeded"}, seeds=list(range(20)))
    first = [plan.segments[0].cells[0].corruption for plan in stream_plans(own, "own", StreamKey(severity=5))]

    assert {"gaussian_noise", "contrast"} == set(first)
    assert first == [plan.segments[0].cells[0].corruption for plan in stream_plans(own, "own", StreamKey(severity=5))]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ("protocol: continuous", ["experiments.tent.protocol", "'continuous'", "mixed", "did you mean continual?"]),
        ("protocol: {shift: mixed, order: dirichlet, delta: 0}", ["delta is 0", "0.000001"]),
        ("protocol: {shift: mixed, order: dirichlet}", ["order is dirichlet and delta is None", "0.1"]),
        ("protocol: {shift: mixed, clean: at_end}", ["clean is at_end", "shift is mixed", "expected shift continual:"]),
        ("protocol: {shift: mixed, corruption_order: seeded}", ["corruption_order is seeded", "shift is mixed"]),
        ("protocol: {shift: slow, order: shuffled}", ["order is shuffled", "shift slow"]),
        ("protocol: {sliding_window: 8}", ["batch_size is 32", "sliding_window of 8", "expected batch_size 1"]),
        ("protocol: {stream_speed: 1, adaptation_budget_s: 2}", ["stream_speed and adaptation_budget_s"]),
        ("protocol: {shift: episodic, stream_speed: 1}", ["stream_speed and shift episodic"]),
        ("batch_size: 1, protocol: {shift: episodic, sliding_window: 8}", ["sliding_window 8 and shift episodic"]),
        (
            "batch_size: 1, protocol: {sliding_window: 8, adaptation_budget_s: 2}",
            ["adaptation_budget_s and sliding_window 8"],
        ),
        ("protocol: {predict_after_update: true, stream_speed: 1}", ["predict_after_update and stream_speed"]),
        (
            "batch_size: 1, protocol: {sliding_window: 8, predict_after_update: true}",
            ["predict_after_update and sliding_window 8"],
        ),
        ("protocol: {adapt: {first: 0}}", ["adapt.first", "greater than or equal to 1"]),
        ("protocol: {adapt: {share: 0}}", ["adapt.share", "0.0001"]),
        ("protocol: {adapt: {}}", ["part has no selection", "one of first, every, share"]),
        ("protocol: {adapt: {first: 64, every: 2}}", ["part has first, every;"]),
        ("protocol: {adapt: {first: 48}}", ["adapt.first is 48", "batch_size is 32", "expected a multiple"]),
        ("protocol: {adapt: {every: 2}, stream_speed: 1}", ["stream_speed and adapt cannot be combined"]),
        ("protocol: {adapt: {every: 2}, adaptation_budget_s: 2}", ["adaptation_budget_s and adapt"]),
        ("protocol: {adapt: {every: 2}, shift: episodic}", ["adapt and shift episodic"]),
        ("protocol: {stream_speed: 1.5}", ["stream_speed", "1.5", "less than or equal to 1"]),
        ("severities: [6]", ["severities", "6"]),
        ("severities: [1]", ["severities is [1]", "expected any of [3, 5]"]),
        ("subset: {first: 0}", ["first", "0", "greater than or equal to 1"]),
        (
            "subset: {first: 5, random: 5}",
            ["has first, random;", "one of first, random, imbalance_factor, file"],
        ),
        ("subset: {imbalance_factor: 0.5}", ["imbalance", "0.5", "greater than or equal to 1"]),
        ("protocol: {classes_per_batch: 2}", ["classes_per_batch is 2", "order is stored", "expected order by_class:"]),
        ("protocol: {shift: mixed, visits: 2}", ["visits is 2", "shift is mixed", "expected shift dynamic:"]),
        ("protocol: {shift: dynamic, unknown: {benchmark: a, share: 0.1}}", ["unknown", "shift is dynamic"]),
        ("protocol: {shift: mixed, unknown: {benchmark: mine, share: 0.1}}", ["unknown.benchmark is mine"]),
        ("protocol: {order: from_file}", ["order from_file", "expected subset: {file: FILE}"]),
        ("seeds: [1, 1]", ["seeds is [1, 1]"]),
        ("seeds: {count: 0}", ["seeds", "{'count': 0}", "expected a list of seeds, or {count: 100}"]),
        ("seeds: {count: 2, step: 3}", ["expected a list of seeds, or {count: 100}"]),
        ("seeds: 3", ["seeds: the value is 3; expected a list of seeds, or {count: 100}"]),
        ("seeds: three", ["expected a list of seeds, or {count: 100}"]),
    ],
)
def test_what_cannot_be_is_refused_when_the_file_is_read(tmp_path: Path, changes: str, named: list[str]):
    """With file, field, value and choices."""
    path = tmp_path / "mine.yaml"
    size = "" if "batch_size" in changes else "batch_size: 32, "
    path.write_text(SMALL.replace("preset: cifar, batch_size: 32", f"preset: cifar, {size}{changes}"))

    with pytest.raises(BenchmarkFileError) as caught:
        load_benchmark(path)

    assert all(part in str(caught.value) for part in [str(path), "tent", *named]), str(caught.value)


def test_a_subset_says_what_it_is():
    """Tables have it in words."""
    assert "first 100" == Subset(first=100).name
    assert "random 5000, seed 1" == Subset(random=5000, seed=1).name
    assert "listed in ids.txt" == Subset(file=Path("x/ids.txt")).name
    assert "long tail 100, seed 0" == Subset(imbalance_factor=100).name


def test_an_experiment_can_stand_for_several_protocols():
    """Under its own name where the method starts over at each shift, else with the protocol's behind it."""
    content = yaml.safe_load(SMALL.replace("preset: cifar, ", "preset: cifar, protocols: [reset_each_shift, mixed], "))
    found = Benchmark.model_validate({**content, "name": "small"}).experiments

    assert ["source", "norm", "tent", "tent_mixed"] == list(found)
    assert ("mixed", 32) == (found["tent_mixed"].protocol.name, found["tent_mixed"].batch_size)


def test_a_number_of_seeds_is_the_list_of_them():
    """Written either way it is the same experiment."""
    counted, listed = (Experiment(model="m", method="tent", seeds=seeds) for seeds in ({"count": 3}, (0, 1, 2)))  # type: ignore[arg-type]

    assert counted == listed


def test_a_name_that_stands_twice_is_refused(tmp_path: Path):
    """YAML itself would forget the first."""
    path = tmp_path / "mine.yaml"
    path.write_text(SMALL + "  tent: {model: cnn, method: source}\n")

    with pytest.raises(BenchmarkFileError, match=r"mine\.yaml.*\btent\b.*\bline 14\b"):
        load_benchmark(path)


@pytest.mark.parametrize("method", ["norm", "cotta", "roid", "tda"])
def test_only_an_adapted_network_is_asked_again_after_the_update(method: str):
    """A teacher, a prior or a cache beside the network would be left out."""
    Experiment(model="m", method="tent", protocol="continual_after_update")
    with pytest.raises(ValidationError, match=rf"predict_after_update .*\b{method}\b.*`predicts_by_network=True`"):
        Experiment(model="m", method=method, protocol="continual_after_update")


@pytest.mark.parametrize("method", ["lame", "cotta", "roid", "tda"])
def test_only_what_predicts_without_adapting_adapts_on_a_part(method: str):
    """A teacher, a prior or a cache would be left out of the rest."""
    Experiment(model="m", method="neo", protocol={"adapt": {"every": 2}})  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=rf"adapt .*\b{method}\b.*`predicts_by_network=True`"):
        Experiment(model="m", method=method, protocol={"adapt": {"every": 2}})  # type: ignore[arg-type]
