"""An evaluation counts every sample once, and its predictions depend on nothing but what decides them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.build_records import build_records
from tta_pipeline.evaluation.calibration import calibration_bins
from tta_pipeline.evaluation.evaluator import Evaluator
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.evaluation.open_stream import OpenStream, open_stream
from tta_pipeline.evaluation.subject import ModelFacts, Subject
from tta_pipeline.loading.reader import Stream
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.plans import Labels
from tta_pipeline.shards.shard_set import ShardSet

LABELS = Labels(experiment="own", model="small", dataset="own", hyperparameters_origin="preset", shifts={})
SUBJECT = Subject(
    benchmark="test", labels=LABELS, stream="fog|5", seed=0,
    fingerprint=Fingerprint(parts={}), num_threads=2,
    method="tent", protocol="episodic", subset="all", settings={}, batch_size=6,
    precision="fp32",
    model=ModelFacts(
        architecture="small", weights="random", weights_sha256="0" * 64
    ),
)  # fmt: skip


def small_model() -> nn.Module:
    """Return a model of three classes for 32x32 images."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def evaluator(
    method: object = "tent", *, num_threads: int = 2, make=small_model, kept_in=None, probes=frozenset(), **changes: str
) -> Evaluator:
    """Return an evaluator of *method* on the small model."""
    return Evaluator(
        experiment=Experiment(**{"model": "small", "method": method, "batch_size": 6} | changes),
        model=LoadedModel(
            name="small",
            make_network=make,
            num_classes=3,
            weights="random",
            weights_sha256="0" * 64,
            mean=(0,),
            std=(1,),
            architecture="small",
        ),
        image_size=32,
        device=torch.device("cpu"),
        num_threads=num_threads,
        kept_in=kept_in,
        probes=probes,
    )


def evaluate(shard_set: ShardSet, **settings) -> Evaluation:
    """Return the evaluation of *shard_set* alone."""
    return evaluated(evaluator(**settings), shard_set)


def evaluated(by: Evaluator, shard_set: ShardSet) -> Evaluation:
    """Return the evaluation of *shard_set*, from the source model on."""
    by.start(shard_set.manifest, seed=0)
    return recorded(by, open_stream([shard_set.folder]))


def recorded(by: Evaluator, opened: OpenStream) -> Evaluation:
    """Return the record of *opened*, a stream of one cell."""
    own = by._experiment
    subject = replace(SUBJECT, method=own.method_name, precision=own.precision, compile=own.compile)
    (result,) = build_records(subject, by.evaluate(opened, lambda _: None, segment=("fog|5", 0)))
    return result.row


def test_predictions_do_not_depend_on_what_came_before_or_on_threads(shard_set: ShardSet):
    """The same cell alone, after itself, and with other numbers of threads has one predictions hash."""
    shared = evaluator()
    hashes = {evaluated(shared, shard_set).predicted.predictions_sha256 for _ in range(3)}
    hashes |= {evaluate(shard_set, num_threads=threads).predicted.predictions_sha256 for threads in (1, 4)}

    assert 1 == len(hashes)


def test_every_sample_is_counted(shard_set: ShardSet):
    """Samples, batches and their timings add up to the manifest."""
    result = evaluate(shard_set)

    assert shard_set.manifest.num_samples == result.scores.num_samples == sum(result.time.batches.num_samples)
    assert result.cost.num_forwards == result.cost.num_backwards == 20
    assert shard_set.manifest.order.sha256 == result.cell.order_hash
    assert result.error == 1 - result.scores.num_correct / result.scores.num_samples
    assert 0 < result.time.data_wait_s + result.time.compute_s <= result.time.wall_s
    assert result.time.time_to_first_batch_s <= result.time.data_wait_s


@pytest.mark.parametrize("num_together", [1, 36])
def test_batches_give_the_same_scores_one_by_one_and_together(
    shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch, num_together: int
):
    """The probabilities of a long pass are scored as often as there are so many; 36 are two batches."""
    expected = evaluate(shard_set)
    monkeypatch.setattr("tta_pipeline.evaluation.one_pass.SCORED_TOGETHER", num_together)
    found = evaluate(shard_set)

    assert (expected.scores, expected.calibration, expected.predicted) == (
        found.scores, found.calibration, found.predicted,
    )  # fmt: skip
    assert expected.time.batches.num_correct == found.time.batches.num_correct


@pytest.mark.parametrize(
    ("method", "frozen", "num_adapted"),
    [
        ("tent", None, 14),
        ("sar", "none of 2", 14),
        ({"base": "sar", "frozen_layers": ["0"]}, "1 of 2, 0 to 0", 8),
        ({"base": "sar", "params": "last"}, None, 51),
        ("norm", None, None),
    ],
)
def test_a_result_says_what_its_method_adapted_and_left_as_it_was(
    shard_set: ShardSet, method: Any, frozen: str | None, num_adapted: int | None
):
    """Of norm layers at the top: that there is none, or which the file named; and how many parameters took steps."""

    def with_two_norm_layers() -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(3), *small_model())

    row = evaluate(shard_set, method=method, make=with_two_norm_layers)

    assert (frozen, num_adapted) == (row.setup.frozen_layers, row.setup.num_adapted_parameters)


def test_a_result_has_the_pieces_in_its_methods_name(shard_set: ShardSet):
    """So that tables tell apart what has the same base."""
    assert "tent+come+asr" == evaluate(shard_set, method={"base": "tent", "loss": "come", "reset": "asr"}).setup.method
    assert "tent" == evaluate(shard_set, method={"base": "tent", "lr": 0.1}).setup.method


def test_a_stream_that_loses_samples_ends_in_an_error(shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch):
    """When a batch goes missing, both counts are named and there is no result."""
    whole = Stream.__iter__
    monkeypatch.setattr(Stream, "__iter__", lambda stream: iter(list(whole(stream))[:-1]))

    with pytest.raises(EvaluationError, match=r"/shards.* 18 .* 20\b"):
        evaluate(shard_set)


def test_a_model_that_breaks_is_marked(shard_set: ShardSet):
    """Logits that are no numbers are counted by batch and the result is marked diverged."""

    def broken() -> nn.Module:
        model = small_model()
        nn.init.constant_(model[-1].bias, float("nan"))
        return model

    result = evaluate(shard_set, method="source", make=broken)

    assert result.scores.diverged
    assert 4 == result.cost.num_nonfinite_batches
    assert not evaluate(shard_set, method="source").scores.diverged
    assert result.scores.nll is result.scores.brier is None
    assert result.error == result.scores.top5_error
    assert (0.0,) * 10 == result.predicted.first_samples.confidences


def test_scores_agree_with_each_other(shard_set: ShardSet):
    """Counts by class add up to those of the cell, three classes are all in the top 5, and nothing is out of range."""
    result = evaluate(shard_set, method="source")

    assert (9, 6, 5) == result.scores.class_counts.num_samples
    assert result.scores.num_correct == sum(result.scores.class_counts.num_correct)
    assert 0 == result.scores.top5_error <= result.error
    assert 0 < result.scores.nll
    assert 0 < result.scores.brier < 2
    assert result.calibration.ece == result.calibration.bins.ece


def test_an_accelerator_that_was_shared_is_recorded_so(shard_set: ShardSet):
    """Its times are not those of a run that had it alone; for a CPU the number means nothing."""
    by, subject = evaluator("source"), replace(SUBJECT, streams_per_device=4)
    by.start(shard_set.manifest, seed=0)
    measurement = by.evaluate(open_stream([shard_set.folder]), lambda _: None, segment=("fog|5", 0))

    of_devices = (replace(measurement, device=torch.device(name)) for name in ("mps", "cpu"))

    assert [4, None] == [
        each.row.machine.streams_per_device for one in of_devices for each in build_records(subject, one)
    ]


def test_adaptation_that_ends_in_one_class_is_marked(shard_set: ShardSet):
    """Every logit is a number, and the error is that of a broken model all the same; a source model is what it is."""

    def collapsed() -> nn.Module:
        model = small_model()
        nn.init.constant_(model[-1].bias[:1], 50.0)
        return model

    result = evaluate(shard_set, make=collapsed)

    assert (0.0, 0, True) == (
        result.label_free.predicted_class_entropy,
        result.cost.num_nonfinite_batches,
        result.scores.diverged,
    )
    assert not evaluate(shard_set, make=collapsed, method="source").scores.diverged


def test_calibration_is_the_sum_over_bins():
    """ECE from the bins equals the definition, computed sample by sample."""
    rng = np.random.default_rng(0)
    confidences, correct = rng.random(500), rng.random(500) < 0.6
    expected = 0.0
    for low, high in zip(np.linspace(0, 1, 16)[:-1], np.linspace(0, 1, 16)[1:], strict=True):
        inside = (confidences > low) & (confidences <= high)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidences[inside].mean())

    bins = calibration_bins(confidences, correct)

    assert bins.ece == pytest.approx(expected, abs=1e-12)
    assert 500 == sum(bins.counts)


def test_bins_of_two_halves_add_up_to_the_whole():
    """Calibration of a union follows exactly from the bins of its parts."""
    rng = np.random.default_rng(1)
    confidences, correct = rng.random(300), rng.random(300) < 0.5
    whole = calibration_bins(confidences, correct)
    halves = [calibration_bins(confidences[part], correct[part]) for part in (slice(100), slice(100, None))]

    np.testing.assert_allclose(whole.confidence_sums, np.add(*(half.confidence_sums for half in halves)))
    assert whole.correct_counts == tuple(np.add(*(half.correct_counts for half in halves)).tolist())


def test_a_device_has_nothing_to_do_while_it_waits_for_data(shard_set: ShardSet):
    """On a CPU, which does one thing at a time; of the first batch, it is all of the wait."""
    result = evaluated(evaluator("source"), shard_set)

    assert result.time.device_idle_s >= result.time.data_wait_s > 0
    assert result.time.device_idle_s + result.time.compute_s <= result.time.wall_s
