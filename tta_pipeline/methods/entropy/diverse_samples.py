"""Choice of samples whose predictions are unlike earlier ones."""

import torch

from tta_pipeline.methods.stateful import Stateful


class DiverseSamples(Stateful):
    """Chooses samples whose predictions are unlike earlier ones: EATA's redundancy filter.

    Niu et al. 2022, "Efficient test-time model adaptation without forgetting": a sample is kept if the absolute cosine
    between its probabilities and m is below *d_margin*, where m is the moving average of the kept samples'
    probabilities; then m = 0.9 m + 0.1 mean(kept). The first samples are kept, and initialise m.
    """

    state_attrs = ("_mean", "_is_empty")

    def __init__(self, *, num_classes: int, d_margin: float, device: torch.device) -> None:
        self._d_margin = d_margin
        # Zeros have cosine 0 with everything, so the first samples are not redundant.
        self._mean = torch.zeros(num_classes, device=device)
        self._is_empty = True

    def choose(self, probabilities: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """Return the indices (M,) of the samples kept of *candidates*, bool (B,), and update m.

        *probabilities*, (B, K), belong to the whole batch.
        """
        cosines = torch.cosine_similarity(self._mean, probabilities, dim=1)
        kept = (candidates & (cosines.abs() < self._d_margin)).nonzero().squeeze(1)
        if len(kept):
            momentum = 0.0 if self._is_empty else 0.9
            self._mean.lerp_(probabilities[kept].mean(0).to(self._mean.dtype), 1 - momentum)
            self._is_empty = False
        return kept
