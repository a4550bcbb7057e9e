"""What holds for every method, whatever it does; a new method is covered by being in `METHODS`."""

import math

import pytest
import torch
from torch import nn

from tta_pipeline.adaptation import METHODS, build
from tta_pipeline.adaptation.method import GradientMethod, Method
from tta_pipeline.benchmarks.spec import Experiment
from tta_pipeline.errors import AdaptationError
from tta_pipeline_tests.adaptation.models import MODELS, NUM_CLASSES, batch_norm_model, batches, source_batches, surer

QUICK: dict[str, dict] = {
    "ttaug": {"num_augmentations": 3},
    "memo": {"num_augmentations": 3},
    "cotta": {"num_augmentations": 3},
    "rotta": {"memory_size": 8, "update_frequency": 5},
    "adacontrast": {"queue_size": 16},
    "rmt": {"num_samples_warm_up": 24},
    "rdumb": {"reset_every": 2},
}
"""What makes a slow method quick, and each thing that it does happen within a few small batches."""
NEED_BATCH_NORM = {"norm", "bn_alpha", "bn_ema", "rotta"}


def built(method: str, model: nn.Module | None = None, **settings) -> Method:
    """Return *method* on *model*, by default one with batch norm, with source data if it uses some."""
    if METHODS[method].source_data != "unused":
        settings = {"source_data": source_batches(), **settings}
    settings = {"preset": "cifar", **QUICK.get(method, {}), **settings}
    return build(method, model or surer(batch_norm_model()), num_classes=NUM_CLASSES, **settings)


def stream(*, seed: int = 1) -> list[torch.Tensor]:
    """Return a few small batches, the last one smaller."""
    full, last = batches(seed=seed, num_batches=3, batch_size=6), batches(seed=seed + 100, num_batches=1, batch_size=3)
    return full + last


def predictions(method: Method, images: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the logits for each batch."""
    return [method.predict(batch) for batch in images]


def assert_same(expected: list[torch.Tensor], found: list[torch.Tensor]):
    """Logits are equal, bit for bit."""
    torch.testing.assert_close(expected, found, rtol=0, atol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_predictions_are_logits_or_the_model_is_refused(method: str, model: str):
    """With batch, layer and group norm: finite float logits without a gradient, or an error that names the lack."""
    if model != "bn" and method in NEED_BATCH_NORM:
        with pytest.raises(AdaptationError, match="no batch norm layer"):
            built(method, surer(MODELS[model]()))
        return
    adapted = built(method, surer(MODELS[model]()))
    for images, logits in zip(stream(), predictions(adapted, stream()), strict=True):
        assert (len(images), NUM_CLASSES) == logits.shape
        assert torch.float32 == logits.dtype
        assert logits.isfinite().all()
        assert not logits.requires_grad
    assert 0 == adapted.num_nonfinite_batches


@pytest.mark.parametrize("method", METHODS)
def test_counters_count(method: str):
    """Every image is run forward at least once; what runs backward is counted with its updates and samples."""
    adapted = built(method)
    counted = (adapted.num_forwards, adapted.num_backwards, adapted.num_updates, adapted.num_resets)
    assert (0, 0, 0, 0) == counted
    predictions(adapted, stream())

    assert adapted.num_forwards >= 21
    assert (adapted.num_updates > 0) == (adapted.num_backwards > 0)
    assert adapted.num_adapted_samples <= adapted.num_backwards
    assert isinstance(adapted, GradientMethod) or adapted.num_backwards == 0


@pytest.mark.parametrize("method", METHODS)
def test_reset_returns_to_the_moment_after_building(method: str):
    """The same batches give the same logits after a reset, random draws included, whatever came between."""
    adapted = built(method, seed=3)
    first = predictions(adapted, stream())
    resets = adapted.num_resets
    adapted.reset()
    assert resets + 1 == adapted.num_resets
    predictions(adapted, stream(seed=2))
    adapted.reset()

    assert_same(first, predictions(adapted, stream()))


@pytest.mark.parametrize("method", METHODS)
def test_nothing_but_the_seed_decides(method: str):
    """Two methods built alike agree, whatever the global random state is, and leave it and gradients as they were."""
    first = predictions(built(method, seed=3), stream())
    model = surer(batch_norm_model())
    torch.manual_seed(99)
    state = torch.get_rng_state()
    other = built(method, model, seed=3)
    with torch.no_grad():
        second = predictions(other, stream())
        assert not torch.is_grad_enabled()

    assert torch.is_grad_enabled()
    assert torch.equal(state, torch.get_rng_state())
    assert_same(first, second)


@pytest.mark.parametrize("method", METHODS)
def test_images_are_not_written_to(method: str):
    """The stream's buffers belong to the stream."""
    images = stream()
    predictions(built(method), images)

    assert all(torch.equal(before, after) for before, after in zip(stream(), images, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_memory_does_not_depend_on_the_buffers_of_the_stream(method: str):
    """Batches that come in one reused buffer give the logits of batches that each have their own."""
    buffer = torch.empty_like(stream()[0])
    reused = built(method)
    found = [reused.predict(buffer[: len(batch)].copy_(batch)).clone() for batch in stream()]

    assert_same(predictions(built(method), stream()), found)


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_one_work_or_are_refused(method: str):
    """A stream of single images gives finite logits, or is refused while the method is built."""
    if METHODS[method].min_batch_size > 1:
        with pytest.raises(AdaptationError, match="batch_size is 1; expected at least"):
            built(method, batch_size=1)
        return
    logits = predictions(built(method, batch_size=1), batches(batch_size=1))
    assert all(row.isfinite().all() for row in logits)


@pytest.mark.parametrize("method", METHODS)
def test_a_single_last_image_is_predicted(method: str):
    """A stream may end with a batch of one, whatever its batch size."""
    *_, logits = predictions(built(method, batch_size=6), [*stream(), *batches(num_batches=1, batch_size=1)])

    assert logits.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_enough(method: str):
    """Under autocast, images of half precision are predicted and adapted on."""
    with torch.autocast("cpu", torch.bfloat16):
        found = predictions(built(method), [images.bfloat16() for images in stream()])

    assert all(logits.isfinite().all() for logits in found)


@pytest.mark.parametrize("method", METHODS)
def test_images_that_are_no_numbers_are_counted_and_a_reset_recovers(method: str):
    """A batch of NaN stops nothing; it is counted, and leaves nothing behind a reset."""
    adapted = built(method)
    expected = predictions(adapted, stream())
    adapted.reset()
    predictions(adapted, [torch.full_like(images, math.nan) for images in stream()])
    assert adapted.num_nonfinite_batches >= 1
    adapted.reset()

    assert_same(expected, predictions(adapted, stream()))


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if entry.source_data == "required"])
def test_missing_source_data_is_refused(method: str):
    """A method that cannot do without clean batches says so while it is built."""
    with pytest.raises(AdaptationError, match="no source_data; expected clean batches"):
        built(method, source_data=None)


@pytest.mark.parametrize("preset", ["imagenet", "cifar"])
@pytest.mark.parametrize("method", METHODS)
def test_benchmark_files_are_told_what_can_be_set(method: str, preset: str):
    """The presets are valid; an unknown hyperparameter is refused with the choices, where the file is read."""
    settings = {"model": "m", "method": method, "preset": preset}
    known = list(Experiment.model_validate(settings).configured().model_dump())

    with pytest.raises(ValueError, match="unknown field learning_rate; expected one of") as error:
        Experiment.model_validate({**settings, "hyperparameters": {"learning_rate": 1}})
    assert all(name in str(error.value) for name in known)


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
    entry = "tta_pipeline_tests.adaptation.own_method:LAST_CLASS"
    adapted = build(entry, batch_norm_model(), num_classes=NUM_CLASSES, certainty=3.0)

    assert [4] * 12 == adapted.predict(batches()[0]).argmax(1).tolist()


@pytest.mark.parametrize("path", ["nowhere:METHOD", "math:pi", "math:nothing", "math:", ":x"])
def test_an_import_path_without_a_method_is_refused(path: str):
    """The error says what was found at the path and what would do."""
    with pytest.raises(AdaptationError, match=r"expected one of source, .* or <module>:<name> of a MethodEntry"):
        build(path, batch_norm_model(), num_classes=NUM_CLASSES)
