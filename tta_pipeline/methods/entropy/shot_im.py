"""SHOT-IM: each prediction becomes confident, while all classes stay in use; the classifier does not change.

Liang et al. 2020, "Do we really need to access the source data? Source hypothesis transfer for unsupervised domain
adaptation", section 3.2: the loss is information maximisation, the mean entropy of the predictions (equation 3) minus
the entropy of their mean. The classifier, the source hypothesis, is fixed; all other parameters adapt.

The paper trains for epochs over a target set. This is the online form of test-time benchmarks (Alfarra et al. 2024 and
the code of LAME by Boudiaf et al. 2022): one step on the loss of each batch, batch statistics, and the prediction from
before the step. The pseudo labels of the full SHOT, which need the whole target set, are left out. `params` norm adapts
the norm layers only, as the program of Alfarra et al. does. As in SHOT's code, 1e-5 is added within the logarithms.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.entropy.entries import ShotImHyperparameters
from tta_pipeline.methods.features import find_classifier
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.norm_layers import use_batch_statistics

_LEAST = 1e-5


class ShotIm(GradientMethod):
    """Trains everything before the last linear layer, so that predictions are confident and classes balanced."""

    name = "shot_im"

    def __init__(self, model: nn.Module, hyperparameters: ShotImHyperparameters, **kwargs: Any) -> None:
        self._params = hyperparameters.params
        super().__init__(model, hyperparameters, **kwargs)

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        if self._params == "norm":
            return super()._select(model)
        use_batch_statistics(model)
        model.requires_grad_(True)
        find_classifier(model, num_classes=self.num_classes, method=self.name).requires_grad_(False)
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        probabilities = logits.softmax(1)
        return _entropy(probabilities).mean() - _entropy(probabilities.mean(0))


def _entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the entropies in nats of the rows of *probabilities* (..., K)."""
    return -(probabilities * (probabilities + _LEAST).log()).sum(-1)
