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
def joined_ranks() -> Iterator[Ranks]:
    """Yield this process's rank among those that `torchrun`, or a launcher like it, has started, and join them."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield SINGLE_RANK
        return
    device = select_device_of_rank(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(distributed_backend(device))
    try:
        yield Ranks(rank=dist.get_rank(), num_ranks=dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()
