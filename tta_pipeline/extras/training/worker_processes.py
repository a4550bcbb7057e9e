"""Worker processes of a torch `DataLoader`, wherever a training runs."""

import multiprocessing
from collections.abc import Generator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

_PRELOADED = "tta_pipeline.extras.training.input"


def read_in_processes(dataset: Dataset[Any], *, num_workers: int, seed: int = 0, **options: Any) -> Generator[Any]:
    """Yield the items of a `DataLoader`; its worker processes end with the iteration, also after an error.

    Args:
        dataset: The dataset, pickled for each process.
        num_workers: Number of processes; at least one is started.
        seed: Seed of the loader: with the global generator, the loader would affect the weights.
        options: More options of the `DataLoader`.
    """
    # From a server that has imported this project once: a fork of this process would inherit the locks of its threads,
    # and `spawn`, which runs started by Dagster's web server would use, imports torch again in each process and epoch.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PRELOADED])
    found = iter(
        DataLoader(
            dataset,
            num_workers=max(1, num_workers),
            multiprocessing_context=context,
            generator=torch.Generator().manual_seed(seed),
            **options,
        )
    )
    try:
        yield from found
    finally:
        # Otherwise a garbage collection ends them long after an error, and torch then waits 5 s for each.
        found._shutdown_workers()  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public function
