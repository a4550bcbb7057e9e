"""What holds for every method, whatever it does; a new method is covered by being in `METHODS`."""

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

import tta_pipeline as tta
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.errors import AdaptationError
from tta_pipeline.evaluation.one_pass import run_pass
from tta_pipeline.loading.joined_sets import UNKNOWN_LABEL, JoinedSets
from tta_pipeline.loading.reader import Batch
from tta_pipeline.methods import METHODS, build
from tta_pipeline.methods.entry import Hyperparameters
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.stateful import Stateful
from tta_pipeline.util.source_code import load_reference
from tta_pipeline_tests.methods.models import (
    ADDED,
    MODELS,
    NUM_CLASSES,
    REFUSALS,
    batch_norm_model,
    batches,
    contrasts,
    source_batches,
    suited,
    surer,
    vit_model,
)
from tta_pipeline_tests.methods.remembering import Remembering

QUICK: dict[str, dict] = {
    "ttaug": {"num_augmentations": 3},
    "memo": {"num_augmentations": 3},
    "cotta": {"num_augmentations": 3},
    "rotta": {"memory_size": 20, "update_frequency": 5},
    "sotta": {"memory_size": 8, "update_frequency": 5},
    "petta": {"memory_size": 20, "update_frequency": 5},
    "adacontrast": {"queue_size": 16, "min_seen": 6, "num_neighbors": 5, "teacher_momentum": 0.5, "lr": 0.1},
    "rmt": {"num_samples_warm_up": 24},
    "rdumb": {"reset_every": 2},
    "foa": {"population_size": 6},
    "dpcore": {"steps": 5},
    **{method: {"num_views": 24} for method in ("zero", "mta", "boostadapter", "tpt", "tps", "ctpt")},
}
"""What makes a slow method quick, and each thing that it does happen within a few small batches."""
EAGER: dict[str, dict] = {
    "eta": {"e_margin": 0.9, "d_margin": 0.994},
    "eata": {"e_margin": 0.9, "d_margin": 0.994},
    "rdumb": {"e_margin": 0.9, "d_margin": 0.994},
    "asr": {"e_margin": 0.9, "d_margin": 0.994, "asr_alpha": 0.6, "asr_mu_0": 0.9, "asr_lambda_r": 0.1, "lr": 0.05},
    "sar": {"e_margin": 0.9, "reset_margin": 0.9, "lr": 0.2},
    "cmf": {"q": 30, "lr": 0.1},
    "deyo": {"deyo_margin": 0.9, "plpd_threshold": 0.0},
    "sotta": {"threshold": 0.5, "lr": 0.05},
    "ctpt": {"dispersion_weight": 0.01},
    "imse": {"e_margin": 0.9, "shift_threshold": 0.005, "lr": 0.05},
    "zoa": {"min_domain_batch": 2, "shift_threshold": 0.005, "max_domains": 1, "lr": 0.01},
}
"""What lets a method choose some samples, and lets everything that it keeps make a difference within a few batches."""
NEED_BATCH_NORM = {name for name, entry in METHODS.items() if entry.layers == "batch norm"}


def built(method: str, model: nn.Module | None = None, **settings) -> Method:
    """Return *method* on *model*, by default one that it can use, with source data if it uses some."""
    if METHODS[method].source_data != "unused":
        settings = {"source_data": source_batches(), **settings}
    settings = {"preset": "cifar", **QUICK.get(method, {}), **EAGER.get(method, {}), **settings}
    return build(method, model or suited(method), num_classes=NUM_CLASSES, **settings)


def stream(*, seed: int = 1) -> list[torch.Tensor]:
    """Return a few small batches, the last one smaller."""
    full = contrasts(seed=seed, num_batches=3, batch_size=6)
    last = contrasts(seed=seed + 100, num_batches=1, batch_size=3)
    return full + last


def predictions(method: Method, images: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the logits for each batch."""
    return [method.predict(batch) for batch in images]


class Run(NamedTuple):
    """The logits of images, the images behind them, and what was counted; not to be changed."""

    logits: list[torch.Tensor]
    images: list[torch.Tensor]
    counted: dict[str, int]


@cache
def undisturbed(method: str) -> Run:
    """Return the run over `stream` of a fresh *method* of seed 3."""
    return run_of(built(method, seed=3), stream())


def run_of(method: Method, images: list[torch.Tensor]) -> Run:
    """Return the run of *method* over *images*."""
    return Run(predictions(method, images), images, counters(method))


def counters(method: Method) -> dict[str, int]:
    """Return all that *method* counts."""
    return {name: value for name, value in vars(method).items() if name.startswith("num_")} | {
        "num_nonfinite_batches": method.num_nonfinite_batches
    }


def assert_same(expected: list[torch.Tensor], found: list[torch.Tensor]):
    """Logits are equal, bit for bit."""
    torch.testing.assert_close(expected, found, rtol=0, atol=0)


def assert_logits(run: Run):
    """Each image has finite float logits without a gradient."""
    for images, logits in zip(run.images, run.logits, strict=True):
        assert (len(images), NUM_CLASSES) == logits.shape
        assert torch.float32 == logits.dtype
        assert logits.isfinite().all()
        assert not logits.requires_grad
    assert 0 == run.counted["num_nonfinite_batches"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["suited", "ln", "gn"])
def test_predictions_are_logits_or_the_model_is_refused(method: str, model: str):
    """With batch, layer and group norm: finite float logits without a gradient, or an error that names the lack."""
    if model == "suited":
        assert_logits(undisturbed(method))
        return
    if method in NEED_BATCH_NORM:
        with pytest.raises(AdaptationError, match=rf"\bbatch norm\b.*\b{method}\b"):
            built(method, surer(MODELS[model]()))
        return
    if (needs := METHODS[method].needs) != "any":
        with pytest.raises(AdaptationError, match=REFUSALS[needs].format(method)):
            built(method, surer(MODELS[model]()))
        return
    assert_logits(run_of(built(method, surer(MODELS[model]())), stream()[1:]))


@pytest.mark.parametrize("method", METHODS)
def test_counters_count(method: str):
    """Every image is run forward at least once; what runs backward is counted with its updates and samples."""
    fresh, counted = built(method), undisturbed(method).counted
    assert (0, 0, 0, 0) == (fresh.num_forwards, fresh.num_backwards, fresh.num_updates, fresh.num_resets)

    assert counted["num_forwards"] >= 21
    takes_steps = fresh.hyperparameters.takes_gradients
    assert all(takes_steps == (counted[each] > 0) for each in ("num_updates", "num_backwards", "num_adapted_samples"))
    assert counted["num_adapted_samples"] <= counted["num_backwards"]
    assert (counted["num_backwards"] > 0) == (METHODS[method].backwards > 0)


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if entry.can_freeze])
def test_a_frozen_method_learns_nothing(method: str):
    """Each batch is one more forward pass, whose logits are those after the last update, if these count."""
    frozen, images = built(method), stream()[0]
    predicted, before = frozen.predict(images), frozen.state_dict()
    found, after = frozen.predict_unadapted(images), frozen.state_dict()

    changed = {"num_forwards": before["num_forwards"] + len(images)}
    torch.testing.assert_close({**before, **changed}, after, rtol=0, atol=0)
    assert not METHODS[method].predicts_frozen or torch.equal(predicted, found)


class _OpenBatches:
    """The images of `stream`, in one buffer, as a stream whose every third image is unknown, in an order of its own."""

    batch_size = 6

    def __init__(self) -> None:
        sizes = [len(images) for images in stream()]
        num_unknown = sum(sizes) // 3
        self.order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(0)).numpy()
        sets = [SimpleNamespace(index=range(size)) for size in (sum(sizes) - num_unknown, num_unknown)]
        self.shard_set = JoinedSets(sets=tuple(sets), num_unknown_sets=1)  # type: ignore[arg-type]
        self._ends = np.cumsum(sizes).tolist()

    def __iter__(self) -> Iterator[Batch]:
        buffer = torch.empty_like(stream()[0])
        for end, batch in zip(self._ends, stream(), strict=True):
            images = buffer[: len(batch)].copy_(batch)
            indices = self.order[end - len(images) : end]
            labels = np.where(self.shard_set.set_numbers(indices) == 1, UNKNOWN_LABEL, indices % NUM_CLASSES)
            yield Batch(images, torch.from_numpy(labels), indices)


@pytest.mark.parametrize("method", METHODS)
def test_every_sample_is_scored_once_known_and_unknown(method: str):
    """In the order of the stream, whether an image belongs to a class or not; the method is not told which.

    Nothing but the seed decides: not the stream's buffer, nor the global random state, which stays as it was.
    """
    open_stream, model, expected = _OpenBatches(), suited(method), undisturbed(method).logits
    torch.manual_seed(99)
    state = torch.get_rng_state()
    driver = Remembering(built(method, model, seed=3))

    with torch.no_grad():
        found = run_pass(driver, open_stream, device=torch.device("cpu"), precision="fp32", advance=lambda _: None)  # type: ignore[arg-type]
        assert not torch.is_grad_enabled()

    assert open_stream.order.tolist() == found.samples.indices.tolist()
    assert sorted(open_stream.order.tolist()) == list(range(21))
    assert (found.samples.labels == UNKNOWN_LABEL).sum() == 7
    assert found.samples.predictions.tolist() == torch.cat(expected).argmax(1).tolist()
    assert np.isfinite(found.samples.known_scores).all()
    assert_same(expected, driver.logits)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("method", METHODS)
def test_reset_returns_to_the_moment_after_building(method: str):
    """The same batches give the same logits after a reset, random draws included, whatever came between.

    A batch of NaN stops nothing; it is counted.
    """
    adapted = built(method, seed=3)
    predictions(adapted, [*stream(seed=2), torch.full_like(stream()[0], math.nan)])
    assert adapted.num_nonfinite_batches >= 1
    resets = adapted.num_resets
    adapted.reset()
    assert resets + 1 == adapted.num_resets

    assert_same(undisturbed(method).logits, predictions(adapted, stream()))


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_goes_on_to_the_last_bit(method: str, tmp_path: Path):
    """Two batches, a file, a method built anew, two more: logits and counters are those of a run without interruption.

    The state is a copy, which no prediction changes after it was taken or put back. What was put back is forgotten by a
    reset, like anything else.
    """
    expected, _, counted = undisturbed(method)
    killed, resumed = (built(method, seed=3) for _ in range(2))
    predictions(killed, stream()[:2])
    state = killed.state_dict()
    predictions(killed, stream()[2:])
    killed.load_state_dict(state)
    assert_same(expected[2:], predictions(killed, stream()[2:]))
    torch.save(state, tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", map_location="cpu", weights_only=True))

    assert_same(expected[2:], predictions(resumed, stream()[2:]))
    assert counted == counters(resumed)
    resumed.reset()
    assert_same(expected, predictions(resumed, stream()))


@pytest.mark.parametrize(
    ("method", "pieces"),
    [
        ("tent", {"loss": "come", "reset": "asr", "asr_alpha": 0.6, "asr_mu_0": 0.9}),
        ("sar", {"loss": "gce", "reset": "asr", "asr_alpha": 0.6, "asr_mu_0": 0.9, "reset_margin": 0.0}),
        ("eata", {"loss": "come", "params": "all", "reset": "periodic", "reset_every": 3}),
        ("tent", {"loss": "come", "params": "lora", "reset": "asr", "asr_alpha": 0.6, "asr_mu_0": 0.9}),
        ("sar", {"params": "lora", "lora_rank": 2, "reset_margin": 2.0}),
        ("eata", {"loss": "gce", "params": "adapters", "adapter_size": 4, "reset": "periodic", "reset_every": 3}),
    ],
)
def test_pieces_that_combine_are_kept_together(method: str, pieces: dict):
    """A killed run of a combination goes on to the last bit, resets itself, and forgets all at a reset, in bf16 too."""
    with torch.autocast("cpu", torch.bfloat16):
        model = vit_model if pieces.get("params") in ADDED else lambda: None
        uninterrupted, killed, resumed = (built(method, model(), seed=3, **pieces) for _ in range(3))
        expected = predictions(uninterrupted, stream())
        predictions(killed, stream()[:2])
        resumed.load_state_dict(killed.state_dict())
        assert_same(expected[2:], predictions(resumed, stream()[2:]))
        assert counters(uninterrupted) == counters(resumed)
        assert uninterrupted.num_resets > 0
        resumed.reset()
        assert_same(expected, predictions(resumed, stream()))


class Counts(Stateful):
    """Keeps numbers in lists."""

    state_attrs = ("counts",)

    def __init__(self) -> None:
        self.counts: list[Any] = [1, [2.5, None]]


def test_numbers_in_lists_are_restored():
    """As those outside of lists, so that a user's method may keep them there."""
    kept = Counts()
    state = kept.state_dict()
    kept.counts[0] = kept.counts[1][1] = 7
    kept.load_state_dict(state)

    assert [1, [2.5, None]] == kept.counts


def test_the_state_of_another_method_or_model_is_refused():
    """The error says so, and nothing is half put back in silence: a tensor of one number fits none of three."""
    kept = Counts()
    kept.counts = [torch.zeros(3)]
    with pytest.raises(ValueError, match=r"\(1,\).*\(3,\)"):
        kept.load_state_dict({"counts": [torch.ones(1)]})
    with pytest.raises(AdaptationError, match="'_seen'"):
        built("eta").load_state_dict(built("tent").state_dict())
    with pytest.raises(AdaptationError, match=r"\btent\b"):
        built("tent", surer(MODELS["ln"]())).load_state_dict(built("tent", surer(MODELS["gn"]())).state_dict())


@pytest.mark.parametrize("method", METHODS)
def test_images_are_not_written_to(method: str):
    """The stream's buffers belong to the stream."""
    images = undisturbed(method).images

    assert all(torch.equal(before, after) for before, after in zip(stream(), images, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_one_work_or_are_refused(method: str):
    """A stream of single images gives finite logits, or is refused while the method is built."""
    if (least := METHODS[method].min_batch_size) > 1:
        with pytest.raises(AdaptationError, match=rf"\b{method}\b.*\bbatch_size\b\D*\b1\b\D*\b{least}\b"):
            built(method, batch_size=1)
        return
    logits = predictions(built(method, batch_size=1), batches(batch_size=1))
    assert all(row.isfinite().all() for row in logits)


@pytest.mark.parametrize("method", METHODS)
def test_a_single_last_image_is_predicted(method: str):
    """A stream may end with a batch of one, whatever its batch size."""
    *_, logits = predictions(built(method, batch_size=6), [stream()[0], *batches(num_batches=1, batch_size=1)])

    assert logits.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_enough(method: str):
    """Under autocast, images of half precision are predicted and adapted on."""
    with torch.autocast("cpu", torch.bfloat16):
        found = predictions(built(method), [images.bfloat16() for images in stream()[1:]])

    assert all(logits.isfinite().all() for logits in found)


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if entry.source_data == "required"])
def test_missing_source_data_is_refused(method: str):
    """A method that cannot do without clean batches says so while it is built."""
    with pytest.raises(AdaptationError, match=rf"\b{method}\b.*\bsource_data\b"):
        built(method, source_data=None)


@pytest.mark.parametrize("preset", ["imagenet", "cifar"])
@pytest.mark.parametrize("method", METHODS)
def test_benchmark_files_are_told_what_can_be_set(method: str, preset: str):
    """The presets are valid; an unknown hyperparameter is refused with the choices, where the file is read."""
    settings = {"model": "m", "method": method, "preset": preset}
    known = list(Experiment.model_validate(settings).configured_hyperparameters().model_dump())

    with pytest.raises(ValidationError, match=rf"\b{method}\b[^\[]*\blearning_rate\b") as error:
        Experiment.model_validate({**settings, "hyperparameters": {"learning_rate": 1}})
    assert "docs/reference/methods.md" in str(error.value) or all(name in str(error.value) for name in known)


@pytest.mark.parametrize("method", METHODS)
def test_hyperparameters_out_of_range_are_refused(method: str):
    """No number is taken that is none, and none of the wrong sign where that makes no sense."""
    settings = METHODS[method].presets["imagenet"].model_dump()
    for name, value in settings.items():
        if isinstance(value, float):
            with pytest.raises(ValueError, match=name):
                METHODS[method].configure("imagenet", {name: math.nan})


def test_a_method_outside_the_package_is_named_by_import_path():
    """Its entry is found, configured and built like one of the package's own."""
    entry = "tta_pipeline_tests.methods.own_method:LAST_CLASS"
    adapted = build(entry, batch_norm_model(), num_classes=NUM_CLASSES, certainty=3.0)

    assert [4] * 12 == adapted.predict(batches()[0]).argmax(1).tolist()


@pytest.mark.parametrize("path", ["nowhere:METHOD", "math:pi", "math:nothing", "math:", ":x"])
def test_an_import_path_without_a_method_is_refused(path: str):
    """The error says what was found at the path and what would do."""
    with pytest.raises(AdaptationError, match=rf"'{path}'.*\b{len(METHODS)}\b.*<module>:<name>"):
        build(path, batch_norm_model(), num_classes=NUM_CLASSES)


def test_the_class_of_a_method_is_not_its_entry():
    """The error calls it a class, whatever its metaclass is."""
    with pytest.raises(AdaptationError, match=r"own_method:LastClass'.*\bclass\b"):
        build("tta_pipeline_tests.methods.own_method:LastClass", batch_norm_model(), num_classes=NUM_CLASSES)


GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def test_the_documented_method_of_ones_own_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The guide's method with state adapts and is put back by a reset."""
    example = (GUIDES / "own-method.md").read_text().split("```python\n")[-1].split("```")[0]
    (tmp_path / "my_methods.py").write_text(example)
    monkeypatch.syspath_prepend(str(tmp_path))
    adapted = build("my_methods:PRIOR", batch_norm_model(), num_classes=NUM_CLASSES, weight=0.5)
    first = predictions(adapted, stream())
    adapted.reset()

    assert_same(first, predictions(adapted, stream()))
    assert not torch.equal(first[0], adapted.predict(stream()[0]))


def test_the_documented_loop_adapts_and_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The guide's loop runs as printed, and its last line leaves a method that predicts as a fresh one."""
    blocks = (GUIDES / "python.md").read_text().split("```python\n")
    (example,) = (block.split("```")[0] for block in blocks if "state_dict" in block)
    monkeypatch.chdir(tmp_path)
    cell = SimpleNamespace(batches=lambda **_: [(images, None) for images in stream()])
    names = {"model": batch_norm_model(), "cell": cell, "tta": tta}
    exec(example.replace("num_classes=10", f"num_classes={NUM_CLASSES}"), names)
    fresh = build("tent", batch_norm_model(), num_classes=NUM_CLASSES, preset="cifar")

    assert_same(predictions(fresh, stream()), predictions(names["method"], stream()))


CHOOSING = list(
    dict.fromkeys(type(each) for entry in METHODS.values() for each in entry.presets.values() if each.code_of_choices)
)


@pytest.mark.parametrize("settings", CHOOSING, ids=lambda settings: settings.__name__)
def test_code_of_choices_names_choices_and_code(settings: type[Hyperparameters]):
    """Each key is a hyperparameter with this choice, and each reference can be imported."""
    for name, codes in settings.code_of_choices.items():
        assert set(codes) < set(get_args(settings.model_fields[name].annotation))
        assert all(callable(load_reference(code)) for code in codes.values())


@pytest.mark.parametrize("code", ["no_such_module:Loss", "tta_pipeline.methods.losses:no_such_loss"])
def test_code_of_a_users_choice_that_cannot_be_imported_is_refused(code: str):
    """The error is of this project, and names the hyperparameter and the code."""

    class Own(Hyperparameters):
        """Of a user's method."""

        code_of_choices = {"loss": {"mine": code}}  # noqa: RUF012 - a user leaves the annotation out
        loss: str = "mine"

    with pytest.raises(AdaptationError, match=rf"\bloss\b.*'mine'.*'{code}'"):
        Own().import_choice("loss")
