"""CMA-ES: minimises a function of real vectors, using only the order of its values.

Hansen 2016, "The CMA evolution strategy: A tutorial", appendix A (the (mu/mu_w, lambda) strategy), with the default
constants of its table 1. The worse half has negative weights in the covariance (equations 46, 47, 50 to 53). As in
appendix B.2, the covariance is decomposed only once in several generations, since the cost is cubic in the dimension
and should not exceed the cost of everything else: every 16 generations for 2304 dimensions and 27 candidates.

All numbers are float64 and on the host. The state has 2 n^2 numbers for n dimensions: 85 MB for 2304.
"""

import math

import torch

from tta_pipeline.methods.stateful import Stateful


class CmaEs(Stateful):
    """A search that starts around *mean*, float64 (n,), with the standard deviation *step_size* in every direction.

    Random numbers come from the generator passed to `ask`; the search does not keep the generator's state.
    """

    state_attrs = (
        "_mean", "_step_size", "_covariance", "_path", "_path_of_step_size", "_axes", "_lengths", "_num_generations",
        "_decomposed_at",
    )  # fmt: skip

    def __init__(self, mean: torch.Tensor, *, step_size: float, population_size: int) -> None:
        self._set_constants(len(mean), population_size)
        self._mean = mean.clone()
        self._step_size = step_size
        self._covariance = torch.eye(len(mean), dtype=torch.float64)
        self._axes = torch.eye(len(mean), dtype=torch.float64)
        self._lengths = torch.ones(len(mean), dtype=torch.float64)
        self._path, self._path_of_step_size = torch.zeros_like(mean), torch.zeros_like(mean)
        self._num_generations = 0
        self._decomposed_at = 0

    def _set_constants(self, n: int, population_size: int) -> None:
        """Set the constants of table 1, under the names of the tutorial."""
        self._population_size = population_size
        self._mu = population_size // 2
        raw = math.log((population_size + 1) / 2) - torch.arange(1, population_size + 1, dtype=torch.float64).log()
        best, worst = raw[: self._mu], raw[self._mu :]
        self._weights = best / best.sum()
        self._mu_eff = mu_eff = _effective_number(best)
        self._c_sigma = (mu_eff + 2) / (n + mu_eff + 5)
        self._d_sigma = 1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + self._c_sigma
        self._c_c = (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n)
        self._c_1 = 2 / ((n + 1.3) ** 2 + mu_eff)
        self._c_mu = min(1 - self._c_1, 2 * (0.25 + mu_eff + 1 / mu_eff - 2) / ((n + 2) ** 2 + mu_eff))
        self._weight_of_worst = min(
            1 + self._c_1 / self._c_mu,
            1 + 2 * _effective_number(worst) / (mu_eff + 2),
            (1 - self._c_1 - self._c_mu) / (n * self._c_mu),
        )
        self._weights_of_worst = -self._weight_of_worst * worst / worst.sum()
        self._expected_norm = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
        self._decompose_every = max(1, int(1 / (10 * n * (self._c_1 + self._c_mu))))

    def ask(self, generator: torch.Generator) -> torch.Tensor:
        """Return the candidates of a generation, float64 (population size, n); *generator* is the host's."""
        drawn = torch.randn(self._population_size, len(self._mean), dtype=torch.float64, generator=generator)
        return self._mean + self._step_size * (drawn * self._lengths) @ self._axes.T

    def tell(self, candidates: torch.Tensor, values: torch.Tensor) -> None:
        """Learn from the *values* (M,) of *candidates* (M, n); a NaN is worse than any number.

        *candidates* come from the latest `ask`, possibly with more from any origin. With more, only the best and the
        worst have weights.
        """
        self._num_generations += 1
        steps = (candidates[values.argsort(stable=True)] - self._mean) / self._step_size
        step = self._weights @ steps[: self._mu]
        self._mean += self._step_size * step

        whitened = self._axes @ (self._axes.T @ step / self._lengths)
        c_sigma, c_c = self._c_sigma, self._c_c
        self._path_of_step_size *= 1 - c_sigma
        self._path_of_step_size += math.sqrt(c_sigma * (2 - c_sigma) * self._mu_eff) * whitened
        length = float(self._path_of_step_size.norm())
        # The path begins at zero, so it is short in the first generations for any steps.
        expected = self._expected_norm * math.sqrt(1 - (1 - c_sigma) ** (2 * self._num_generations))
        is_short = length < (1.4 + 2 / (len(self._mean) + 1)) * expected

        self._path *= 1 - c_c
        if is_short:
            self._path += math.sqrt(c_c * (2 - c_c) * self._mu_eff) * step
        self._learn_covariance(steps, is_short=is_short)
        self._step_size *= math.exp(min(1.0, c_sigma / self._d_sigma * (length / self._expected_norm - 1)))

    def _learn_covariance(self, steps: torch.Tensor, *, is_short: bool) -> None:
        """Learn from *steps* (M, n), best candidates first."""
        best, worst = steps[: self._mu], steps[len(steps) - len(self._weights_of_worst) :]
        # Long steps would make the covariance indefinite.
        squares = ((worst @ self._axes / self._lengths) ** 2).sum(1).clamp(min=1e-18)
        weights = torch.cat([self._weights, self._weights_of_worst * len(self._mean) / squares])
        told = torch.cat([best, worst])

        c_1, c_mu = self._c_1, self._c_mu
        missing = 0.0 if is_short else c_1 * self._c_c * (2 - self._c_c)  # the variance that a stalled path lacks
        self._covariance *= 1 - c_1 - c_mu * (1 - self._weight_of_worst) + missing
        self._covariance.addr_(self._path, self._path, alpha=c_1)
        self._covariance.addmm_((told * weights.unsqueeze(1)).T, told, alpha=c_mu)
        self._decompose_if_due()

    def _decompose_if_due(self) -> None:
        if self._num_generations - self._decomposed_at >= self._decompose_every:
            squares, axes = torch.linalg.eigh((self._covariance + self._covariance.T) / 2)
            self._lengths.copy_(squares.clamp(min=1e-20).sqrt())
            self._axes.copy_(axes)
            self._decomposed_at = self._num_generations


def _effective_number(weights: torch.Tensor) -> float:
    """Return the effective number of *weights* (the equations of mu_eff)."""
    return float(weights.sum() ** 2 / (weights**2).sum())
