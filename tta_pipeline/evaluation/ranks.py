"""One evaluation by several processes of `torchrun`: each takes every n-th batch, and the first gathers results."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.device.devices import distributed_backend, select_device_of_rank
from tta_pipeline.evaluation.one_pass import Pass
from tta_pipeline.evaluation.protocol_driver import ProtocolDriver
from tta_pipeline.evaluation.scores import concatenate_scores, select_samples
from tta_pipeline.loading.stream_order import StreamOrder


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's rank among the processes that evaluate together."""

    rank: int = 0
    num_ranks: int = 1
    device: torch.device | None = None
    """Device of this process; None: any free one."""

    @property
    def is_first(self) -> bool:
        """Whether this process gathers and records the results."""
        return self.rank == 0

    def wait_for_all(self) -> None:
        """Block until every process has called this method."""
        if self.num_ranks > 1:
            dist.barrier()

    def require_stateless(self, driver: ProtocolDriver) -> None:
        """Refuse a method that carries state from batch to batch, since the other processes would lack it.

        Raises:
            EvaluationError: there are several processes, and the method of *driver* adapts or gets more than one batch.
        """
        if self.num_ranks > 1 and not driver.is_stateless:
            raise EvaluationError(
                f"found {type(driver.method).__name__} in {self.num_ranks} processes; expected a method that treats "
                "each batch independently, such as source or norm: launch one process"
            )

    def take_share(self, order: StreamOrder, batch_size: int) -> StreamOrder:
        """Return this rank's samples: every `num_ranks`-th batch of *order*; the batches do not change.

        Raises:
            EvaluationError: there are fewer batches than processes.
        """
        if self.num_ranks == 1:
            return order
        num_batches = -(-len(order) // batch_size)
        if num_batches < self.num_ranks:
            raise EvaluationError(
                f"found {self.num_ranks} processes for {num_batches} batches of {batch_size}; expected a batch for "
                "each process: launch fewer, or lower batch_size"
            )
        starts = range(self.rank * batch_size, len(order), self.num_ranks * batch_size)
        parts = [order.indices[start : start + batch_size] for start in starts]
        return replace(order, indices=np.concatenate(parts))

    def gather(self, part: Pass, counters: dict[str, int]) -> tuple[Pass, dict[str, int]]:
        """Gather the whole pass in stream order, and the summed counters, on the first rank; others keep their part.

        The wall time is the slowest process's.
        """
        if self.num_ranks == 1:
            return part, counters
        everything: list[tuple[Pass, dict[str, int]] | None] = [None] * self.num_ranks
        dist.gather_object((part, counters), everything if self.is_first else None, dst=0)
        if not self.is_first:
            return part, counters
        parts = [each for each in everything if each is not None]
        sums = {name: sum(each[name] for _, each in parts) for name in counters}
        return merge_passes([each for each, _ in parts]), sums


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


def merge_passes(parts: list[Pass]) -> Pass:
    """Merge the batches of all ranks in the order of the stream."""
    edges = [np.cumsum([0, *(batch.num_samples for batch in part.batches)]) for part in parts]
    turns = [
        (number, slice(ends[number], ends[number + 1]), part)
        for part, ends in zip(parts, edges, strict=True)
        for number in range(len(part.batches))
    ]
    # The sort is stable: within a round the lower rank comes first, as when the batches were dealt out.
    turns.sort(key=lambda turn: turn[0])
    return Pass(
        samples=concatenate_scores([select_samples(part.samples, samples) for _, samples, part in turns]),
        class_gaps=np.sum([part.class_gaps for part in parts], axis=0),
        batches=tuple(part.batches[number] for number, _, part in turns),
        wall_s=max(part.wall_s for part in parts),
    )
