"""CMA-ES against the equations of the tutorial, written out, and on functions whose minimum is known."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tta_pipeline.methods.gradient_free.cma_es import CmaEs

Function = Callable[[torch.Tensor], torch.Tensor]


def rotated(points: torch.Tensor) -> torch.Tensor:
    """Return the values of a quadratic of condition 10,000 whose axes are those of no coordinate."""
    n = points.shape[1]
    turn, _ = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(7)))
    return ((points @ turn - 1) ** 2 * torch.logspace(0, 4, n, dtype=torch.float64)).sum(1)


def rosenbrock(points: torch.Tensor) -> torch.Tensor:
    """Return the values of the function with a bent valley; its least value is 0, at (1, ..., 1)."""
    here, following = points[:, :-1], points[:, 1:]
    return (100 * (following - here**2) ** 2 + (1 - here) ** 2).sum(1)


def search(n: int, *, population_size: int = 10) -> CmaEs:
    """Return a search around zero."""
    return CmaEs(torch.zeros(n, dtype=torch.float64), step_size=0.5, population_size=population_size)


def run(own: CmaEs, function: Function, generator: torch.Generator, *, generations: int) -> list[torch.Tensor]:
    """Return the candidates of some generations."""
    seen = []
    for _ in range(generations):
        candidates = own.ask(generator)
        own.tell(candidates, function(candidates))
        seen.append(candidates)
    return seen


@pytest.mark.parametrize(("function", "generations"), [(rotated, 500), (rosenbrock, 500)])
def test_the_minimum_is_found(function: Function, generations: int):
    """In eight dimensions the best of the last candidates is as low as rounding allows, from two starts of three."""
    lowest = []
    for seed in range(3):
        *_, last = run(search(8), function, torch.Generator().manual_seed(seed), generations=generations)
        lowest.append(function(last).min().item())

    assert sorted(lowest)[1] < 1e-9  # Rosenbrock has a second minimum, which a start may fall into
    assert function(torch.zeros(1, 8, dtype=torch.float64)).item() > 1


class Written:
    """Mean, step size and covariance as in appendix A of the tutorial, with loops."""

    def __init__(self, n: int, size: int) -> None:
        raw = [math.log((size + 1) / 2) - math.log(i + 1) for i in range(size)]
        self.positive, self.negative = [each for each in raw if each > 0], [each for each in raw if each <= 0]
        self.mueff, self.mueff_minus = (
            sum(half) ** 2 / sum(each**2 for each in half) for half in (self.positive, self.negative)
        )
        self.n, self.g, self.sigma = n, 0, 0.5
        self.m, self.pc, self.ps = (torch.zeros(n, dtype=torch.float64) for _ in range(3))
        self.c = torch.eye(n, dtype=torch.float64)

    def tell(self, points: torch.Tensor, values: torch.Tensor) -> None:
        """Equations 41 to 53 of the tutorial, with the constants of its table 1."""
        n, mueff = self.n, self.mueff
        cs = (mueff + 2) / (n + mueff + 5)
        ds = 1 + 2 * max(0, math.sqrt((mueff - 1) / (n + 1)) - 1) + cs
        cc = (4 + mueff / n) / (n + 4 + 2 * mueff / n)
        c1 = 2 / ((n + 1.3) ** 2 + mueff)
        cmu = min(1 - c1, 2 * (1 / 4 + mueff + 1 / mueff - 2) / ((n + 2) ** 2 + 2 * mueff / 2))
        norm = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
        order = sorted(range(len(points)), key=lambda i: values[i].item())
        y = [(points[i] - self.m) / self.sigma for i in order]
        w = [each / sum(self.positive) for each in self.positive]
        w += [0.0] * (len(points) - len(self.positive) - len(self.negative))  # those between the best and the worst
        limits = (1 + c1 / cmu, 1 + 2 * self.mueff_minus / (mueff + 2), (1 - c1 - cmu) / (n * cmu))
        w += [min(limits) * each / -sum(self.negative) for each in self.negative]
        yw = sum(weight * each for weight, each in zip(w, y, strict=True) if weight > 0)
        self.m = self.m + self.sigma * yw
        squares, axes = torch.linalg.eigh(self.c)
        root = sum(torch.outer(axes[:, i], axes[:, i]) / squares[i].sqrt() for i in range(n))
        self.ps = (1 - cs) * self.ps + math.sqrt(cs * (2 - cs) * mueff) * root @ yw
        self.g += 1
        is_long = self.ps.norm().item() / math.sqrt(1 - (1 - cs) ** (2 * self.g)) >= (1.4 + 2 / (n + 1)) * norm
        h = 0 if is_long else 1
        self.pc = (1 - cc) * self.pc + h * math.sqrt(cc * (2 - cc) * mueff) * yw
        lengths = [(root @ each).norm() for each in y]
        limited = [w[i] if w[i] >= 0 else w[i] * n / lengths[i] ** 2 for i in range(len(y))]
        rank_mu = sum(weight * torch.outer(each, each) for weight, each in zip(limited, y, strict=True))
        kept = 1 + c1 * (1 - h) * cc * (2 - cc) - c1 - cmu * sum(w)
        self.c = kept * self.c + c1 * torch.outer(self.pc, self.pc) + cmu * rank_mu
        self.sigma *= math.exp(min(1, cs / ds * (self.ps.norm().item() / norm - 1)))


@pytest.mark.parametrize("num_more", [0, 1, 3])
def test_it_follows_the_equations_of_the_tutorial(num_more: int):
    """Mean, step size and covariance stay those of loops, where a long path is stalled, and with more candidates."""
    own, written = search(4, population_size=9), Written(4, 9)
    generator = torch.Generator().manual_seed(1)
    candidates = torch.ones(num_more, 4, dtype=torch.float64)
    for generation in range(40):
        candidates = torch.cat([own.ask(generator), candidates[:num_more]])
        # A slope leads far away, and lengthens the path; then comes a valley.
        values = candidates[:, 0] if generation < 15 else rosenbrock(candidates)
        own.tell(candidates, values)
        written.tell(candidates, values)

        state = own.state_dict()
        torch.testing.assert_close(written.m, state["_mean"], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(written.c, state["_covariance"], rtol=1e-7, atol=1e-9)
        assert math.isclose(written.sigma, state["_step_size"], rel_tol=1e-9)


def test_candidates_are_spread_as_the_covariance_says():
    """Over many candidates, mean and covariance are those of the search."""
    own = search(3)
    run(own, rotated, torch.Generator().manual_seed(1), generations=20)
    state = own.state_dict()
    many = CmaEs(torch.zeros(3, dtype=torch.float64), step_size=1.0, population_size=40_000)
    many.load_state_dict(state)
    candidates = many.ask(torch.Generator().manual_seed(2))
    expected = state["_step_size"] ** 2 * state["_covariance"]

    torch.testing.assert_close(state["_mean"], candidates.mean(0), rtol=0, atol=0.03 * expected.diag().max().sqrt())
    torch.testing.assert_close(expected, candidates.T.cov(), rtol=0, atol=0.03 * expected.diag().max().item())


def test_a_search_that_was_broken_off_goes_on_as_if_it_were_not(tmp_path: Path):
    """Its candidates are those of an undisturbed search, bit for bit, also between two decompositions."""
    n = 150
    expected = run(search(n), rotated, torch.Generator().manual_seed(3), generations=12)
    first, generator = search(n), torch.Generator().manual_seed(3)
    run(first, rotated, generator, generations=4)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    run(first, rotated, torch.Generator(), generations=2)
    resumed = search(n)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))

    assert resumed._decompose_every > 1
    torch.testing.assert_close(expected[4:], run(resumed, rotated, generator, generations=8), rtol=0, atol=0)


def test_only_the_order_of_the_values_counts():
    """Values on another scale lead to the same candidates."""
    plain, scaled = (
        run(search(5), function, torch.Generator().manual_seed(3), generations=20)
        for function in (rosenbrock, lambda points: rosenbrock(points).log() * 1e6)
    )

    torch.testing.assert_close(plain, scaled, rtol=0, atol=0)


def test_a_value_that_is_no_number_is_the_worst():
    """Candidates without a value count as those with the highest; without any, the search stays finite."""
    own, other = search(5), search(5)
    candidates = own.ask(torch.Generator().manual_seed(3))
    values = rosenbrock(candidates)
    own.tell(candidates, values.where(values < values.median(), math.nan))
    other.tell(candidates, values.where(values < values.median(), 1e9))
    torch.testing.assert_close(other.state_dict(), own.state_dict(), rtol=0, atol=0)
    own.tell(candidates, torch.full_like(values, math.nan))

    assert own.ask(torch.Generator()).isfinite().all()
