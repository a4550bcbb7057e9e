"""Small models for tests of methods."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache

import torch
from torch import nn
from torch.nn.functional import normalize
from torchvision.models import VisionTransformer

from tta_pipeline.methods import METHODS
from tta_pipeline.models.zero_shot_classifier import ZeroShotClassifier

NUM_CLASSES = 5
ADDED = ("lora", "adapters")
"""Choices of `params` that add parameters to a transformer."""


def seed() -> None:
    """Let the next draws on the CPU be the same; `torch.manual_seed` also notes a traceback for each other device."""
    torch.default_generator.manual_seed(0)


def batch_norm_model() -> nn.Sequential:
    """Return a convolutional model with batch norm whose running statistics are not trivial."""
    found = deepcopy(_batch_norm_model())
    seed()
    return found


@cache
def _batch_norm_model() -> nn.Sequential:
    seed()
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, NUM_CLASSES),
    )  # fmt: skip
    model.train()
    for images in batches(seed=9):
        model(images)
    return model.eval()


def layer_norm_model() -> nn.Sequential:
    """Return a model with layer norm and no batch norm."""
    seed()
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(3 * 16 * 16), nn.Linear(3 * 16 * 16, NUM_CLASSES)).eval()


def group_norm_model() -> nn.Sequential:
    """Return a convolutional model with group norm and no batch norm."""
    seed()
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, NUM_CLASSES),
    ).eval()  # fmt: skip


def vit_model(num_blocks: int = 4) -> VisionTransformer:
    """Return a ViT of 16 patches and *num_blocks* blocks that is sure of some images and not of others."""
    seed()
    model = VisionTransformer(
        image_size=16, patch_size=4, num_layers=num_blocks, num_heads=2, hidden_dim=16, mlp_dim=32,
        num_classes=NUM_CLASSES,
    )  # fmt: skip
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.LayerNorm):
                layer.weight.uniform_(0.5, 1.5)
            elif isinstance(layer, nn.Linear):
                layer.weight.normal_(0, layer.in_features**-0.5)
            elif isinstance(layer, nn.MultiheadAttention):
                layer.in_proj_weight.mul_(4)  # so that it looks at some patches more than at others
        model.class_token.normal_(0, 1)
    return model.eval()


class SmallPrompts(nn.Module):
    """Text features of classes, from a word of each and a context of two words before it."""

    context: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("context", torch.randn(2, 6))
        self.words = nn.Parameter(torch.randn(NUM_CLASSES, 6))
        self.norm = nn.LayerNorm(18)
        self.last = nn.Linear(18, 16)

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        """Return text features (K, D) of length 1."""
        texts = torch.cat([context.flatten().expand(NUM_CLASSES, -1), self.words], 1)
        return normalize(self.last(self.norm(texts.tanh())), dim=1)


def clip_model() -> ZeroShotClassifier:
    """Return a zero-shot classifier of random towers that is sure of some images and not of others."""
    seed()
    last = nn.Linear(8, 16)
    tower = nn.Sequential(*batch_norm_model()[:-1], last).eval()
    with torch.no_grad():
        last.bias.sub_(tower(torch.cat(contrasts(seed=9))).mean(0))  # so that directions differ
    text_features = normalize(torch.randn(NUM_CLASSES, 16), dim=1)
    return ZeroShotClassifier(tower, text_features, scale=6.0, prompts=SmallPrompts()).eval()


MODELS = {"bn": batch_norm_model, "ln": layer_norm_model, "gn": group_norm_model}


def surer(model: nn.Sequential, *, factor: float = 8.0) -> nn.Sequential:
    """Return *model* with larger logits, so that it is sure of some images and not of others."""
    classifier = model[-1]
    assert isinstance(classifier, nn.Linear)
    with torch.no_grad():
        classifier.weight.mul_(factor)
        classifier.bias.mul_(factor)
    return model


SUITED: dict[str, Callable[[], nn.Module]] = {
    "any": lambda: surer(batch_norm_model()),
    "vit": vit_model,
    "clip": clip_model,
}
"""A model for each kind of network that methods need."""
REFUSALS = {"vit": r"\b{}\b.*\bViT\b", "clip": r"\b{}\b.*\bopen_clip\b"}
"""What methods name that need a kind of network and get another: themselves, and a kind that would do."""


def suited(method: str) -> nn.Module:
    """Return a model of the kind that *method* needs; for `any`, a model with batch norm."""
    return SUITED[METHODS[method].needs]()


def batches(*, seed: int = 1, num_batches: int = 4, batch_size: int = 12) -> list[torch.Tensor]:
    """Return images in [0, 1], with less brightness and contrast than those the models have seen."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(batch_size, 3, 16, 16, generator=generator) * 0.4 for _ in range(num_batches)]


def contrasts(*, seed: int = 1, num_batches: int = 5, batch_size: int = 16) -> list[torch.Tensor]:
    """Return images in [0, 1] that differ in colour and contrast, so that the models' outputs differ too."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.rand(batch_size, 3, 16, 16, generator=generator) * torch.rand(batch_size, 3, 1, 1, generator=generator)
        for _ in range(num_batches)
    ]


def source_batches(*, num_batches: int = 3, batch_size: int = 12) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return clean images with labels; every class occurs."""
    labels = torch.arange(batch_size) % NUM_CLASSES
    return [(images / 0.4, labels) for images in batches(seed=5, num_batches=num_batches, batch_size=batch_size)]
