"""Base class of the methods that learn from random views of a batch.

The hyperparameter `augment_per` sets what shares random numbers: by default each image draws its own; with "batch",
all images of a view share them, as in the authors' code (`batch_views`).
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from tta_pipeline.methods.entry import ViewHyperparameters
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.teachers.batch_views import cotta_batch_view
from tta_pipeline.methods.teachers.teacher_views import cotta_view


class ViewMethod(GradientMethod):
    """A gradient method with random views."""

    views: ClassVar[Mapping[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]]] = {
        "image": cotta_view,
        "batch": cotta_batch_view,
    }
    """The view of the method for each value of `augment_per`: maps images, float (B, 3, H, W) in [0, 1], to as many."""

    def __init__(self, model: nn.Module, hyperparameters: ViewHyperparameters, **kwargs: Any) -> None:
        super().__init__(model, hyperparameters, **kwargs)
        self._draws = hyperparameters.augment_per
        if self._draws == "batch":
            self.generator = torch.Generator().manual_seed(self.seed)  # The host needs to know what was drawn.

    def _view(self, images: torch.Tensor) -> torch.Tensor:
        """Return a random view of *images*, float32 of the same shape."""
        return self.views[self._draws](images, self.generator)
