"""Scores are what their definitions say, by a second opinion, and a broken model breaks none."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_accuracy,
    multiclass_calibration_error,
)

from tta_pipeline.evaluation.calibration import (
    ClassGaps,
    adaptive_calibration_error,
    area_under_risk_coverage,
    calibration_bins,
    class_wise_calibration_error,
)
from tta_pipeline.evaluation.scores import (
    TOP,
    SampleScores,
    count_classes,
    fetch_scores,
    finite_mean,
    label_free_scores,
    score_samples,
)
from tta_pipeline.loading.joined_sets import UNKNOWN_LABEL, JoinedSets

NUM_SAMPLES, NUM_CLASSES = 400, 12


@pytest.fixture(scope="module")
def logits() -> torch.Tensor:
    """Logits of a model that knows something."""
    torch.manual_seed(0)
    return 2 * torch.randn(NUM_SAMPLES, NUM_CLASSES) + 2 * torch.eye(NUM_CLASSES)[labels_of(NUM_SAMPLES)]


def labels_of(num_samples: int) -> torch.Tensor:
    """Return labels of all classes in turn."""
    return torch.arange(num_samples) % NUM_CLASSES


def scores_of(logits: torch.Tensor) -> SampleScores[torch.Tensor]:
    """Return the scores of *logits* by those labels."""
    return score_samples(logits.log_softmax(1), labels_of(len(logits)), torch.arange(len(logits)))


@pytest.mark.parametrize("top", [1, 2, TOP])
def test_ranks_give_top_k_accuracy(logits: torch.Tensor, top: int):
    """As torchmetrics counts it."""
    expected = multiclass_accuracy(logits, labels_of(NUM_SAMPLES), num_classes=NUM_CLASSES, top_k=top, average="micro")

    assert expected.item() == pytest.approx((scores_of(logits).label_ranks < top).double().mean().item())


def test_the_calibration_error_is_that_of_torchmetrics(logits: torch.Tensor):
    """From sums over 15 bins."""
    expected = multiclass_calibration_error(
        logits.softmax(1), labels_of(NUM_SAMPLES), num_classes=NUM_CLASSES, n_bins=15, norm="l1"
    )
    scores = scores_of(logits)
    correct = (scores.predictions == labels_of(NUM_SAMPLES)).numpy()

    bins = calibration_bins(scores.confidences.double().numpy(), correct)

    assert expected.item() == pytest.approx(bins.ece, abs=1e-6)


def joined(*sizes: int, num_unknown: int = 0) -> JoinedSets:
    """Return sets of so many samples, of which none is read; the last ones have unknown images."""
    sets = tuple(SimpleNamespace(index=range(size)) for size in sizes)
    return JoinedSets(sets=sets, num_unknown_sets=num_unknown)  # type: ignore[arg-type]


def test_class_wise_calibration_is_the_mean_of_torchmetrics_over_classes(logits: torch.Tensor):
    """Of each cell alone, where batches mix the cells; unknown images count nowhere."""
    cells = joined(150, 150, 100, num_unknown=1)
    labels = labels_of(NUM_SAMPLES).where(torch.arange(NUM_SAMPLES) < 300, UNKNOWN_LABEL)
    gaps = ClassGaps(cells)
    for indices in np.array_split(np.random.default_rng(0).permutation(NUM_SAMPLES), 7):
        gaps.add(logits[indices].log_softmax(1), labels[indices], indices)

    found = gaps.fetch()

    assert (2, NUM_CLASSES, 15) == found.shape
    for own, part in zip(found, (slice(150), slice(150, 300)), strict=True):
        of_class = [
            binary_calibration_error(column.contiguous(), labels[part] == label, n_bins=15, norm="l1")
            for label, column in enumerate(logits[part].softmax(1).T)
        ]
        assert class_wise_calibration_error(own, 150) == pytest.approx(torch.stack(of_class).mean().item(), abs=1e-6)


def test_class_wise_calibration_by_hand():
    """Two classes: (0.9 - 1 + 0.9 - 0) / 2 of each, whose probabilities share a bin; a broken model has a value too."""
    sure, broken = ClassGaps(joined(2)), ClassGaps(joined(1))
    sure.add(torch.tensor([[0.9, 0.1], [0.9, 0.1]]).log(), torch.tensor([0, 1]), np.arange(2))
    broken.add(torch.full((1, 2), float("nan")), torch.tensor([1]), np.arange(1))

    assert class_wise_calibration_error(sure.fetch()[0], 2) == pytest.approx(0.4)
    assert class_wise_calibration_error(broken.fetch()[0], 1) == 0.5


def test_likelihood_and_brier_score_by_their_definitions(logits: torch.Tensor):
    """Likelihood as cross-entropy has it, Brier score as the sum over classes of squared differences, in float64."""
    labels = labels_of(NUM_SAMPLES)
    probabilities = logits.double().softmax(1)
    one_hot = torch.eye(NUM_CLASSES, dtype=torch.float64)[labels]

    scores = scores_of(logits)

    torch.testing.assert_close(
        -scores.log_likelihoods, torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    )
    torch.testing.assert_close(
        scores.brier_scores.double(), (probabilities - one_hot).square().sum(1), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(scores.confidences.double(), probabilities.max(1).values, atol=1e-6, rtol=0)


def test_ranks_hold_where_probabilities_are_all_zero_but_one():
    """A method that is certain of one class still has an order among the others."""
    logits = -200 * torch.arange(NUM_CLASSES, dtype=torch.float32).repeat(NUM_CLASSES, 1)

    assert list(range(NUM_CLASSES)) == scores_of(logits).label_ranks.tolist()


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_model_has_no_top_5_and_no_likelihood(broken: float):
    """Logits that are no numbers rank the label last, and the means are none rather than wrong."""
    logits = torch.randn(NUM_CLASSES, NUM_CLASSES)
    logits[3] = broken

    scores = scores_of(logits)

    assert scores.label_ranks[3] >= TOP
    assert finite_mean(-scores.log_likelihoods.double().numpy()) is None
    assert finite_mean(scores.brier_scores.double().numpy()) is None
    assert finite_mean(np.ones(3)) == 1


def test_classes_without_samples_are_counted_as_none():
    """Counts are by label, as many as there are classes."""
    counts = count_classes(np.array([0, 2, 2]), np.array([True, False, True]), num_classes=4)

    assert (1, 0, 2, 0) == counts.num_samples
    assert (1, 0, 1, 0) == counts.num_correct


def test_scores_without_labels_are_means_over_each_batch(logits: torch.Tensor):
    """Entropies as torch has them, shares of predicted classes by numbers, and agreement by comparing labels."""
    by_source = logits.where(torch.arange(NUM_SAMPLES)[:, None] % 4 > 0, -logits)
    batches = [
        score_samples(
            logits[part].log_softmax(1), labels_of(NUM_SAMPLES)[part], torch.arange(NUM_SAMPLES)[part],
            source_logits=by_source[part],
        )
        for part in (slice(300), slice(300, None))
    ]  # fmt: skip

    found = label_free_scores(fetch_scores(batches), [300, 100])

    probabilities, predictions = logits.softmax(1), logits.argmax(1)
    entropies = torch.distributions.Categorical(probabilities).entropy()
    shares = torch.bincount(predictions[300:]) / 100
    assert found["mean_entropy"] == pytest.approx([entropies[:300].mean().item(), entropies[300:].mean().item()])
    assert found["mean_confidence"][1] == pytest.approx(probabilities[300:].max(1).values.mean().item())
    assert found["predicted_class_entropy"][1] == pytest.approx(torch.special.entr(shares).sum().item())
    assert found["source_agreement"] == pytest.approx([0.75, 0.75])


def test_scores_without_labels_are_missing_where_they_have_no_value():
    """Of a certain model the entropy is 0; a broken one has no mean, and most methods no source prediction."""
    certain, broken = 1000 * torch.eye(NUM_CLASSES), torch.full((NUM_CLASSES, NUM_CLASSES), float("nan"))

    sure, odd = (label_free_scores(fetch_scores([scores_of(each)]), [NUM_CLASSES]) for each in (certain, broken))

    assert sure["mean_entropy"] == [0]
    assert sure["predicted_class_entropy"] == pytest.approx([np.log(NUM_CLASSES)])
    assert odd["mean_entropy"] is odd["mean_confidence"] is sure["source_agreement"] is None
    assert odd["predicted_class_entropy"] == [0]


def test_the_area_under_risk_and_coverage_by_hand():
    """Errors among the surest 1, 2, 3 and 4 are 0, 1/2, 1/3 and 1/2; of equals each counts as their mean."""
    correct = np.array([True, False, True, False])

    assert area_under_risk_coverage(np.array([0.9, 0.8, 0.7, 0.6]), correct) == pytest.approx(
        (1 / 2 + 1 / 3 + 1 / 2) / 4
    )
    assert area_under_risk_coverage(np.full(4, 0.5), correct) == 0.5
    assert area_under_risk_coverage(np.array([0.1, 0.2, 0.2, 0.9]), correct) == pytest.approx(
        (1 + 3 / 4 + 4 / 6 + 1 / 2) / 4
    )


def test_adaptive_bins_have_equally_many_samples(logits: torch.Tensor):
    """Against a loop over 15 parts of the sorted samples, and without error where confidence is accuracy."""
    scores = scores_of(logits)
    confidences, correct = scores.confidences.double().numpy(), (scores.predictions == labels_of(NUM_SAMPLES)).numpy()
    parts = np.array_split(np.argsort(-confidences), 15)
    expected = sum(len(part) / NUM_SAMPLES * abs(correct[part].mean() - confidences[part].mean()) for part in parts)

    assert adaptive_calibration_error(confidences, correct) == pytest.approx(expected)
    assert adaptive_calibration_error(np.full(4, 0.5), np.array([True, False, True, False])) == pytest.approx(0)
    assert adaptive_calibration_error(np.array([1.0, 0.5]), np.array([True, False])) == pytest.approx(0.25)
