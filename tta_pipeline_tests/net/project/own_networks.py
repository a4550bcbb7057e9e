"""A transformer that is small enough for a tour."""

import timm
from torch import nn


def tiny_vit(num_classes: int) -> nn.Module:
    """Return timm's ViT for images of 32 pixels with three blocks."""
    model: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=3, num_heads=3, num_classes=num_classes
    )
    return model
