"""How often the tests of `compare` find a difference that does not exist: `python -m bench.significance [DRAWS]`.

Two methods with the same expected error classify simulated photographs; no image is read. Each photograph has a random
difficulty in all cells, each method has its own difficult photographs, and the rest is noise. A test at the level of
5 % must then call 5 % of the pairs different. `--fail-if-worse` must pass at most 2.5 % of the methods that are worse
by exactly the margin. docs/reference/metrics.md summarises the tables.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt
from rich.console import Console

from tta_pipeline.domain.cells import grid_of_cells
from tta_pipeline.report.significance import estimates
from tta_pipeline.report.significance.estimates import CellValues, estimate_mean, upper_bound
from tta_pipeline.report.significance.paired_tests import LEVEL
from tta_pipeline.shards.photographs import Numbered, Photographs

CORRUPTIONS = tuple(f"corruption_{letter}" for letter in "abcdefghijklmno")
SEVERITIES = (1, 2, 3, 4, 5)
CELLS = grid_of_cells(CORRUPTIONS, SEVERITIES)
NUM_PHOTOGRAPHS = 600
NUM_RESAMPLES = 1_000
"""Fewer than in the product: the share of rejections needs no precise p-values."""
DESIGNS = {
    "identical": "75 cells of the same 600 images",
    "missing": "one image missing in one of 75 cells",
    "named": "file names that carry corruption and severity",
    "slow": "a stream `slow`: each image once in each corruption, at one of its severities",
}
SEEDS = (2, 3, 5, 10)
BOUND_SIZES = (100, 200, 500, 1_000, 5_000)
BOUND_SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
Wrong = npt.NDArray[np.bool_]


def wrong_samples(generator: np.random.Generator, num_cells: int, num_images: int, order_sd: float = 0.0) -> Wrong:
    """Return whether each method is wrong on each image of each cell, (2, cells, images)."""
    hard = generator.normal(size=num_images) + np.linspace(-1.2, 0.6, num_cells)[:, None]
    own = 0.6 * generator.normal(size=(2, 1, num_images)) + order_sd * generator.normal(size=(2, 1, 1))
    return hard + own + 0.5 * generator.normal(size=(2, num_cells, num_images)) > 0


def cells_of(design: str, generator: np.random.Generator) -> Iterator[CellValues]:
    """Yield the differences of the two methods in each cell of a *design*."""
    wrong, photographs = wrong_samples(generator, len(CELLS), NUM_PHOTOGRAPHS), Photographs()
    severities = generator.choice(SEVERITIES, (len(CORRUPTIONS), NUM_PHOTOGRAPHS))
    for number, cell in enumerate(CELLS):
        shown = np.arange(NUM_PHOTOGRAPHS)
        if design == "slow":
            shown = np.flatnonzero(severities[CORRUPTIONS.index(cell.corruption)] == cell.severity)
        elif design == "missing" and number == 3:
            shown = np.delete(shown, 17)
        form = f"class/{cell.corruption}_{cell.severity}_{{:04d}}" if design == "named" else "class/{:04d}"
        every = range(NUM_PHOTOGRAPHS) if design == "slow" else shown
        numbered = photographs.number([form.format(each) for each in every], cell)
        own = numbered.numbers[shown] if design == "slow" else numbered.numbers
        difference = wrong[1, number, shown].astype(float) - wrong[0, number, shown]
        yield CellValues(values=difference, photographs=Numbered(group=numbered.group, numbers=own), cell=cell.key)


def seeded_cells(num_seeds: int, generator: np.random.Generator) -> Iterator[CellValues]:
    """Yield the differences in ten cells for each of several orders, which shift the error of each method."""
    numbers = Numbered(group=0, numbers=np.arange(NUM_PHOTOGRAPHS))
    wrong = [wrong_samples(generator, 10, NUM_PHOTOGRAPHS, order_sd=0.05) for _ in range(num_seeds)]
    for seed, each in enumerate(wrong):
        for cell in range(10):
            difference = each[1, cell].astype(float) - each[0, cell]
            yield CellValues(values=difference, photographs=numbers, cell=str(cell), seed=seed)


def is_found(design: str | int, seed: int) -> bool:
    """Return whether the test calls two methods different that are not."""
    estimates.NUM_DRAWS = NUM_RESAMPLES
    generator = np.random.default_rng([seed, *str(design).encode()])
    cells = seeded_cells(design, generator) if isinstance(design, int) else cells_of(design, generator)
    return estimate_mean(list(cells), lowest=-1).p_value <= LEVEL


def passes(num_images: int, share: float, seed: int) -> bool:
    """Return whether the bound is below the truth if a *share* of images got worse and none got better."""
    generator = np.random.default_rng([seed, num_images, round(1e6 * share)])
    is_worse = generator.random(num_images) < share
    numbers = Numbered(group=0, numbers=np.arange(num_images))
    return upper_bound([CellValues(values=is_worse.astype(float), photographs=numbers)]) < share


def count(work: Callable[..., bool], given: tuple[object, ...], seeds: Iterable[int]) -> int:
    """Return the number of *seeds* for which *work* returns true."""
    return sum(work(*given, seed) for seed in seeds)


def main(num_draws: int) -> None:
    """Print both tables."""
    console = Console(soft_wrap=True, highlight=False)
    with ProcessPoolExecutor() as processes:

        def share(work: Callable[..., bool], *given: object) -> str:
            parts = np.array_split(np.arange(num_draws), 8)
            found = processes.map(partial(count, work, given), [part.tolist() for part in parts])
            return f"{100 * sum(found) / num_draws:.1f} %"

        console.print(f"| {num_draws} pairs of equal methods | called different at 5 % |\n|---|---|")
        for design, text in DESIGNS.items():
            console.print(f"| {text} | {share(is_found, design)} |")
        for num_seeds in SEEDS:
            console.print(f"| 10 cells in {num_seeds} orders of the images | {share(is_found, num_seeds)} |")
        console.print(f"\n| images | {' | '.join(f'{100 * each:g} % worse' for each in BOUND_SHARES)} |")
        console.print("|---" * (1 + len(BOUND_SHARES)) + "|")
        for size in BOUND_SIZES:
            console.print(f"| {size:,} | {' | '.join(share(passes, size, each) for each in BOUND_SHARES)} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)
