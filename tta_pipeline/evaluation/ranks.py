"""One evaluation by several processes, as `torchrun` starts them: each takes every n-th batch, one gathers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.accelerator import device_of_rank
from tta_pipeline.evaluation.one_pass import Pass
from tta_pipeline.evaluation.protocol_driver import ProtocolDriver
from tta_pipeline.evaluation.scores import chosen, joined
from tta_pipeline.streaming.order import StreamOrder


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among those that evaluate together."""

    rank: int = 0
    num_ranks: int = 1
    device: torch.device | None = None
    """What this process computes on; None: whatever is free."""

    @property
    def is_first(self) -> bool:
        """Whether this process gathers and records."""
        return self.rank == 0

    def wait_for_all(self) -> None:
        """Return when every process has come here."""
        if self.num_ranks > 1:
            dist.barrier()

    def require_stateless(self, driver: ProtocolDriver) -> None:
        """Refuse a method that carries something from batch to batch, which no other process would know.

        Raises:
            EvaluationError: there are several processes, and the method of *driver* adapts or gets more than a batch.
        """
        if self.num_ranks > 1 and not driver.is_stateless:
            raise EvaluationError(
                f"found {type(driver.method).__name__} in {self.num_ranks} processes; expected a method that treats "
                "each batch by itself, such as source or norm: launch one process"
            )

    def share(self, order: StreamOrder, batch_size: int) -> StreamOrder:
        """Return the samples of every `num_ranks`-th batch of *order*, the batches staying what they are.

        Raises:
            EvaluationError: there are fewer batches than processes.
        """
        if self.num_ranks == 1:
            return order
        num_batches = -(-len(order) // batch_size)
        if num_batches < self.num_ranks:
            raise EvaluationError(
                f"found {self.num_ranks} processes for {num_batches} batches of {batch_size}; expected a batch for "
                "each: launch fewer, or lower batch_size"
            )
        starts = range(self.rank * batch_size, len(order), self.num_ranks * batch_size)
        parts = [order.indices[start : start + batch_size] for start in starts]
        return replace(order, indices=np.concatenate(parts))

    def gathered(self, part: Pass, counters: dict[str, int]) -> tuple[Pass, dict[str, int]]:
        """Return the whole pass in stream order and the sums of all counters; what others than the first get is theirs.

        The time is that of the slowest.
        """
        if self.num_ranks == 1:
            return part, counters
        everything: list[tuple[Pass, dict[str, int]] | None] = [None] * self.num_ranks
        dist.gather_object((part, counters), everything if self.is_first else None, dst=0)
        if not self.is_first:
            return part, counters
        parts = [each for each in everything if each is not None]
        sums = {name: sum(each[name] for _, each in parts) for name in counters}
        return merged([each for each, _ in parts]), sums


ALONE = Ranks()


@contextmanager
def ranks_of_torchrun() -> Iterator[Ranks]:
    """Yield this process's place among those of `torchrun`, joined by NCCL on CUDA devices and by gloo on CPUs."""
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = device_of_rank(local_rank)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    try:
        yield Ranks(rank=rank, num_ranks=dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()


def merged(parts: list[Pass]) -> Pass:
    """Put the batches of all ranks back into the order of the stream."""
    edges = [np.cumsum([0, *(batch.num_samples for batch in part.batches)]) for part in parts]
    turns = [
        (number, slice(ends[number], ends[number + 1]), part)
        for part, ends in zip(parts, edges, strict=True)
        for number in range(len(part.batches))
    ]
    # Stable: of equal turns the lower rank comes first, as the batches were dealt.
    turns.sort(key=lambda turn: turn[0])
    return Pass(
        samples=joined([chosen(part.samples, samples) for _, samples, part in turns]),
        batches=tuple(part.batches[number] for number, _, part in turns),
        wall_s=max(part.wall_s for part in parts),
    )
