"""A network of a user's own. Nothing else is here: the hash of its code covers all that this file imports."""

from torch import nn


def make_network(num_classes: int) -> nn.Module:
    """Return a small network with a norm layer."""
    layers = (nn.Conv2d(3, 8, 5, stride=3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(32, num_classes))
