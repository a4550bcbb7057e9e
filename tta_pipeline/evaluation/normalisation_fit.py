"""A model's errors on clean images under its own mean and std, and under other usual values.

Wrong values raise no error but reduce accuracy: the first ViT rows of SAR (github.com/mr-eggplant/SAR, issue 5)
used ImageNet's values for a model trained with mean and std 0.5.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import bdtr

from tta_pipeline.evaluation.device.arithmetic import arithmetic
from tta_pipeline.loading import subset
from tta_pipeline.loading.device import as_floats, move_to_device, pins_memory
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import order_of
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.plurals import count_of

LEVEL = 0.01
"""Significance level: the largest probability of calling another normalisation better if all are equally good."""
COLUMNS = ("normalisation", "mean", "std", "num_samples", "clean_error", "p_value")
"""Columns of `Fits.rows`."""
_BATCH_SIZE = 64
_MAX_CIFAR_SIZE = 64
"""Height and width, in pixels, up to which CIFAR's values are tried too."""
_TOLERANCE = 0.01
"""Largest difference between means or stds that count as equal, as a share of the std."""


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """Mean and std by which a network's input is normalised."""

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        return f"mean [{_text(self.mean)}] and std [{_text(self.std)}] ({self.name})"

    def is_like(self, other: "Normalisation") -> bool:
        """Return whether both have the same values up to rounding."""
        difference = np.subtract((self.mean, self.std), (other.mean, other.std)) / self.std
        return bool((abs(difference) <= _TOLERANCE).all())


_USUAL = (
    Normalisation(name="imagenet", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    Normalisation(name="from -1 to 1", mean=(0.5,) * 3, std=(0.5,) * 3),
    Normalisation(name="from 0 to 1", mean=(0.0,) * 3, std=(1.0,) * 3),
    Normalisation(name="from 0 to 255", mean=(0.0,) * 3, std=(1 / 255,) * 3),
)
_CIFAR = Normalisation(name="cifar", mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The error on clean images under one normalisation, compared with the declared one."""

    normalisation: Normalisation
    num_samples: int
    num_wrong: int
    num_mended: int
    """Images that are right here and wrong under the declared normalisation."""
    num_broken: int
    """Images that are wrong here and right under the declared normalisation."""

    @property
    def error(self) -> float:
        """Share of wrong images."""
        return self.num_wrong / self.num_samples

    @property
    def p_value(self) -> float:
        """Probability of no more broken images if neither is better: McNemar's exact one-sided test (1947)."""
        return float(bdtr(self.num_broken, self.num_mended + self.num_broken, 0.5))


@dataclass(frozen=True, kw_only=True)
class Fits:
    """A model on clean images under its declared normalisation and the usual ones."""

    declared: Fit
    others: tuple[Fit, ...]

    @property
    def best(self) -> Fit:
        """The fit with the lowest error; the declared one wins a tie."""
        return min((self.declared, *self.others), key=lambda fit: fit.num_wrong)

    @property
    def better(self) -> Fit | None:
        """The best fit if it beats the declared one by more than chance; None otherwise.

        Its p-value must be below `LEVEL` divided by the number of other normalisations (Bonferroni).
        """
        is_better = self.best is not self.declared and self.best.p_value < LEVEL / len(self.others)
        return self.best if is_better else None

    @property
    def verdict(self) -> str:
        """Which normalisation fits best, in a sentence."""
        best = f"{self.best.error:.1%} with {self.best.normalisation}"
        error = f"error {self.declared.error:.1%} on {count_of(self.declared.num_samples, 'clean image')}"
        if self.best is self.declared:
            return f"{error}; its mean and std fit best"
        if self.better is None:
            return f"{error}; no other normalisation is better by more than chance, at best {best}"
        return f"{error}, but {best}, which fits best: set mean and std of the model to its training's values"

    @property
    def rows(self) -> tuple[tuple[object, ...], ...]:
        """`COLUMNS` of each normalisation, the declared one first."""
        return tuple(
            (
                each.normalisation.name, _text(each.normalisation.mean), _text(each.normalisation.std),
                each.num_samples, each.error, None if each is self.declared else float(f"{each.p_value:.2g}"),
            )
            for each in (self.declared, *self.others)
        )  # fmt: skip


def _text(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def other_normalisations(declared: Normalisation, *, image_size: int) -> tuple[Normalisation, ...]:
    """Return the usual normalisations for images of *image_size* pixels that differ from *declared*."""
    usual = (*_USUAL, _CIFAR) if image_size <= _MAX_CIFAR_SIZE else _USUAL
    return tuple(each for each in usual if not each.is_like(declared))


def check_normalisation(
    model: LoadedModel,
    shard_set: ShardSet,
    *,
    image_size: int,
    limit: int,
    seed: int,
    device: torch.device,
    num_threads: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Fits:
    """Return the errors of *model* on *limit* images of *shard_set*, drawn evenly over its classes by *seed*.

    Raises:
        ManifestError: the shards do not match the manifest.
        StreamError: a sample cannot be read or decoded.
    """
    shard_set.require_intact()
    declared = Normalisation(name="declared", mean=model.mean, std=model.std)
    tried = (declared, *other_normalisations(declared, image_size=image_size))
    index = shard_set.index
    drawn = subset.draw_over_classes(index, limit, seed=seed)
    stream = Stream(
        shard_set=shard_set,
        order=order_of(index, drawn),
        batch_size=_BATCH_SIZE,
        image_size=image_size,
        num_threads=num_threads,
        pin_memory=pins_memory(device),
    )
    is_right = np.concatenate(list(_predict_correctness(model, tried, stream, device, advance)), axis=1)
    first, *others = (
        Fit(
            normalisation=each,
            num_samples=len(drawn),
            num_wrong=int((~its).sum()),
            num_mended=int((its & ~is_right[0]).sum()),
            num_broken=int((~its & is_right[0]).sum()),
        )
        for each, its in zip(tried, is_right, strict=True)
    )
    return Fits(declared=first, others=tuple(others))


def _predict_correctness(
    model: LoadedModel,
    tried: Sequence[Normalisation],
    stream: Stream,
    device: torch.device,
    advance: Callable[[int], None],
) -> Iterator[np.ndarray[tuple[int, int], np.dtype[np.bool_]]]:
    """Yield for each batch whether each image is classified correctly under each normalisation, shape (T, B)."""
    network = model.make_network()
    models = [
        Normalized(network, mean=each.mean, std=each.std).eval().to(device).to(memory_format=torch.channels_last)
        for each in tried
    ]
    with torch.inference_mode(), arithmetic(device.type, "fp32"):
        for batch in move_to_device(stream, device):
            images, labels = as_floats(batch.images), batch.labels.to(device, non_blocking=True)
            logits = torch.stack([model.class_logits(each(images)) for each in models])
            # argmax alone gives class 0 for NaN.
            yield ((logits.argmax(2) == labels) & logits.isfinite().all(2)).cpu().numpy()
            advance(len(labels))
