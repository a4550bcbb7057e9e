"""The machine that evaluates: what it is told to use, and what it is."""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

import torch

from tta_pipeline.evaluation.accelerator import name_of


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What evaluations run on; plain values, so that it can be told to another process."""

    device: str = "auto"
    """auto: a CUDA device that is free, else the CPU; cpu; cuda: a free one; cuda:1: that one."""
    num_threads: int = 2
    """Decoding threads."""
    decoded_folder: str = ""
    """Where cells are kept as decoded pixels for the next experiment; nowhere if empty."""
    decoded_limit_bytes: int = 0
    stage_folder: str = ""
    """Where the shards of a cell are copied before they are read; read in their place if empty."""
    stage_limit_bytes: int = 0


class MachineFacts(TypedDict):
    """What decides how fast a process computes, as the columns of an evaluation are called."""

    device: str
    gpu_name: str | None
    cpu_model: str
    num_cores: int
    compute_threads: int


def machine_facts(device: torch.device) -> MachineFacts:
    """Return what decides how fast this process computes on *device*."""
    gpu_name = name_of(device)
    return {
        "device": gpu_name or "cpu",
        "gpu_name": gpu_name,
        "cpu_model": cpu_model(),
        "num_cores": len(os.sched_getaffinity(0)),
        "compute_threads": torch.get_num_threads(),
    }


@cache
def cpu_model() -> str:
    """Return the model of the processor, as the kernel calls it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"  # some ARM kernels do not say


def load_average() -> float | None:
    """Return how many processes ran or waited over the last minute; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
