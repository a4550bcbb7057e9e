"""Streams with unknown images: each is read once, enters no error, and is told from known ones as scikit-learn says."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.data.images.kinds import FolderSection
from tta_pipeline.data.images.kinds.digits import GeneratedDigits, LettersSettings, generate_cell
from tta_pipeline.data.images.kinds.letters import LETTERS
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError, StreamError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.inputs import Inputs, SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.open_set import keeping_threshold, separation
from tta_pipeline.evaluation.open_stream import OpenStream, order_sets
from tta_pipeline.evaluation.segments_ahead import SegmentsAhead, Step
from tta_pipeline.evaluation.unknown_images import add_unknown
from tta_pipeline.loading.dataset import open_shards
from tta_pipeline.loading.joined_sets import UNKNOWN_LABEL
from tta_pipeline.methods.batch_norm.source import Source
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import Conversion, convert
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.conftest import Project
from tta_pipeline_tests.evaluation.conftest import copy_small
from tta_pipeline_tests.evaluation.small import (
    CONTRAST,
    CONTRAST_5,
    NOISE,
    SEVERITY_5,
    evaluated,
    inputs_of,
    results_of,
)
from tta_pipeline_tests.results.database.made import evaluation_of
from tta_pipeline_tests.shards.cell import QUIET

CELLS = (Cell(corruption=NOISE, severity=5), CONTRAST_5, CLEAN)
NUM_LETTERS = 40
UNKNOWN = {"benchmark": "letters", "share": 0.2}
NUM_KNOWN, NUM_UNKNOWN = 150, 38
OPEN = {"shift": "reset_each_shift", "unknown": UNKNOWN}


def write_letters(data: Locations, source: Path) -> None:
    """Make the shards of a benchmark `letters` under the corruptions of the small one."""
    settings = LettersSettings(
        seed=0, num_test=NUM_LETTERS, jpeg_quality=85, severity_table="imagenet_c", characters="letters"
    )
    classes = ClassMap(classes=tuple(LETTERS))
    conversion = Conversion(
        source=GeneratedDigits(root=source, cells=CELLS, settings=settings),
        source_kind="digits",
        generated=True,
        benchmark_name="letters",
        class_map=classes,
        settings=lambda _: ShardSettings(samples_per_shard=20),
        folder=lambda cell: data.shards("letters", cell),
        progress=quiet_reporter,
    )
    for cell in CELLS:
        generate_cell(source, cell, settings)
    with conversion.session(list(CELLS)) as session:
        for cell in CELLS:
            convert(session.task(cell), conversion.progress)
            publish_shard_set(data.shards("letters", cell), classes, QUIET)


@pytest.fixture(scope="module")
def both(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> Locations:
    """The small benchmark without results, and letters."""
    folder = tmp_path_factory.mktemp("both")
    data = copy_small(sweep.locations.root, folder / "data")
    write_letters(data, folder / "letters")
    return data


def opened(own: ExperimentResults, cell: Cell) -> OpenStream:
    """Return the stream of *cell* as it is evaluated."""
    (plan,) = own.plans(cell)
    with ThreadPoolExecutor(1) as thread:
        segments = SegmentsAhead(own, thread)
        with segments.opened(Step(plan, plan.segments[0]), then=None) as found:
            return found


def test_known_and_unknown_images_are_each_in_the_stream_once(both: Locations):
    """The known ones in the order of the closed stream, the unknown ones without a label and none of them twice."""
    closed, found = (
        opened(results_of(both, protocol=each, seeds=[1]), CONTRAST_5) for each in ("reset_each_shift", OPEN)
    )

    is_unknown = found.joined.index.labels[found.order.indices] == UNKNOWN_LABEL

    assert found.order.indices[~is_unknown].tolist() == closed.order.indices.tolist()
    assert is_unknown.sum() == NUM_UNKNOWN == len(set(found.order.indices[is_unknown].tolist()))
    assert is_unknown[: len(is_unknown) // 2].any()
    assert is_unknown[len(is_unknown) // 2 :].any()


def test_the_order_is_a_function_of_seed_and_manifests(both: Locations):
    """The same again for a seed, other unknown images at other places for another one."""
    first, again, other = (opened(results_of(both, protocol=OPEN, seed=seed), CONTRAST_5).order for seed in (3, 3, 4))

    assert first.sha256 == again.sha256
    assert first.sha256 != other.sha256


def test_unknown_images_do_not_change_what_source_says_of_known_ones(both: Locations):
    """Each is counted beside them; without clean images, which set the threshold, only what needs it is missing."""
    closed_own, own = (results_of(both, method="source", protocol=each) for each in ("reset_each_shift", OPEN))
    images = FolderSection(kind="folder", root=both.root)
    bare = replace(own, benchmark=own.benchmark.model_copy(update={"images": images, "subset": True}))

    (closed,), (found,) = evaluated(closed_own, CONTRAST_5), evaluated(bare, CONTRAST_5)

    assert closed["num_unknown"] is closed["auroc"] is closed["h_score"] is None
    assert (NUM_KNOWN, NUM_UNKNOWN) == (found["num_samples"], found["num_unknown"])
    assert sum(found["batches"]["num_samples"]) == NUM_KNOWN + NUM_UNKNOWN
    assert sum(found["batches"]["num_unknown"]) == NUM_UNKNOWN
    assert sum(found["class_counts"]["num_samples"]) == NUM_KNOWN
    same = ("predictions_sha256", "error", "nll", "brier", "ece", "mean_entropy")
    assert {name: closed[name] for name in same} == {name: pytest.approx(found[name]) for name in same}
    assert found["protocol"] == "reset_each_shift_open"
    assert found["known_threshold"] is found["unknown_rejected"] is found["h_score"] is None


def test_the_scores_are_those_of_a_plain_loop(both: Locations):
    """AUROC and H-score from the softmax of the model for each image, the threshold from the clean ones."""
    own = results_of(both, method="source", protocol=OPEN)
    network = inputs_of(own).model.make().eval()

    def scores(benchmark: str, cell: Cell) -> tuple[np.ndarray, np.ndarray]:
        batches = list(open_shards(both.shards(benchmark, cell)).batches(batch_size=64))
        logits = torch.cat([network(images).detach() for images, _ in batches])
        correct = logits.argmax(1) == torch.cat([labels for _, labels in batches])
        return logits.softmax(1).amax(1).double().numpy(), correct.numpy()

    clean, _ = scores("small", CLEAN)
    threshold = np.sort(clean)[len(clean) - int(np.ceil(0.95 * len(clean)))]
    for cell in (CONTRAST_5, CLEAN):
        (row,) = evaluated(own, cell)
        stream = opened(own, cell)
        start = stream.joined.starts[1]
        drawn = np.sort(stream.order.indices[stream.order.indices >= start] - start)
        known, correct = scores("small", cell)
        unknown = scores("letters", cell)[0][drawn]
        kept, rejected = (correct & (known >= threshold)).mean(), (unknown < threshold).mean()

        truth = np.repeat([1, 0], [len(known), len(unknown)])
        assert row["auroc"] == pytest.approx(roc_auc_score(truth, np.concatenate([known, unknown])), abs=1e-4)
        found = separation(known, unknown)
        assert (row["fpr95"], row["aupr"]) == pytest.approx((found.fpr95, found.aupr), abs=0.03)  # an image is 1 / 38
        assert row["known_threshold"] == pytest.approx(threshold, abs=1e-5)
        assert row["unknown_rejected"] == pytest.approx(rejected)
        assert row["h_score"] == pytest.approx(2 * kept * rejected / (kept + rejected))
    assert 0 < row["h_score"] < 1


@pytest.mark.parametrize("shift", ["continual", "mixed"])
def test_streams_over_several_cells_have_unknown_images_of_each(both: Locations, shift: str):
    """A row for each cell counts its own, and the rows share the cost of all images."""
    rows = evaluated(results_of(both, method="norm", protocol={"shift": shift, "unknown": UNKNOWN}), SEVERITY_5)

    assert [NUM_UNKNOWN] * 2 == [row["num_unknown"] for row in rows]
    assert [NUM_KNOWN] * 2 == [row["num_samples"] for row in rows]
    assert sum(row["num_forwards"] for row in rows) == 2 * (NUM_KNOWN + NUM_UNKNOWN)


def test_too_few_unknown_images_are_no_stream(both: Locations):
    """The error says how many known images the unknown ones are enough for, and with a subset of so many it is one."""
    greedy = {"shift": "reset_each_shift", "unknown": {**UNKNOWN, "share": 0.5}}

    with pytest.raises(StreamError, match=r" 40 .* 150 .*subset: \{random: 40\}"):
        opened(results_of(both, protocol=greedy), CONTRAST_5)
    assert len(opened(results_of(both, protocol=greedy, subset={"random": NUM_LETTERS}), CONTRAST_5).order) == 80


def test_unknown_images_of_a_known_class_are_refused(both: Locations):
    """A class of the same name, other than a number, is the same class."""
    letters = ShardSet.open(both.shards("letters", CONTRAST_5))

    with pytest.raises(StreamError, match=r"letters/shards/contrast/5 .*\bA, C, E\b"):
        add_unknown(order_sets((letters,), subset=None), [letters], share=0.2, seed=0)


def test_the_fingerprint_has_the_unknown_images_and_is_as_before_without_them(both: Locations):
    """Share, source, shards and the clean images that set the threshold; a closed stream has none of these parts."""

    def parts(**protocol: object) -> dict:
        own = results_of(both, protocol={"shift": "continual", **protocol})
        inputs = Inputs(experiment=own, machine=Machine(device="cpu"), known=SharedCache())
        return [each.parts for each in inputs.fingerprints(own.plans(SEVERITY_5)[0])]

    closed, found, other = parts(), parts(unknown=UNKNOWN), parts(unknown={**UNKNOWN, "share": 0.1})

    assert all("unknown" not in each and "unknown" not in each["settings"]["protocol"] for each in closed)
    assert found[0]["unknown"] != found[1]["unknown"]
    assert {"benchmark": "letters", "share": 0.2} == found[0]["settings"]["protocol"]["unknown"]
    assert found[0]["settings"] != other[0]["settings"]
    assert all(each["unknown"]["clean"] for each in found)


def test_a_method_may_have_a_score_of_its_own(both: Locations, monkeypatch: pytest.MonkeyPatch):
    """Its `confidence` takes the place of the maximum softmax, for the threshold too."""
    plain = evaluated(results_of(both, method="source", protocol=OPEN), CONTRAST_5)[0]
    monkeypatch.setattr(Source, "confidence", lambda _, logits: -logits.softmax(1).amax(1), raising=False)

    upside_down = evaluated(results_of(both, method="source", protocol=OPEN, seed=7), CONTRAST_5)[0]
    again = evaluated(results_of(both, method="source", protocol=OPEN, batch_size=63), CONTRAST_5)[0]

    assert again["auroc"] == pytest.approx(1 - plain["auroc"], abs=1e-6)
    assert upside_down["known_threshold"] < 0 < plain["known_threshold"]


@pytest.mark.parametrize(
    "experiment",
    [{"protocol": {"shift": "slow", "unknown": UNKNOWN}},
     {"protocol": {**OPEN, "unknown": {**UNKNOWN, "source": "small"}}},
     {"protocol": {**OPEN, "unknown": {**UNKNOWN, "share": 1}}}],
)  # fmt: skip
def test_impossible_streams_are_refused_with_the_file(both: Locations, experiment: dict):
    """Of a slow stream, of the benchmark itself, and of unknown images alone."""
    with pytest.raises(ValidationError):
        results_of(both, **experiment)


SCORES = st.lists(st.sampled_from([0, 0.1, 0.25, 0.5, 0.75, 0.9, 1]) | st.floats(0, 1), min_size=1, max_size=60)


@settings(max_examples=30)
@given(SCORES, SCORES)
def test_separation_is_that_of_scikit_learn(known: list[float], unknown: list[float]):
    """AUROC, FPR at 95 % TPR and average precision, with ties, to 1e-9."""
    truth, scores = np.repeat([1, 0], [len(known), len(unknown)]), np.array(known + unknown)
    fpr, tpr, thresholds = roc_curve(truth, scores, drop_intermediate=False)

    found = separation(np.array(known), np.array(unknown))

    assert found.auroc == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)
    assert found.fpr95 == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-9)
    assert found.aupr == pytest.approx(average_precision_score(truth, scores), abs=1e-9)
    assert keeping_threshold(np.array(known)) == thresholds[np.argmax(tpr >= 0.95)]


def test_a_record_of_an_open_stream_agrees_with_itself(both: Locations):
    """Counts that contradict each other are refused, as those of a closed stream are."""
    facts = evaluated(results_of(both, method="norm", protocol=OPEN), CONTRAST_5)[0]
    assert evaluation_of(facts).num_unknown == NUM_UNKNOWN

    with pytest.raises(RecordError, match="num_unknown"):
        evaluation_of({**facts, "num_unknown": NUM_UNKNOWN - 1})
    assert CONTRAST == facts["corruption"]
