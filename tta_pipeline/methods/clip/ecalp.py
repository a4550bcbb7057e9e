"""ECALP: labels propagate from texts over a graph of the images of the stream, which grows with each image.

Li et al. 2025, "Efficient and context-aware label propagation for zero-/few-shot training-free adaptation of
vision-language model", with its authors' program. Each image is joined to its nearest texts by cosine, and to its
nearest images by a cosine in which dimensions weigh as much as the texts vary in them. Similarities are raised to a
power, and the graph is symmetric and normalised. The texts' labels are fixed; the images' labels follow their
neighbours for a few iterations. From one image of the stream to the next, each keeps a part of its label.

As in the program, the current image is in the graph twice, and its copy is predicted. Images are processed in order, so
the batch size does not change the predictions. State and time per image grow with the stream: an image after N others
takes, in each iteration, N K times the number of its neighbours.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding_bag, normalize, pad

from tta_pipeline.methods.clip.entries import EcalpHyperparameters
from tta_pipeline.methods.clip.image_method import ImageMethod
from tta_pipeline.methods.stateful import GrowingState

_KEPT_SHARE = 0.2
"""Share of its label that an image keeps from one image of the stream to the next."""
_SHARPNESS = 10_000.0
"""Factor on the propagated labels, which are small, in the logits."""


class Ecalp(ImageMethod):
    """Predicts each image by the labels that propagate to it; its graph is the state."""

    name = "ecalp"
    state_attrs = ("_graph",)

    def __init__(self, model: nn.Module, hyperparameters: EcalpHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._graph = _Graph(self._towers.text_features, hyperparameters)

    def _predict_features(self, features: torch.Tensor) -> torch.Tensor:
        return torch.stack([_SHARPNESS * self._graph.label(feature) for feature in features])


class _Graph(GrowingState):
    """The N images so far, with their nearest texts and images, and their labels."""

    state_attrs = ("_features", "_texts", "_text_weights", "_images", "_image_weights", "_labels", "_certainties")

    def __init__(self, text_features: torch.Tensor, settings: EcalpHyperparameters) -> None:
        self._text_features = text_features
        self._settings = settings
        self._relevance = normalize(text_features.var(0), dim=0)
        self._num_texts = min(settings.num_texts, len(text_features))
        zeros = text_features.new_zeros
        self._features = zeros(0, text_features.shape[1])
        self._texts, self._text_weights = zeros(0, self._num_texts).long(), zeros(0, self._num_texts)
        self._images, self._image_weights = zeros(0, settings.num_images).long(), zeros(0, settings.num_images)
        self._labels, self._certainties = zeros(0).long(), zeros(0)

    def label(self, feature: torch.Tensor) -> torch.Tensor:
        """Add the image with *feature* (D,), and return its label (K,): how much of each text's label reaches it."""
        number = len(self._features)
        weights = self._weights(feature)
        to_new, own = weights[:-1, None], weights[-1:]
        new = torch.full_like(self._images[:, :1], number)
        pair = _nearest(torch.cat([weights, own]), self._settings.num_images)
        with_copy = [
            torch.cat([of_others, of_pair.expand(2, -1)])
            for of_others, of_pair in zip(self._joined(torch.cat([to_new] * 2, 1), new, new + 1), pair, strict=True)
        ]
        nearest = _nearest(weights, self._settings.num_images)
        joined = zip(self._joined(to_new, new), nearest, strict=True)
        self._image_weights, self._images = (torch.cat([others, own_one[None]]) for others, own_one in joined)
        text_weights, texts = (self._text_features @ feature).topk(self._num_texts)
        self._features = torch.cat([self._features, feature[None]])
        self._texts = torch.cat([self._texts, texts[None]])
        self._text_weights = torch.cat([self._text_weights, text_weights[None]])
        return self._relabel(*with_copy)

    def _weights(self, feature: torch.Tensor) -> torch.Tensor:
        """Return the weighted cosines (N + 1,) of the image with *feature* (D,) with all before it and with itself."""
        others = torch.cat([self._features, feature[None]]) * self._relevance
        return normalize(others, dim=1) @ normalize(feature, dim=0)

    def _joined(self, weights: torch.Tensor, *images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images' neighbours if the *images*, (N, 1) each, are added with *weights* (N, M)."""
        # Stable: the last image and its copy are equally near, and the image must be the neighbour.
        found, places = torch.cat([self._image_weights, weights], 1).sort(dim=1, descending=True, stable=True)
        num_kept = self._settings.num_images
        return found[:, :num_kept], torch.cat([self._images, *images], 1).gather(1, places[:, :num_kept])

    def _relabel(self, image_weights: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Let labels propagate over the images and a copy of the last one, and return the label (K,) of the copy."""
        texts, text_weights = (torch.cat([each, each[-1:]]) for each in (self._texts, self._text_weights))
        num_texts = len(self._text_features)
        weights = torch.cat([text_weights, image_weights.clamp(min=-1)], 1) ** self._settings.power
        weights = weights * torch.cat([text_weights, image_weights], 1).isfinite()
        edges = _Edges.normalized(torch.cat([texts, num_texts + images], 1), weights, num_texts)
        of_texts = torch.eye(num_texts, device=weights.device)
        kept = of_texts.new_zeros(len(images), num_texts)
        kept[: len(self._labels)].scatter_(1, self._labels[:, None], self._certainties[:, None])
        labels, trust = kept, self._settings.neighbour_share
        for _ in range(self._settings.num_turns):
            labels = trust * edges.sum_over(torch.cat([of_texts, labels])) + (1 - trust) * kept
        certainties, self._labels = labels[:-1].max(1)
        self._certainties = _KEPT_SHARE * certainties
        return labels[-1]


def _nearest(weights: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the *count* largest *weights* and their places, both (count,); missing ones are minus infinity."""
    found, places = pad(weights, (0, count), value=-torch.inf).sort(descending=True, stable=True)
    return found[:count], places[:count].where(found[:count].isfinite(), 0)


@dataclass(frozen=True, kw_only=True)
class _Edges:
    """The edges of the N images in a graph of texts and images, image by image."""

    nodes: torch.Tensor
    """Node at the other end of each edge, (E,)."""
    weights: torch.Tensor
    """Weight of each edge, (E,)."""
    firsts: torch.Tensor
    """Place of the first edge of each image, (N,)."""

    @classmethod
    def normalized(cls, neighbours: torch.Tensor, weights: torch.Tensor, num_texts: int) -> "_Edges":
        """Return the edges of the symmetric, normalised graph.

        Args:
            neighbours: Nodes that each image is joined to, (N, M); the texts are the first nodes.
            weights: Weights of these edges, (N, M).
            num_texts: Number K of the texts.
        """
        num_images = len(neighbours)
        images = torch.arange(num_images, device=weights.device)[:, None].expand_as(neighbours).flatten()
        neighbours, weights = neighbours.flatten(), weights.flatten()
        degrees = weights.new_zeros(num_texts + num_images)
        degrees.index_add_(0, num_texts + images, weights)
        degrees.index_add_(0, neighbours, weights)
        scales = 1 / (degrees.sqrt() + 1e-6)
        weights = weights * scales[num_texts + images] * scales[neighbours]
        # An edge to an image belongs to both images. Texts need no edges, since their labels are fixed.
        backwards = weights * (neighbours >= num_texts)
        rows, order = torch.cat([images, (neighbours - num_texts).clamp(min=0)]).sort(stable=True)
        return cls(
            nodes=torch.cat([neighbours, num_texts + images])[order],
            weights=torch.cat([weights, backwards])[order],
            firsts=torch.searchsorted(rows, torch.arange(num_images, device=rows.device)),
        )

    def sum_over(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum of each image's neighbours' labels, (N, K), from the *labels* (K + N, K) of all nodes."""
        return embedding_bag(self.nodes, labels, self.firsts, mode="sum", per_sample_weights=self.weights)
