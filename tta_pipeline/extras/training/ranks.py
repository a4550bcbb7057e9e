"""One training by several processes of `torchrun`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tta_pipeline.evaluation.device.devices import distributed_backend, select_device_of_rank


@contextmanager
def joined_ranks() -> Iterator[torch.device | None]:
    """Join the processes that `torchrun`, or a launcher like it, has started, and yield this one's device.

    None: this process is alone, and uses any free device.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield None
        return
    device = select_device_of_rank(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(distributed_backend(device))
    try:
        yield device
    finally:
        dist.destroy_process_group()


def own_rank() -> tuple[int, int]:
    """Return this process's number, from 0, and the number of processes that train together."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def told_by_first(what: Any) -> Any:
    """Return the first process's *what*; every process must call this function, and waits for the first."""
    if not dist.is_initialized():
        return what
    told = [what]
    dist.broadcast_object_list(told)
    return told[0]
