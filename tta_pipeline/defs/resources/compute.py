"""Compute settings: the device, the threads that feed it, and caches."""

from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

if TYPE_CHECKING:
    from tta_pipeline.evaluation.machine import Machine


class Compute(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The device that evaluates and the threads that feed it."""

    device: str = Field(
        default="auto",
        description="auto (an accelerator that no other run uses, otherwise cpu), cpu, a kind such as cuda, or cuda:1",
    )
    decode_threads: int = Field(
        default=0, ge=0, description="Threads that decode images; 0: one for each core, at most 8"
    )
    streams_per_device: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Runs that may share an accelerator, each with its own stream: at small batches, one stream "
        "leaves it idle; 1: one run only",
    )
    checkpoint_every: int = Field(
        default=100_000,
        ge=1,
        description="Number of images after which a segment's state is saved, so that a killed run loses no more than "
        "that; predictions are the same for any number",
    )
    local_scratch_dir: str = Field(
        default="",
        description="Folder to which shards are copied ahead of the reader, for the next experiment too: `$TMPDIR`, or "
        "another folder on node-local disk; empty: shards are read in place, and only those at URLs are copied, to "
        "$TMPDIR",
    )
    local_scratch_limit_gib: float = Field(
        default=16.0,
        ge=0.125,
        description="Size limit of these copies, in GiB; a shard that would exceed it is read in place",
    )
    cache_dir: str = Field(
        default="",
        description="Folder in which cells are kept as decoded pixels for the next experiment on them: on local disk, "
        "or below /dev/shm for memory; also for features of frozen models; empty: none",
    )
    cache_limit_gib: float = Field(default=16.0, gt=0, description="Size limit of that folder, in GiB")

    def machine(self) -> "Machine":
        """Return the same settings as a `Machine`, without Dagster."""
        from tta_pipeline.evaluation.machine import Machine

        return Machine(
            device=self.device,
            decode_threads=self.decode_threads,
            streams_per_device=self.streams_per_device,
            checkpoint_every=self.checkpoint_every,
            local_scratch_dir=self.local_scratch_dir,
            local_scratch_limit_bytes=int(self.local_scratch_limit_gib * 2**30),
            cache_dir=self.cache_dir,
            cache_limit_bytes=int(self.cache_limit_gib * 2**30),
        )
