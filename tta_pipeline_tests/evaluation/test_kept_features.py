"""Methods that read only the input of the classifier share one forward pass of the frozen network."""

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from tta_pipeline.evaluation.evaluator import Evaluator
from tta_pipeline.evaluation.feature_cache import FeatureCacheEntry, capturing, find_head
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.evaluation.open_stream import open_stream
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.methods import build
from tta_pipeline.models.zero_shot_classifier import ZeroShotClassifier
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.evaluation.test_evaluator import evaluated, evaluator, recorded, small_model

READERS = ("source", "lame", "t3a", "neo")
CLIP_READERS = ("zero_shot", "tda", "bca", "onzeta", "oga", "ecalp", "stata", "source")
CROP_READERS = ("zero", "mta", "tps", "tpt", "ctpt", "boostadapter")


@pytest.fixture
def cells(tmp_path: Path) -> DecodedCache:
    """Where features are kept."""
    return empty_cells(tmp_path / "decoded")


def empty_cells(folder: Path) -> DecodedCache:
    """Return a place for features."""
    return DecodedCache(folder=folder, limit_bytes=2**20)


def with_features(cells: DecodedCache, method: str, **changes) -> Evaluator:
    """Return an evaluator of *method* that keeps features and reads them."""
    return evaluator(method, kept_in=cells, **changes)


def files(cells: DecodedCache) -> list[Path]:
    """Return the files of features."""
    return sorted(cells.own_folder.glob("*.features")) if cells.own_folder.exists() else []


def outcome(row: Evaluation) -> tuple[object, ...]:
    """Return everything that the predictions and their probabilities determine."""
    return (
        row.predicted.predictions_sha256,
        row.scores.nll,
        row.calibration.ece,
        row.scores.brier,
        row.predicted.first_samples,
        row.cost.num_forwards,
    )


def test_methods_share_a_pass_and_predict_the_same(shard_set: ShardSet, tmp_path: Path):
    """Bit for bit, whichever of them comes first; the record says what was read."""
    expected = {method: outcome(evaluated(evaluator(method), shard_set)) for method in READERS}
    for first in READERS:
        cells = empty_cells(tmp_path / first)
        assert not evaluated(with_features(cells, first), shard_set).machine.from_features
        assert 1 == len(files(cells))

        rows = {method: evaluated(with_features(cells, method), shard_set) for method in READERS}

        assert all(row.machine.from_features for row in rows.values())
        assert expected == {method: outcome(row) for method, row in rows.items()}


class SmallPrompts(nn.Module):
    """Text features of three classes, from a context."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("context", torch.ones(1, 8))
        self.words = nn.Parameter(torch.randn(3, 8))

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        """Return text features (K, D) of length 1."""
        return normalize(self.words + context, dim=1)


def small_clip() -> nn.Module:
    """Return a zero-shot classifier of random towers."""
    torch.manual_seed(3)
    tower = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return ZeroShotClassifier(
        nn.Sequential(*tower, nn.Linear(16, 8)), normalize(torch.randn(3, 8), dim=1), scale=50, prompts=SmallPrompts()
    )


def test_methods_for_a_clip_share_a_pass(shard_set: ShardSet, tmp_path: Path):
    """All that leave the image tower as it is, bit for bit."""
    expected = {method: outcome(evaluated(evaluator(method, make=small_clip), shard_set)) for method in CLIP_READERS}
    for first in ("zero_shot", "ecalp"):
        cells = empty_cells(tmp_path / first)
        evaluated(with_features(cells, first, make=small_clip), shard_set)

        rows = {method: evaluated(with_features(cells, method, make=small_clip), shard_set) for method in CLIP_READERS}

        assert all(row.machine.from_features for row in rows.values())
        assert expected == {method: outcome(row) for method, row in rows.items()}
        assert 1 == len(files(cells))


def cropping(method: str, *, cells: DecodedCache | None = None, **changes) -> Evaluator:
    """Return an evaluator of *method* with few crops of each image."""
    changes = {"hyperparameters": {"num_views": 5}, "make": small_clip, "preset": "imagenet", **changes}
    return evaluator(method, kept_in=cells, **changes)


def test_methods_with_the_same_crops_share_the_features_of_these(shard_set: ShardSet, tmp_path: Path):
    """Bit for bit, also in the cell that follows, whose crops are drawn after those that were not cut out."""
    expected = {method: streamed(cropping(method), shard_set) for method in CROP_READERS}
    for first in ("zero", "tps"):
        cells = empty_cells(tmp_path / first)
        streamed(cropping(first, cells=cells), shard_set)
        for path in files(cells)[1:]:
            path.unlink()

        for method in CROP_READERS:
            rows = streamed(cropping(method, cells=cells), shard_set)

            assert [outcome(row) for row in expected[method]] == [outcome(row) for row in rows]
            assert any(row.machine.from_features for row in rows)
        assert 2 == len(files(cells))


def streamed(by: Evaluator, shard_set: ShardSet) -> list[Evaluation]:
    """Return the evaluations of *shard_set* twice in a row, as of two cells of one stream."""
    by.start(shard_set.manifest, seed=0)
    return [recorded(by, open_stream([shard_set.folder])) for _ in range(2)]


@pytest.mark.parametrize(("num_views", "seed"), [(6, 0), (5, 1)])
def test_features_of_other_crops_are_not_read(shard_set: ShardSet, cells: DecodedCache, num_views: int, seed: int):
    """Of another number of them, or of other draws; nor those of whole images."""
    evaluated(cropping("zero", cells=cells), shard_set)
    evaluated(cropping("zero_shot", cells=cells, hyperparameters={}), shard_set)
    other = cropping("mta", cells=cells, hyperparameters={"num_views": num_views})
    other.start(shard_set.manifest, seed=seed)

    assert not recorded(other, open_stream([shard_set.folder])).machine.from_features
    assert 3 == len(files(cells))


def test_the_network_does_not_run_again(shard_set: ShardSet, cells: DecodedCache):
    """Only its classifier does."""
    num_images = []

    def counting() -> nn.Module:
        network = small_model()
        network[0].register_forward_hook(lambda _, inputs, __: num_images.append(len(inputs[0])))
        return network

    for method in READERS:
        evaluated(with_features(cells, method, make=counting), shard_set)

    assert len(shard_set.index) == sum(num_images)


@pytest.mark.parametrize(
    "changes",
    [{"precision": "bf16"}, {"subset": {"first": 6}}, {"seeds": (3,)}, {"deterministic": True}, {"seed": 1}],
)
def test_features_of_something_else_are_not_read(shard_set: ShardSet, cells: DecodedCache, changes: dict):
    """Of another precision, other batches, other algorithms, or other draws of a network that draws."""
    evaluated(with_features(cells, "source"), shard_set)

    other = with_features(cells, "source", **changes)
    other.start(shard_set.manifest, seed=changes.get("seed", 0))
    opened = open_stream([shard_set.folder], experiment=other._experiment)
    row = recorded(other, opened)

    assert not row.machine.from_features
    assert 2 == len(files(cells))


def test_features_of_another_machine_are_not_read(
    shard_set: ShardSet, cells: DecodedCache, monkeypatch: pytest.MonkeyPatch
):
    """Nor those of other software, whose kernels may return other bits."""
    evaluated(with_features(cells, "source"), shard_set)
    monkeypatch.setattr(platform, "node", lambda: "another")

    assert not evaluated(with_features(cells, "source"), shard_set).machine.from_features
    assert 2 == len(files(cells))


@pytest.mark.parametrize("method", ["norm", "tent"])
def test_methods_that_change_the_network_see_images(shard_set: ShardSet, cells: DecodedCache, method: str):
    """Nothing is kept of them, and nothing read."""
    evaluated(with_features(cells, "source"), shard_set)

    assert not evaluated(with_features(cells, method), shard_set).machine.from_features
    assert 1 == len(files(cells))


class Scaled(nn.Sequential):
    """A network that does something after its classifier."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return twice what the classifier says."""
        return 2 * super().forward(images)


class Masked(nn.Sequential):
    """A network that changes what its classifier returned, in place."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits that rule the first class out."""
        logits = super().forward(images)
        logits[:, 0] = -1e4
        return logits


class WithClassToken(nn.Module):
    """A network whose classifier reads the first of several tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Conv2d(3, 16, 8, stride=8), nn.Linear(16, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.tokens(images).flatten(2).transpose(1, 2).contiguous()[:, 0])


def scaled() -> nn.Module:
    """Return such a network."""
    return Scaled(*small_model())


def headless() -> nn.Module:
    """Return a network without a classifier."""
    return nn.Sequential(nn.Conv2d(3, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def masked() -> nn.Module:
    """Return a network that changes its logits."""
    return Masked(*small_model())


@pytest.mark.parametrize("make", [scaled, headless, masked, WithClassToken])
def test_features_of_a_network_that_does_not_end_in_its_classifier_are_not_kept(
    shard_set: ShardSet, cells: DecodedCache, make: Callable[[], nn.Module]
):
    """Its predictions could not be made of them, or, of a copy of one token among many, not to the last bit."""
    evaluated(with_features(cells, "source", make=make), shard_set)

    assert not files(cells)


def test_a_damaged_file_is_made_anew(shard_set: ShardSet, cells: DecodedCache):
    """One bit is enough; images are read in its place."""
    expected = evaluated(with_features(cells, "source"), shard_set)
    (path,) = files(cells)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))

    row = evaluated(with_features(cells, "source"), shard_set)

    assert not row.machine.from_features
    assert outcome(expected) == outcome(row)
    assert good == path.read_bytes()


def test_features_that_do_not_fit_are_not_kept(shard_set: ShardSet, tmp_path: Path):
    """The evaluation goes on without them."""
    cells = DecodedCache(folder=tmp_path / "decoded", limit_bytes=100)

    assert not evaluated(with_features(cells, "source"), shard_set).machine.from_features
    assert not files(cells)


def test_features_that_do_not_fit_take_no_memory():
    """Not while they are computed either."""
    method = build("source", small_model(), num_classes=3)
    head = find_head(method)
    assert head is not None
    with capturing(method, head, limit_bytes=2 * 6 * 16 * 4) as capture:
        method.predict(torch.rand(6, 3, 32, 32))
        assert 1 == len(capture.batches)
        for _ in range(2):
            method.predict(torch.rand(6, 3, 32, 32))

    assert not capture.batches
    assert capture.features() is None
    assert not head._forward_hooks
    assert not method.model._forward_hooks


def test_a_method_of_the_users_neither_keeps_nor_reads_features(shard_set: ShardSet, cells: DecodedCache):
    """What it inherits from `source` says nothing of what it does to images."""
    mine = "tta_pipeline_tests.methods.own_method:MIRRORED"
    expected = {method: outcome(evaluated(evaluator(method), shard_set)) for method in (mine, "source")}
    assert expected[mine] != expected["source"]

    for method in (mine, "source", mine):
        assert expected[method] == outcome(evaluated(with_features(cells, method), shard_set))


def test_features_that_were_read_are_the_last_to_go(cells: DecodedCache):
    """Whether or not the file system notes when a file was read."""
    first, second = (
        FeatureCacheEntry(
            cells, fingerprint=Fingerprint(parts={"number": number}), manifest_sha256="0" * 64, num_samples=4
        )
        for number in (1, 2)
    )
    for each in (first, second):
        each.write(torch.zeros(4, 4))
    os.utime(second.path, (2, 2))
    os.utime(first.path, (1, 1))
    assert first.read() is not None

    full = DecodedCache(folder=cells.folder, limit_bytes=2 * first.path.stat().st_size)
    third = FeatureCacheEntry(
        full, fingerprint=Fingerprint(parts={"number": 3}), manifest_sha256="0" * 64, num_samples=4
    )
    third.write(torch.zeros(4, 4))

    assert {first.path, third.path} == {*files(cells)}
