"""UniEnt and OSTTA: entropy minimisation for streams in which some images belong to no class.

Gao et al. 2024, "Unified entropy optimization for open-set test-time adaptation" (UniEnt), and Lee et al. 2023,
"Towards open-set test-time adaptation utilizing the wisdom of crowds in entropy minimization" (OSTTA). The loss is

    mean entropy of the known images - a * mean entropy of the unknown ones - b * entropy of the mean prediction

- Known or unknown (UniEnt, section 3.2): how unlike the classifier's weights the source model's feature is, 1 minus the
  largest cosine, scaled to [0, 1] over the batch. A mixture of two Gaussians is fitted to it. `split` hard assigns each
  image to the nearer component; soft (UniEnt+) weights each entropy by the probability of the component; none treats
  every image as known.
- `adapt_on` surer_than_source (OSTTA, section 3.2): a known image enters only if the model's probability of the source
  model's label is at least the source model's. reliable (UniEnt on EATA, without the Fisher penalty): only ETA's choice
  of known images enters, each with the weight exp(E0 - H); with the soft split, H is the weighted entropy.

Parameters and statistics are Tent's, for the source model too, as in the authors' code. Images are scored as known by
the logsumexp of their logits, as there. A mean over no image is 0; in the authors' code it is NaN.
"""

import math
import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import nn
from torch.nn.functional import normalize

from tta_pipeline.methods.ema import frozen_copy
from tta_pipeline.methods.entropy.diverse_samples import DiverseSamples
from tta_pipeline.methods.entropy.entries import UnientHyperparameters
from tta_pipeline.methods.features import Features, find_classifier
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import entropy, marginal_entropy


class Unient(GradientMethod):
    """Minimises the entropy of known images, maximises it for unknown ones, and keeps all classes in use."""

    name = "unient"
    state_attrs: ClassVar[tuple[str, ...]] = ("_seen",)

    def __init__(self, model: nn.Module, hyperparameters: UnientHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._settings = hyperparameters
        self._source_model = frozen_copy(self.model)
        self._e0 = hyperparameters.e_margin * math.log(self.num_classes)
        self._seen = DiverseSamples(num_classes=self.num_classes, d_margin=hyperparameters.d_margin, device=self.device)
        if hyperparameters.split != "none":
            classifier = find_classifier(self._source_model, num_classes=self.num_classes, method=self.name)
            self._prototypes = normalize(classifier.weight.detach().float(), dim=1)
            self._features = Features(classifier)

    def source_logits(self) -> torch.Tensor:
        """Return the logits (B, K) of the source model, under batch statistics, for the images of the last step."""
        return self._source_logits

    def confidence(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the confidence that images with *logits* (B, K) are known: the negative free energy, (B,)."""
        return logits.logsumexp(1)

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self._source_logits = self._forward(images, self._source_model).float()
            self._known = self._known_shares()
        return super()._adapt(images)

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        entropies, known = entropy(logits), self._known
        is_soft = self._settings.split == "soft"
        own = entropies * known if is_soft else entropies
        chosen = self._chosen(logits.detach(), own.detach(), torch.ones_like(known) if is_soft else known)
        weights = torch.exp(self._e0 - own.detach()) if self._settings.adapt_on == "reliable" else 1.0
        pull = _mean(own * weights, chosen)
        push = (entropies * (1 - known)).mean() if is_soft else _mean(entropies, 1 - known)
        spread = self._settings.marginal_weight * marginal_entropy(logits)
        return pull - self._settings.unknown_weight * push - spread

    def _chosen(self, logits: torch.Tensor, entropies: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """Return 1 for each of *candidates*, (B,) of 1 and 0, whose entropy is minimised, 0 for the others, (B,)."""
        match self._settings.adapt_on:
            case "surer_than_source":
                surest, labels = self._source_logits.softmax(1).max(1)
                return candidates * (logits.softmax(1).gather(1, labels[:, None]).squeeze(1) >= surest)
            case "reliable":
                kept = self._seen.choose(logits.softmax(1), (candidates > 0) & (entropies < self._e0))
                return torch.zeros_like(candidates).index_fill(0, kept, 1.0)
            case _:
                return candidates

    def _known_shares(self) -> torch.Tensor:
        """Return how far each image of the source model's last pass counts as known, in [0, 1], (B,)."""
        everything = self._source_logits.new_ones(len(self._source_logits))
        if self._settings.split == "none":
            return everything
        features = normalize(self._features.take().float(), dim=1)
        # The mixture is fitted on the host, which waits for the batch.
        likeness = (features @ self._prototypes.T).amax(1).float().cpu().numpy()
        width = np.ptp(likeness)
        if not width > 0:  # one image, equal ones, or a broken model
            return everything
        unlikeness = 1 - (likeness - likeness.min()) / width
        return everything.new_tensor(_likely_known(unlikeness[:, None], is_soft=self._settings.split == "soft"))


def _likely_known(unlikeness: "np.ndarray[Any, Any]", *, is_soft: bool) -> "np.ndarray[Any, Any]":
    """Return for each *unlikeness* (B, 1) the probability, or 0 or 1, of the Gaussian with the lower mean."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # no better fit is possible: a batch may have few images
        mixture = GaussianMixture(n_components=2, random_state=0).fit(unlikeness)
    known = int(mixture.means_[:, 0].argmin())
    found: np.ndarray[Any, Any] = (
        mixture.predict_proba(unlikeness)[:, known] if is_soft else mixture.predict(unlikeness) == known
    )
    return found


def _mean(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the mean of *values* (B,) with *weights* (B,), or 0 if these are all 0."""
    return (values * weights).sum() / weights.sum().clamp(min=torch.finfo(values.dtype).tiny)
