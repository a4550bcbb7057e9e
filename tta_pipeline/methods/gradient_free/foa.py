"""FOA: finds prompts for a ViT by forward passes alone, and shifts its features back towards the source's mean.

Niu et al. 2024, "Test-time model adaptation with only forward passes", section 3:

- Forward-only prompt adaptation: the method learns only prompts, tokens next to the image's, by CMA-ES (`cma_es`). Each
  of K candidates predicts each batch once: the candidates that the search proposes, and the best candidate of the
  previous batch, which also enters the search. The fitness (equation 5), which is minimised, is the sum of the
  entropies of the predictions plus lambda B / 64 times the discrepancy. The discrepancy compares the mean and standard
  deviation of the class token over the batch with the same moments over source images, without prompts: squared
  differences, summed over features and layers.
- Back-to-source activation shifting (equations 7 to 9, `aligned_method`) of the class token that the classifier reads;
  mu(batch) is the mean over the images and over all candidates.

The prediction is the best candidate's, after the shift. The fitness uses features and predictions before the shift. The
model's weights do not change. If the paper leaves a detail open, this file follows the authors' program for the
published numbers (mr-eggplant/FOA, facts only, since its code is not free):

- The class token is read where it enters the attention of the next block, after that block's first norm. For the last
  layer it is read where it enters the classifier, after the last norm. Standard deviations are unbiased.
- The search starts at prompts of zero with step size 1. For the first batch, which has no previous batch, prompts
  drawn uniformly replace the best candidate, within Xavier's bound for a linear layer from a patch's pixels to a token.
"""

from typing import Any

import torch
from torch import nn

from tta_pipeline.methods.augmentations import copy_to_device
from tta_pipeline.methods.gradient_free.aligned_method import AlignedMethod, summed_loss
from tta_pipeline.methods.gradient_free.cma_es import CmaEs
from tta_pipeline.methods.gradient_free.entries import FoaHyperparameters
from tta_pipeline.methods.tokens import ClassTokens, Tokens


class Foa(AlignedMethod):
    """Searches prompts of a ViT by the fitness of candidates, and shifts the features towards the source's mean."""

    name = "foa"
    state_attrs = ("_search", "_best")

    def __init__(self, model: nn.Module, hyperparameters: FoaHyperparameters, **kwargs: Any) -> None:
        self._settings = hyperparameters
        self._tokens = Tokens(model, self.name)
        super().__init__(model, hyperparameters, inner=ClassTokens(self._tokens.attentions[1:]).latest, **kwargs)
        self._best = torch.zeros(hyperparameters.num_prompts * self._tokens.width, dtype=torch.float64)
        self._search = CmaEs(
            torch.zeros_like(self._best),
            step_size=hyperparameters.step_size,
            population_size=hyperparameters.population_size - 1,
        )

    @torch.no_grad()
    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        if not self._num_batches:
            self._tokens.draw_prompts(self._best, self.generator)
        candidates = torch.cat([self._search.ask(self.generator), self._best.unsqueeze(0)])
        (prompts,) = copy_to_device([candidates.view(len(candidates), -1, self._tokens.width).float()], self.device)
        found = [self._evaluate_prompts(images, each) for each in prompts]
        # The host waits for the device, since the values decide the next candidates and the prediction.
        values = torch.stack([value for value, _ in found]).cpu().double()
        self._search.tell(candidates, values)
        # `argmin` takes a NaN for the smallest number.
        best = int(values.nan_to_num(torch.inf).argmin())
        self._best.copy_(candidates[best])
        logits = self._classify_shifted(found[best][1], weight=self._settings.shift_weight)
        mean = torch.stack([features.mean(0) for _, features in found]).mean(0)
        self._follow(mean, momentum=self._settings.shift_momentum)
        return logits

    def _evaluate_prompts(self, images: torch.Tensor, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the fitness of *prompts* (N, D), a scalar, and the features (B, D) with these prompts."""
        with self._tokens.prompted(prompts):
            logits = self._forward(images)
        activations = self._activations()
        fitness = summed_loss(logits, self._squared_gaps(activations), weight=self._settings.fitness_lambda)
        return fitness, self._features_of(activations)
