"""One training by several processes of `torchrun`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from tta_pipeline.evaluation.device.devices import distributed_backend, select_device_of_rank


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's rank among the processes that train together."""

    rank: int = 0
    num_ranks: int = 1
    device: torch.device | None = None
    """Device of this process; None: any free one."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes checkpoints and results."""
        return self.rank == 0

    def wait_for_all(self) -> None:
        """Block until every process has called this method."""
        if self.num_ranks > 1:
            dist.barrier()


SINGLE_RANK = Ranks()


@contextmanager
def ranks_of_torchrun() -> Iterator[Ranks]:
    """Join the process group of `torchrun` with the backend for this kind of device, and yield this process's rank."""
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = select_device_of_rank(local_rank)
    dist.init_process_group(distributed_backend(device))
    try:
        yield Ranks(rank=rank, num_ranks=dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()
