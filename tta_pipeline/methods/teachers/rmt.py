"""RMT: a robust mean teacher with contrastive learning towards source prototypes, and source replay.

Doebler et al. 2023, "Robust mean teacher for continual and gradual test-time adaptation", section 3:

- Mean teacher: the symmetric cross entropy between the teacher's predictions for the images and the student's for the
  images and for a random view of them (equations 3 to 5). The teacher follows with momentum 0.999.
- Contrastive loss (equation 6): an image, its view and the source prototype nearest to its features are positives of
  each other; everything else in the batch is a negative. Features pass a projector of two linear layers; the
  temperature is 0.1.
- Source replay: the cross entropy of one labelled source batch in each step.
- Warm-up: before the stream, student and teacher are trained on 50,000 source samples, with a linearly rising learning
  rate.

The prediction is the sum of the student's and the teacher's logits before the update. The method always needs source
batches with labels; the authors have no variant without them. Batch norm uses batch statistics; constants are the
authors'.
"""

from copy import deepcopy
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from tta_pipeline.methods.ema import update_teacher
from tta_pipeline.methods.features import Features, class_moments, find_classifier
from tta_pipeline.methods.losses import symmetric_cross_entropy
from tta_pipeline.methods.method import SourceData
from tta_pipeline.methods.norm_layers import use_batch_statistics
from tta_pipeline.methods.stateful import StateDict, Stateful
from tta_pipeline.methods.teachers.entries import RmtHyperparameters
from tta_pipeline.methods.teachers.view_method import ViewMethod


class Rmt(ViewMethod):
    """Trains all parameters towards the teacher's predictions, source prototypes and labels of source images."""

    name = "rmt"
    state_attrs = ("_teacher", "_projector", "_replay")

    def __init__(self, model: nn.Module, hyperparameters: RmtHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._source = self._require_source_data("its prototypes, its warm-up and the replay")
        self._teacher = deepcopy(self.model)
        layer = find_classifier(self.model, num_classes=self.num_classes, method=self.name)
        self._features = Features(layer)
        self._prototypes, _ = class_moments(self.model, layer, self._features, self._source, method=self.name)
        self._directions = normalize(self._prototypes, dim=1)
        self._projector = _make_projector(layer.in_features, hyperparameters.projection_dim, self.seed, self.device)
        self._optimizer.add_param_group({"params": list(self._projector.parameters())})
        self._warm_up()
        self._replay = _Replay(self._source, self.device)

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        use_batch_statistics(model)
        return list(model.requires_grad_(True).parameters())

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        logits, features = self._forward_with_features(images)
        of_view, features_of_view = self._forward_with_features(self._view(images))
        with torch.no_grad():
            target = self._forward(images, self._teacher)
        taught = (symmetric_cross_entropy(logits, target) + symmetric_cross_entropy(of_view, target)).mean() / 2
        alike = self._contrastive_loss(features, features_of_view)
        source_images, labels = self._replay.next_batch()
        replayed = cross_entropy(self._forward_with_features(source_images)[0], labels)
        self._step(
            self._settings.lambda_ce_trg * taught
            + self._settings.lambda_cont * alike
            + self._settings.lambda_ce_src * replayed,
            num_samples=2 * len(images) + len(source_images),
            num_adapted=len(images),
        )
        update_teacher(self._teacher, self.model, momentum=self._settings.teacher_momentum)
        return logits.detach() + target

    def _forward_with_features(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the student's logits (B, K) and features (B, D) for *images*."""
        return self._forward(images), self._features.take().float()

    def _contrastive_loss(self, features: torch.Tensor, features_of_view: torch.Tensor) -> torch.Tensor:
        """Return the mean over 3 B anchors of -log(probability) of each anchor's two positives."""
        with torch.no_grad():
            nearest = (normalize(features, dim=1) @ self._directions.T).argmax(1)
        projected = self._projector(torch.cat([self._prototypes[nearest], features, features_of_view]))
        projected = normalize(projected, dim=1)
        similarity = projected @ projected.T / self._settings.temperature
        itself = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
        log_probability = similarity.masked_fill(itself, float("-inf")).log_softmax(1)
        sample = torch.arange(len(features), device=similarity.device).repeat(3)
        positive = (sample == sample.unsqueeze(1)) & ~itself
        return -log_probability[positive].mean()  # every anchor has two

    def _warm_up(self) -> None:
        """Train student and teacher on source samples before the stream; the counters leave this out."""
        planned, seen = self._settings.num_samples_warm_up, 0
        groups = self._optimizer.param_groups
        batches = _Replay(self._source, self.device)
        while seen < planned:
            images, _ = batches.next_batch()
            seen += len(images)
            for group in groups:
                group["lr"] = self._settings.lr * min(seen / planned, 1)
            with torch.no_grad():
                target = self._teacher(images)
            with torch.enable_grad():
                symmetric_cross_entropy(self.model(images), target).mean().backward()  # type: ignore[no-untyped-call]
            self._features.take()
            self._optimizer.step()
            self._optimizer.zero_grad()
            update_teacher(self._teacher, self.model, momentum=self._settings.teacher_momentum)
        for group in groups:
            group["lr"] = self._settings.lr


class _Replay(Stateful):
    """Source batches on *device*, repeated endlessly; the state is the position in the source data."""

    def __init__(self, source: SourceData, device: torch.device) -> None:
        self._source = source
        self._device = device
        self._go_to(0)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next batch: images (B, 3, H, W) and labels (B,)."""
        batch = next(self._batches, None)
        if batch is None:
            self._go_to(0)
            batch = next(self._batches)
        self._place += 1
        images, labels = batch
        return images.to(self._device), labels.to(self._device)

    def state_dict(self) -> StateDict:
        """Return the number of batches taken since the source data last started over."""
        return {"place": self._place}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the position by reading the batches before it."""
        self._go_to(state["place"])

    def _go_to(self, place: int) -> None:
        self._batches = islice(self._source, place, None)
        self._place = place


def _make_projector(num_features: int, size: int, seed: int, device: torch.device) -> nn.Sequential:
    """Return two linear layers with PyTorch's default initialisation, drawn from *seed*."""
    generator = torch.Generator(device).manual_seed(seed)
    layers = []
    for inputs in (num_features, size):
        layer = nn.Linear(inputs, size, device="meta").to_empty(device=device)
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5, generator=generator)
        layers.append(layer)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])
