"""What a method sees under each protocol, and that a stream that was broken off goes on as if it had not been."""

import json
import shutil
import time
from copy import deepcopy
from dataclasses import replace
from typing import Self

import numpy as np
import pytest
import torch

from tta_pipeline.benchmarks.protocol import Protocol
from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver, SourceModel
from tta_pipeline.benchmarks.protocols.setting_drivers import BudgetDriver, RealTimeDriver, TimedDriver, WindowDriver
from tta_pipeline.domain.cells import WHOLE
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import StreamError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.sample_predictions import SamplePredictions, prediction_problems
from tta_pipeline.loading.device import as_floats
from tta_pipeline.loading.joined_sets import JoinedPixels, JoinedSets
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stored_pixels import StoredPixels
from tta_pipeline.loading.stream_order import shuffled_order, stored_order
from tta_pipeline.loading.subset import draw_long_tail
from tta_pipeline.methods import build
from tta_pipeline.methods.entry import Hyperparameters
from tta_pipeline.methods.method import Method
from tta_pipeline.report.pages.cells import chart_data
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.evaluation.small import (
    CONTRAST,
    CONTRAST_5,
    NOISE,
    SEVERITY_5,
    counted,
    evaluated,
    inputs_of,
    results_of,
    run_at,
    unfinished,
)
from tta_pipeline_tests.flat_facts import flat_row
from tta_pipeline_tests.result_paths import result_paths
from tta_pipeline_tests.results.database.made import evaluation_of


def predictions(rows: list[dict]) -> list[str]:
    """Return the hashes of what was predicted."""
    return [row["predictions_sha256"] for row in rows]


def batches(data: Locations, cell: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the batches of a cell in stored order."""
    shard_set = ShardSet.open(data.root / "small" / "shards" / cell)
    stream = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=32, image_size=32)
    return [(as_floats(batch.images).clone(), batch.labels) for batch in stream]


def source_model(network: torch.nn.Module) -> SourceModel:
    """Return *network* as the source model on a device that needs no waiting for."""
    return SourceModel(make=lambda: network, synchronize=lambda: None)


def tent(own: ExperimentResults):
    """Return the method of the experiment, fresh."""
    model = inputs_of(own).model.make().to(memory_format=torch.channels_last)
    return build("tent", model, num_classes=10, preset="cifar", **own.spec.hyperparameters)


def test_a_continual_stream_goes_through_the_corruptions_without_a_reset(data: Locations):
    """The rows are those of a plain loop over both cells with one method."""
    fast = {"hyperparameters": {"lr": 0.1}, "subset": {"first": 64}}
    own = results_of(data, protocol="continual", **fast)
    rows = evaluated(own, SEVERITY_5)
    method = tent(own)
    expected = [
        sum(
            int((method.predict(images).argmax(1) == labels).sum()) for images, labels in batches(data, f"{name}/5")[:2]
        )
        for name in (NOISE, CONTRAST)
    ]

    assert [(0, NOISE, 5), (1, CONTRAST, 5)] == [(row["position"], row["corruption"], row["severity"]) for row in rows]
    assert expected == [row["num_correct"] for row in rows]
    assert [0, 0] == [row["num_resets"] for row in rows]
    alone = evaluated(results_of(data, **fast), CONTRAST_5)
    assert predictions(alone) != predictions(rows)[1:]


def test_an_episodic_stream_starts_over_before_each_batch(data: Locations):
    """Every batch is predicted as if it were the first."""
    own, fed = results_of(data, protocol="episodic", subset={"first": 64}), batches(data, f"{CONTRAST}/5")[:2]
    (row,) = evaluated(own, CONTRAST_5)
    expected = [tent(own).predict(images).argmax(1) for images, _ in fed]

    assert row["num_resets"] == row["num_batches"] == len(expected)
    assert expected[0].tolist()[:10] == list(row["first_samples"]["predictions"])
    assert row["num_correct"] == sum(
        int((found == labels).sum()) for found, (_, labels) in zip(expected, fed, strict=True)
    )


def test_the_result_says_with_which_batches_the_method_reset_itself(data: Locations):
    """Every second of five batches, and the page draws it there; where nothing was reset, nothing is noted."""
    few = {"batch_size": 8, "subset": {"first": 40}}
    reset, kept = (
        evaluated(results_of(data, **few, method=method, hyperparameters=changed), CONTRAST_5)[0]
        for method, changed in (("rdumb", {"reset_every": 2}), ("eata", {}))
    )

    assert (0, 1, 0, 1, 0) == reset["batches"]["num_resets"]
    assert 2 == reset["num_resets"]
    assert None is kept["batches"]["num_resets"]
    assert [16, 32] == chart_data(evaluation_of(reset)).resets


def test_a_gradual_stream_rises_and_falls(data: Locations):
    """Each corruption by severities up and down again, each visit with a row of its own."""
    rows = evaluated(results_of(data, protocol="gradual", hyperparameters={"lr": 0.1}, subset={"first": 64}), WHOLE)

    assert [(c, s) for c in (NOISE, CONTRAST) for s in (3, 5, 3)] == [(r["corruption"], r["severity"]) for r in rows]
    assert list(range(6)) == [row["position"] for row in rows]
    assert 6 == len(set(predictions(rows)))


def test_a_mixed_stream_has_all_cells_at_once(data: Locations):
    """Each sample once, shuffled over the cells; the rows divide what the stream took."""
    rows = evaluated(results_of(data, protocol="mixed", subset={"first": 64}), SEVERITY_5)

    assert [64, 64] == [row["num_samples"] for row in rows]
    assert 1 == len({row["order_hash"] for row in rows})
    assert [4, 4] == [row["num_batches"] for row in rows]
    assert [4, 0] == [len(row["batches"]["num_samples"]) for row in rows]
    assert 128 == sum(row["num_forwards"] for row in rows)
    assert 4 == sum(row["num_updates"] for row in rows)


def test_joined_sets_give_the_pixels_of_each_sample(data: Locations):
    """Whatever set it is of, and however many threads read."""
    sets = tuple(ShardSet.open(data.root / "small" / "shards" / name / "5") for name in (NOISE, CONTRAST))
    joined = JoinedSets(sets=sets)
    order = shuffled_order(joined.index, seed=1)
    alone = [
        np.concatenate([batch.images.numpy().copy() for batch in Stream(
            shard_set=one, order=stored_order(one.index), batch_size=50, image_size=32)]) for one in sets
    ]  # fmt: skip
    stream = Stream(
        shard_set=joined, order=order, batch_size=32, image_size=32, num_threads=3,
        open_pixels=lambda found, size: JoinedPixels(found, size, open_pixels=StoredPixels),
    )  # fmt: skip

    together = np.concatenate([batch.images.numpy().copy() for batch in stream])

    np.testing.assert_array_equal(np.concatenate(alone)[order.indices], together)


@pytest.mark.parametrize("protocol", ["correlated", {"shift": "mixed", "order": "dirichlet", "delta": 0.01}])
def test_a_correlated_stream_has_few_classes_at_a_time(data: Locations, protocol: object):
    """A batch of 32 has fewer of the ten classes than one of an i.i.d. stream."""
    rows, iid = (
        evaluated(results_of(data, protocol=each, method="source"), SEVERITY_5) for each in (protocol, "mixed")
    )

    assert rows[0]["order_hash"] != iid[0]["order_hash"]
    labels = [
        own.index.labels[np.array(row["first_samples"]["positions"])]
        for row in rows
        for own in [ShardSet.open(data.root / "small" / "shards" / row["corruption"] / "5")]
    ]
    assert all(len(set(found.tolist())) <= 4 for found in labels)


def test_a_slow_stream_has_each_image_once_for_each_corruption(data: Locations):
    """While the severity rises and falls: of each image one severity, and the strongest in the middle."""
    rows = evaluated(results_of(data, method="source", protocol="slow"), WHOLE)

    counts = {(row["corruption"], row["severity"]): row["num_samples"] for row in rows}
    assert all(150 == counts[name, 3] + counts[name, 5] for name in (NOISE, CONTRAST))
    assert all(50 < counts[name, 5] < 100 for name in (NOISE, CONTRAST))


def test_a_slow_stream_that_would_not_reach_a_severity_is_refused(data: Locations):
    """Two images begin and end it, both at the lowest: a cell without images would never have a result."""
    with pytest.raises(StreamError, match=r"\b2 images of gaussian_noise\b.*\bseverity 5;.*\bsubset\b"):
        evaluated(results_of(data, method="source", protocol="slow", subset={"first": 2}), WHOLE)
    assert not result_paths(data.root)


def test_a_dynamic_stream_has_all_cells_in_parts_that_come_back(data: Locations):
    """Each sample once; without adaptation a cell has the error of the cell alone, in whatever parts it comes."""
    rows = evaluated(results_of(data, method="source", protocol="dynamic"), SEVERITY_5)
    alone = evaluated(results_of(data, method="source"), CONTRAST_5)
    again = evaluated(results_of(data, method="source", protocol={"shift": "dynamic", "visits": 4}), SEVERITY_5)

    assert [150, 150] == [row["num_samples"] for row in rows]
    assert [0, 0] == [row["position"] for row in rows]
    assert alone[0]["num_correct"] == rows[1]["num_correct"] == again[1]["num_correct"]
    assert alone[0]["order_hash"] != rows[1]["order_hash"] != again[1]["order_hash"]
    assert ("dynamic", "stored") == (rows[0]["protocol"], rows[0]["stream_order"])


def test_a_list_can_be_the_order_of_the_stream(data: Locations):
    """Line by line, in each cell and over the cells of a mixed stream."""
    shard_set = ShardSet.open(data.root / "small" / "shards" / CONTRAST / "5")
    names = shard_set.index.table["source_name"].to_pylist()
    listed = sorted(names, key=lambda name: name[::-1])[:40]
    (data.root / "times.txt").write_text("\n".join(listed) + "\n")
    timed = {"subset": {"file": str(data.root / "times.txt")}, "method": "source"}

    (row,) = evaluated(results_of(data, protocol={"order": "from_file"}, **timed), CONTRAST_5)
    mixed = evaluated(results_of(data, protocol={"shift": "mixed", "order": "from_file"}, **timed), SEVERITY_5)

    assert listed[:10] == [names[position] for position in row["first_samples"]["positions"]]
    assert row["first_samples"] == mixed[1]["first_samples"]
    assert ["from_file"] * 2 == [each["stream_order"] for each in mixed]


def test_the_order_depends_on_protocol_and_seed_alone(data: Locations):
    """Different between protocols, the same for any number of threads; where the protocol's name does not say which
    order it is, the result does.
    """
    protocols = ["continual", "correlated", "mixed", "mixed_correlated", {"shift": "continual", "order": "shuffled"}]
    hashes, told = [], []
    for protocol in protocols:
        own = results_of(data, method="norm", protocol=protocol, subset={"first": 64})
        rows = [evaluated(own, SEVERITY_5, num_threads=threads) for threads in (1, 4)]
        assert predictions(rows[0]) == predictions(rows[1])
        hashes.append(rows[0][0]["order_hash"])
        told.append((rows[0][0]["protocol"], rows[0][0]["stream_order"]))
        shutil.rmtree(data.results("small"))

    assert len(protocols) == len(set(hashes)) == len(set(told))
    assert [("continual", "stored"), ("continual", "shuffled")] == [told[0], told[-1]]


def test_several_seeds_are_streams_of_their_own(data: Locations):
    """Each has rows of its own, in the order of the seeds; a further seed leaves those that are there alone."""
    first = evaluated(results_of(data, method="norm", seeds=[0, 1]), CONTRAST_5)
    more = evaluated(results_of(data, method="norm", seeds=[2, 0, 1]), CONTRAST_5)

    assert [2, 0, 1] == [row["seed"] for row in more]
    assert first == more[1:]
    assert 3 == len({row["order_hash"] for row in more})


def test_a_subset_is_named(data: Locations):
    """The same samples of every cell, by number, by lot, by a list or with a long tail."""
    index = ShardSet.open(data.root / "small" / "shards" / NOISE / "5").index
    names = index.table["source_name"].to_pylist()
    (data.root / "list.txt").write_text("\r\n".join(sorted(names[:40])) + "\r\n")
    for subset, called, count in (
        ({"first": 40}, "first 40", 40),
        ({"random": 50, "seed": 3}, "random 50, seed 3", 50),
        ({"file": str(data.root / "list.txt")}, "listed in list.txt", 40),
        ({"imbalance_factor": 15, "seed": 3}, "long tail 15, seed 3", len(draw_long_tail(index, 15, seed=3))),
    ):
        rows = evaluated(results_of(data, method="norm", subset=subset, protocol="continual"), SEVERITY_5)
        assert [(called, count)] * 2 == [(row["subset"], row["num_samples"]) for row in rows]
        shutil.rmtree(data.results("small"))
        shutil.rmtree(data.states("small"), ignore_errors=True)


@pytest.mark.parametrize(
    ("content", "found"),
    [("n99/none.JPEG\n", r"/contrast/5 .*n99/none\.JPEG"), ("", "")],
)
def test_a_list_that_names_unknown_samples_is_refused(data: Locations, content: str, found: str):
    """Before the first image, with names and file."""
    (data.root / "list.txt").write_text(content)

    with pytest.raises(StreamError, match=rf"/list\.txt.*{found}"):
        evaluated(results_of(data, subset={"file": str(data.root / "list.txt")}), CONTRAST_5)
    assert not result_paths(data.root)


def test_what_decides_the_predictions_decides_whether_a_cell_is_finished(data: Locations):
    """Another method setting, protocol, batch size or subset is evaluated anew; other severities are not."""
    evaluated(results_of(data), CONTRAST_5)
    for change, is_finished in (
        ({"severities": [5]}, True),
        ({"batch_size": 16}, False),
        ({"precision": "bf16"}, False),
        ({"hyperparameters": {"lr": 0.5}}, False),
        ({"protocol": "episodic"}, False),
        ({"subset": {"first": 9}}, False),
        ({"seed": 1}, False),
    ):
        assert is_finished is (not unfinished(results_of(data, **change), CONTRAST_5)), change


def test_a_window_is_given_whole_and_its_last_image_predicted(data: Locations):
    """Image by image, with those before it."""
    own = results_of(data, protocol={"shift": "continual", "sliding_window": 4}, batch_size=1, subset={"first": 10})
    method = tent(own)
    fed = WindowDriver(ProtocolDriver(tent(own)), 4, source_model(torch.nn.Identity()))
    images = torch.cat([images for images, _ in batches(data, f"{CONTRAST}/5")])[:10]
    expected = [method.predict(images[max(0, end - 4) : end])[-1] for end in range(1, 11)]

    for image, logits in zip(images, expected, strict=True):
        torch.testing.assert_close(fed.predict(image[None])[0], logits, rtol=0, atol=0)
    assert [10, 10] == [row["num_samples"] for row in evaluated(own, SEVERITY_5)]


@pytest.mark.parametrize("shift", ["continual", "episodic"])
def test_a_batch_may_be_predicted_after_the_update(data: Locations, shift: str):
    """By the network as it is then, with another forward pass; in tables the protocol has another name."""
    protocol = {"shift": shift, "predict_after_update": True}
    own = results_of(data, protocol=protocol, batch_size=20, subset={"first": 40})
    method, found = tent(own), tent(own)
    driver = Protocol.model_validate(protocol).drive(found, source_model(torch.nn.Identity()))
    images, _ = next(iter(batches(data, f"{CONTRAST}/5")))
    for part in images.split(20)[:2]:
        if shift == "episodic":
            method.reset()
        method.predict(part)

        with torch.no_grad():
            torch.testing.assert_close(method.model(part), driver.predict(part), rtol=0, atol=0)
    assert 2 * method.num_forwards == found.num_forwards
    assert f"{shift}_after_update" == own.spec.protocol.name
    assert Protocol.model_validate(protocol) == Protocol.model_validate(f"{shift}_after_update")


class SleepingModel(torch.nn.Module):
    """A model that takes a known time."""

    def __init__(self, time_s: float) -> None:
        super().__init__()
        self.time_s = time_s

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return ten of the values of each image."""
        time.sleep(self.time_s)
        return images.flatten(1)[:, :10]


class Sleeping(Method):
    """A method that takes a known time, and counts its batches."""

    name = "sleeping"
    time_s = 0.0
    num_adapted = 0

    @classmethod
    def of(cls, time_s: float) -> Self:
        """Return the method on a linear network."""
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))
        method = cls(network, Hyperparameters(), num_classes=10)
        method.time_s = time_s
        return method

    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        self.num_adapted += 1
        time.sleep(self.time_s)
        return self._forward(images)


def test_a_stream_in_a_hurry_is_not_waited_for(data: Locations):
    """A method that takes four times as long as the source model adapts on about a quarter of the batches."""
    method = Sleeping.of(0.072)
    fed = RealTimeDriver(ProtocolDriver(method), 1.0, source_model(SleepingModel(0.02)))
    for _ in range(12):
        fed.predict(torch.zeros(2, 3, 8, 8))

    assert 2 <= method.num_adapted <= 4
    assert 12 * 2 == 2 * method.num_adapted + fed.num_unadapted
    assert 12 * 2 == method.num_forwards


def test_a_budget_pays_only_for_what_adapting_adds():
    """A method that is no slower than the source model adapts on every batch, however small the budget."""
    fed = BudgetDriver(ProtocolDriver(Sleeping.of(0.02)), 0.05, source_model(SleepingModel(0.1)))
    for _ in range(6):
        fed.predict(torch.zeros(2, 3, 8, 8))

    assert not fed.num_unadapted


@pytest.mark.parametrize(("driver", "value"), [(RealTimeDriver, 1e6), (BudgetDriver, 1e-9)])
def test_what_is_predicted_without_adaptation_is_counted_like_everything_else(driver: type[TimedDriver], value: float):
    """A batch that the stream did not wait for is a forward pass, and a logit that is not finite is noticed there."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    method = build("tent", network, num_classes=4 * 36, preset="cifar")
    fed = driver(ProtocolDriver(method), value, source_model(torch.nn.Flatten()))
    fed.predict(torch.rand(2, 3, 8, 8))
    predicted = fed.predict(torch.full((5, 3, 8, 8), torch.nan))

    assert (5, 7, 1) == (fed.num_unadapted, method.num_forwards, method.num_nonfinite_batches)
    assert not predicted.isfinite().any()
    assert not predicted.requires_grad


def test_a_hurried_stream_that_is_resumed_misses_what_it_would_have_missed():
    """Its state has the pace of the source model, and the batches that arrive during the last adaptation."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    first, second = (
        RealTimeDriver(
            ProtocolDriver(build("tent", deepcopy(network), num_classes=4 * 36, preset="cifar")),
            1000.0, source_model(torch.nn.Flatten()),
        )
        for _ in range(2)
    )  # fmt: skip
    first.predict(torch.rand(2, 3, 8, 8))
    second.load_state_dict(first.state_dict())
    for driver in (first, second):
        driver.predict(torch.rand(2, 3, 8, 8))

    assert 2 == first.num_unadapted == second.num_unadapted


def test_the_result_of_a_hurried_stream_says_what_was_not_adapted_on(data: Locations):
    """Its batches add up, and all are predicted."""
    own = results_of(data, protocol={"shift": "continual", "stream_speed": 1.0}, hyperparameters={"steps": 8})
    rows = evaluated(own, SEVERITY_5)

    assert all(150 == row["num_samples"] for row in rows)
    num_unadapted = sum(row["num_unadapted"] for row in rows)
    assert 0 < num_unadapted < 300
    assert 8 * (300 - num_unadapted) + num_unadapted == sum(row["num_forwards"] for row in rows)
    assert json.loads(rows[0]["config"])["protocol"]["stream_speed"] == 1.0


def test_a_method_is_frozen_when_its_budget_is_spent():
    """What it learned stays; a stream that is resumed has spent what it had."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    first, second = (
        BudgetDriver(
            ProtocolDriver(build("tent", deepcopy(network), num_classes=4 * 36, preset="cifar")),
            1e-3, source_model(torch.nn.Flatten()),
        )
        for _ in range(2)
    )  # fmt: skip
    unadapted = []
    for _ in range(12):
        first.predict(torch.rand(2, 3, 8, 8))
        unadapted.append(first.num_unadapted)
    weights = deepcopy(first.method.model.state_dict())
    second.load_state_dict(first.state_dict())
    for driver in (first, second):
        driver.predict(torch.rand(2, 3, 8, 8))

    assert 0 == unadapted[0] < unadapted[-1] == 2 * (12 - first.method.num_updates)
    assert (unadapted[-1] + 2, 2) == (first.num_unadapted, second.num_unadapted)
    assert all(torch.equal(first.method.model.state_dict()[name], weights[name]) for name in weights)
    assert not torch.equal(network[1].weight, weights["1.weight"])


def test_the_result_of_a_budget_says_in_which_batches_there_was_no_adaptation(data: Locations):
    """A budget that is spent in the first batch leaves that one adapted on, and all are predicted."""
    own = results_of(data, protocol={"shift": "continual", "adaptation_budget_s": 1e-9}, hyperparameters={"steps": 8})
    rows = evaluated(own, SEVERITY_5)
    batches = [row.time.batches for row in own.rows(SEVERITY_5)]

    sizes = [count for each in batches for count in each.num_samples]
    assert [0, *sizes[1:]] == [count for each in batches for count in each.num_unadapted or ()]
    assert 300 == sum(row["num_samples"] for row in rows)


def test_a_frozen_network_that_is_broken_is_named_in_every_cell(data: Locations):
    """The one step that there is time for makes weights infinite: both cells have diverged, with an update or not."""
    protocol, lines = {"shift": "continual", "adaptation_budget_s": 1e-9}, list[str]()
    own = results_of(data, protocol=protocol, hyperparameters={"lr": 1e37})
    rows = [flat_row(row) for row in run_at(own, SEVERITY_5, tell=lines.append)]

    assert ["gaussian_noise|5", "contrast|5"] == [line.partition(":")[0] for line in lines if "infinite" in line]
    assert [True, False] == [row["num_updates"] > 0 for row in rows]
    assert [row["num_batches"] - 1 if row["num_updates"] else row["num_batches"] for row in rows] == [
        row["num_nonfinite_batches"] for row in rows
    ]
    assert all(row["diverged"] for row in rows)


def test_predictions_are_kept_of_each_sample(data: Locations):
    """Less than 8 bytes a sample, in a file for a segment, whose hash the result has; the counts follow from them."""
    own = results_of(data, method="norm", protocol="mixed")
    evaluated(own, SEVERITY_5)

    (path,) = data.results("small").rglob("*.parquet")
    assert path.stat().st_size < 8 * 2 * 150 + 2000
    for each in replace(own).counted_cells(SEVERITY_5):
        row, shard_set = each.row, ShardSet.open(own.folder(each.cell))
        assert each.predictions_path == path
        kept, index = SamplePredictions.of(each), shard_set.index
        assert 150 == len(set(kept.positions.tolist()))
        assert row.scores.num_correct == kept.num_correct(index)
        assert row.predicted.predictions_sha256 == kept.sha256
        assert not list(prediction_problems(each, shard_set))


def test_predictions_that_were_changed_are_named(data: Locations):
    """A flipped bit in what was kept is told by the check; a run without the setting keeps nothing."""
    own = results_of(data)
    evaluated(own, CONTRAST_5)
    (cell,) = replace(own).counted_cells(CONTRAST_5)
    (path,) = data.results("small").rglob("*.parquet")
    changed = bytearray(path.read_bytes())
    changed[40] ^= 1
    path.write_bytes(changed)

    (problem,) = prediction_problems(cell, ShardSet.open(own.folder(CONTRAST_5)))

    assert str(path) in problem
    shutil.rmtree(data.results("small"))
    run_at(own, CONTRAST_5, keeps_predictions=False)
    (row,) = counted(own, CONTRAST_5)
    assert row.predicted.samples_sha256 is None
    assert not list(data.results("small").rglob("*.parquet"))
