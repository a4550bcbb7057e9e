"""SoTTA: entropy minimisation on confident images of all classes, for streams with images of no known class.

Gong et al. 2023, "SoTTA: Robust test-time adaptation on noisy data streams":

- Memory (section 3.1, high-confidence uniform-class sampling): an image is kept if the model's confidence is at least
  `threshold`, which excludes images of no class. Each class has about equally many images; see `UniformMemory`.
- Step (section 3.2, entropy-sharpness minimisation): every `update_frequency` images of the stream, one step on the
  mean entropy of the memory, with the gradient at w + rho * g / ||g|| (`Ascent`). The top stays frozen, as in SAR.
- Batch norm predicts with running statistics. In both passes of a step it normalises with the statistics of the memory,
  towards which the running ones move by `bn_momentum` in each.

Constants are from the authors' program. It predicts images in groups of `update_frequency`, just before a step, and
drops the last group if it is smaller; here each batch is predicted on arrival. Dropout stays off in a step. A step
on fewer than two images is left out, since a batch norm layer may find a single value in each channel.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tta_pipeline.methods.affine_parameters import select_affine_parameters
from tta_pipeline.methods.entropy.entries import SottaHyperparameters
from tta_pipeline.methods.entropy.sharpness_ascent import Ascent
from tta_pipeline.methods.entropy.uniform_memory import UniformMemory
from tta_pipeline.methods.gradient_method import GradientMethod
from tta_pipeline.methods.losses import entropy
from tta_pipeline.methods.top_layers import top_layers


class Sotta(GradientMethod):
    """Minimises the entropy of a memory of confident images over the norm layers below the top, towards flat minima."""

    name = "sotta"
    state_attrs = ("_memory", "_num_seen")

    def __init__(self, model: nn.Module, hyperparameters: SottaHyperparameters, **kwargs: Any) -> None:
        self._settings = hyperparameters
        super().__init__(model, hyperparameters, **kwargs)
        self.generator = torch.Generator().manual_seed(self.seed)  # the host decides which image is replaced
        adapted = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._ascent = Ascent(adapted, rho=hyperparameters.rho)
        self._memory = UniformMemory(
            hyperparameters.memory_size, num_classes=self.num_classes, draw=self._draw, device=self.device
        )
        self._num_seen = 0

    def _select(self, model: nn.Module) -> list[nn.Parameter]:
        self._batch_norms = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
        for layer in self._batch_norms:
            layer.momentum = self._settings.bn_momentum
        self.frozen_layers = top_layers(model, self.name, named=self._settings.frozen_layers)
        return select_affine_parameters(model, self.name, frozen=self.frozen_layers)

    def _draw(self, count: int) -> int:
        return int(torch.randint(count, (), generator=self.generator))

    def _adapt(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits = self._forward(images)
            # One row of confidences and one of labels, exact up to 2**24, so that the host waits only once.
            sure, labels = torch.stack([part.float() for part in logits.float().softmax(1).max(1)]).tolist()
        for image, confidence, label in zip(images, sure, labels, strict=True):
            if confidence >= self._settings.threshold:
                self._memory.add(image, label=int(label))
            self._num_seen += 1
            if self._num_seen % self._settings.update_frequency == 0 and len(self._memory) > 1:
                self._learn(self._memory.images())
        self._memory.store.write()
        return logits

    def _learn(self, images: torch.Tensor) -> None:
        """Take one step on *images* of the memory, (N, 3, H, W)."""
        self._follow(True)
        for climbs in (True, False):
            loss = entropy(self._forward_some(images)).mean()
            self._backward(loss, num_samples=len(images))
            if climbs:
                self._ascent.climb()
        self._follow(False)
        self._ascent.restore()
        self._update()

    def _follow(self, follows: bool) -> None:  # noqa: FBT001 - reads as a switch
        """Set whether batch norm normalises with, and moves its running statistics towards, each batch."""
        for layer in self._batch_norms:
            layer.training = follows  # not its submodules, which may be dropout
