"""A model whose mean and std are not those of its training is found out by clean images."""

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import yaml
from click.testing import CliRunner, Result
from scipy.stats import binomtest

from tta_pipeline.cli import main
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.normalisation_fit import (
    Fit,
    Fits,
    Normalisation,
    check_normalisation,
    other_normalisations,
)
from tta_pipeline.loading.subset import draw_over_classes
from tta_pipeline.models.small_network import SmallConvNet
from tta_pipeline.models.trained_models import load_trained_model
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import SMALL, in_one_line

WRONG = {"mean": (1.0, 1.0, 1.0), "std": (0.01, 0.01, 0.01)}


@timm.models.register_model
def small_of_the_tests(pretrained: bool = False, num_classes: int = 10, **kwargs: object) -> SmallConvNet:  # noqa: FBT001, FBT002 - timm's interface
    """Return the network of the small benchmark, which no library has."""
    assert not pretrained
    return SmallConvNet(num_classes=num_classes, width=8)


def fits_of(data: Locations, *, limit: int = 1000, **declared: tuple[float, ...]) -> Fits:
    """Return what is found of the small benchmark's trained model, as if its mean and std were those declared."""
    model = replace(load_trained_model("cnn", data.source_model("small", "cnn")), **declared)
    return check_normalisation(
        model, ShardSet.open(data.shards("small", CLEAN)), image_size=32, limit=limit, seed=0,
        device=torch.device("cpu"), num_threads=1,
    )  # fmt: skip


def test_a_wrong_normalisation_is_told_from_the_usual_ones(data: Locations):
    """The errors, what fits best, and what to do stand in one sentence; the declared one is first in the table."""
    fits = fits_of(data, **WRONG)

    assert fits.better is fits.best
    assert fits.best.error < fits.declared.error / 2
    assert fits.declared.num_wrong - fits.best.num_wrong == fits.best.num_mended - fits.best.num_broken
    for found in (f"{fits.declared.error:.1%}", f"{fits.best.error:.1%}", "150", fits.best.normalisation.name):
        assert found in fits.verdict
    assert ["declared", "imagenet", "from -1 to 1", "from 0 to 1", "from 0 to 255", "cifar"] == [
        row[0] for row in fits.rows
    ]


def test_the_normalisation_of_the_training_fits(data: Locations):
    """A source model has measured its mean and std."""
    fits = fits_of(data)

    assert fits.better is None
    assert fits.best is fits.declared


def test_logits_that_are_not_finite_are_wrong(data: Locations):
    """Also of images of the first class, which a NaN is taken for."""
    assert 1.0 == fits_of(data, std=(0.0, 0.0, 0.0)).declared.error


def test_images_are_drawn_evenly_over_the_classes(data: Locations):
    """By the seed, and not the first ones."""
    index = ShardSet.open(data.shards("small", CLEAN)).index

    drawn, others = (draw_over_classes(index, 34, seed=seed) for seed in (0, 1))

    assert {3, 4} == set(Counter(index.labels[drawn].tolist()).values())
    assert 34 == len(set(drawn.tolist()))
    assert drawn.tolist() != others.tolist()
    assert sorted(drawn.tolist()) == drawn.tolist() != list(range(34))
    assert len(index) == len(draw_over_classes(index, 10_000, seed=0))
    assert 34 == fits_of(data, limit=34).declared.num_samples


def fit(name: str, *, num_wrong: int, num_mended: int = 0, num_broken: int = 0) -> Fit:
    """Return figures on a hundred images."""
    return Fit(
        normalisation=Normalisation(name=name, mean=(0.5,), std=(0.5,)), num_samples=100, num_wrong=num_wrong,
        num_mended=num_mended, num_broken=num_broken,
    )  # fmt: skip


def test_p_values_are_those_of_scipy():
    """Of its exact binomial test, which is McNemar's on the images that changed."""
    for mended, broken in ((20, 0), (9, 2), (5, 5), (0, 3)):
        one = fit("", num_wrong=50, num_mended=mended, num_broken=broken)

        assert one.p_value == pytest.approx(binomtest(broken, mended + broken, alternative="less").pvalue)


@pytest.mark.parametrize(("num_mended", "is_better"), [(8, False), (9, True)])
def test_a_few_mended_images_are_chance(num_mended: int, is_better: bool):  # noqa: FBT001
    """With four others, nothing is better before its p-value is below 1 % / 4."""
    declared = fit("declared", num_wrong=20)
    better = fit("better", num_wrong=20 - num_mended, num_mended=num_mended)

    fits = Fits(declared=declared, others=(better, *[fit("same", num_wrong=20)] * 3))

    assert is_better == (fits.better is better)
    assert is_better == ("which fits best" in fits.verdict)
    assert is_better != ("by more than chance" in fits.verdict)


def test_what_is_declared_is_not_tried_again():
    """Rounded otherwise it is the same; CIFAR's values are tried on small images only."""
    imagenet = Normalisation(name="declared", mean=(0.4850, 0.456, 0.406), std=(0.229, 0.2241, 0.225))

    assert ["from -1 to 1", "from 0 to 1", "from 0 to 255"] == [
        each.name for each in other_normalisations(imagenet, image_size=224)
    ]
    assert "cifar" in {each.name for each in other_normalisations(imagenet, image_size=32)}


def write_benchmark(data: Locations, **declared: tuple[float, ...]) -> None:
    """Write the small benchmark with its model as a file of the user's."""
    path = data.source_model("small", "cnn")
    trained = load_trained_model("cnn", path)
    model = {
        "kind": "checkpoint", "library": "timm", "architecture": "small_of_the_tests", "path": str(path),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "mean": trained.mean, "std": trained.std, **declared,
    }  # fmt: skip
    content = yaml.safe_load(SMALL)
    content["models"]["mine"] = json.loads(json.dumps(model))
    data.benchmark_files.mkdir(exist_ok=True)
    (data.benchmark_files / "small.yaml").write_text(yaml.safe_dump(content))


def asked(data: Locations, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    """Return what the verb answers."""
    monkeypatch.setenv("TTA_DATA_ROOT", str(data.root))
    return CliRunner().invoke(main, ["models", "check", *arguments], catch_exceptions=False)


def test_the_verb_prints_a_table_and_a_sentence(data: Locations, monkeypatch: pytest.MonkeyPatch):
    """Status 1 if another normalisation is better; a trained model can be asked about too."""
    write_benchmark(data, **WRONG)

    wrong = asked(data, monkeypatch, "small", "mine", "--json", "--limit", "50")
    trained = asked(data, monkeypatch, "small", "cnn", "--quiet", "--seed", "3", "--device", "cpu")

    assert (1, 0) == (wrong.exit_code, trained.exit_code), wrong.output + trained.output
    rows = json.loads(wrong.stdout)
    assert {50} == {row["num_samples"] for row in rows}
    assert rows[0]["clean_error"] > min(row["clean_error"] for row in rows)
    assert "mine: error" in wrong.stderr
    assert "" == trained.stderr
    assert "clean error" in trained.stdout


def test_without_clean_images_the_way_out_is_said(data: Locations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And a model that is not in the file is named with those that are."""
    write_benchmark(data)
    text = (data.benchmark_files / "small.yaml").read_text()
    content = yaml.safe_load(text) | {"images": {"kind": "folder", "root": str(tmp_path)}}
    del content["models"]["cnn"], content["experiments"]["tent"]
    (data.benchmark_files / "bare.yaml").write_text(yaml.safe_dump(content))

    bare, unknown = (asked(data, monkeypatch, *which) for which in (("bare", "mine"), ("small", "none")))

    assert (1, 1) == (bare.exit_code, unknown.exit_code)
    assert "bare has no clean images" in bare.stderr
    assert "small has no model 'none'; expected one of cnn, mine" in in_one_line(unknown.stderr)
