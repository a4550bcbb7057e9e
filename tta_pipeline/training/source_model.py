"""Training of the source model."""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tta_pipeline.benchmarks.models import SmallNetwork, TrainedModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.models.small import SmallConvNet
from tta_pipeline.models.trained import SourceModelFacts, encoded_weights, facts_of_source_model, write_source_model
from tta_pipeline.shards.manifest import Manifest, ShardSet
from tta_pipeline.streaming.order import as_stored
from tta_pipeline.streaming.reader import Stream

TRAINING_VERSION = "2"


def train_source_model(
    path: Path, shard_set: ShardSet, settings: TrainedModel, *, image_size: int, say: Callable[[str], None]
) -> SourceModelFacts:
    """Train on the clean images of *shard_set* and save to *path*, unless the result of the same training is there."""
    fingerprint = _fingerprint(shard_set.manifest, settings)
    existing = facts_of_source_model(path)
    if existing is not None and existing.fingerprint == fingerprint:
        return existing
    started = time.perf_counter()
    images, labels = training_images(shard_set, image_size)
    mean, std = _channel_statistics(images)
    network = _train(images, labels, mean, std, settings, num_classes=len(shard_set.manifest.classes), say=say)
    weights = encoded_weights(network.network.state_dict())
    facts = SourceModelFacts(
        fingerprint=fingerprint,
        weights_sha256=hashlib.sha256(weights).hexdigest(),
        network=SmallNetwork(kind="small", width=settings.width),
        classes=shard_set.manifest.classes,
        mean=mean,
        std=std,
        num_samples=len(labels),
        train_error=_error(network, images, labels),
        wall_s=time.perf_counter() - started,
    )
    write_source_model(path, weights, facts)
    return facts


def require_trained_so(path: Path, manifest: Manifest, settings: TrainedModel) -> None:
    """Check that the model at *path* was trained on the images of *manifest* with *settings*.

    Raises:
        EvaluationError: the model was not, or it is missing.
    """
    facts = facts_of_source_model(path)
    if facts is None or facts.fingerprint != _fingerprint(manifest, settings):
        raise EvaluationError(
            f"{path} was trained on other images or with other settings than the benchmark has now; expected "
            f"{settings.model_dump_json(exclude={'kind'})} on {manifest.num_samples} images: materialize source_model"
        )


def _fingerprint(manifest: Manifest, settings: TrainedModel) -> str:
    decisive = [TRAINING_VERSION, manifest.sha256, settings.model_dump(mode="json")]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def training_images(shard_set: ShardSet, image_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all images, float (N, 3, H, W) in [0, 1], and labels (N,); a training set of this size fits in memory."""
    stream = Stream(shard_set=shard_set, order=as_stored(shard_set.index), batch_size=256, image_size=image_size)
    images, labels = zip(*((batch.images.clone(), batch.labels) for batch in stream), strict=True)  # buffers are reused
    return torch.cat(images).permute(0, 3, 1, 2).float() / 255, torch.cat(labels)


def _channel_statistics(images: torch.Tensor) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    mean, std = images.mean((0, 2, 3)).tolist(), images.std((0, 2, 3)).tolist()
    return (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])


def _train(
    images: torch.Tensor,
    labels: torch.Tensor,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    settings: TrainedModel,
    *,
    num_classes: int,
    say: Callable[[str], None],
) -> Normalized:
    """Train with Adam and a one-cycle learning rate; small random shifts are the only augmentation."""
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = Normalized(SmallConvNet(num_classes=num_classes, width=settings.width), mean=mean, std=std)
    rng = np.random.default_rng(settings.seed)
    num_batches = max(len(labels) // settings.batch_size, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=settings.epochs * num_batches)
    model.train()
    for epoch in range(settings.epochs):
        for chosen in np.array_split(rng.permutation(len(labels)), num_batches):
            loss = cross_entropy(model(_shifted(images[chosen], rng)), labels[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        say(f"training: epoch {epoch + 1} of {settings.epochs}, loss {loss.item():.4f}")
    return model.eval()


def _shifted(images: torch.Tensor, rng: np.random.Generator, *, max_shift: int = 2) -> torch.Tensor:
    down, right = rng.integers(-max_shift, max_shift + 1, 2).tolist()
    return images.roll((down, right), (2, 3))


def _error(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.inference_mode():
        predictions = torch.cat([model(part).argmax(1) for part in torch.split(images, 256)])
    return float((predictions != labels).float().mean())
