"""Cost of comparing every sample on every read: CPU time of the reader with and without the comparison."""

import resource
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tta_pipeline.domain.ordering import Indices
from tta_pipeline.loading.decode import decode_into
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stored_pixels import StoredPixels, adjacent_runs
from tta_pipeline.loading.stream_order import order_of, stored_order
from tta_pipeline.shards.shard_set import ShardSet

NUM_TURNS = 9
NUM_PARTS = 20


class UncheckedPixels(StoredPixels):
    """Reads and decodes without comparing checksums."""

    def fill(self, indices: Indices, out: npt.NDArray[np.uint8]) -> None:
        """Read and decode the samples at *indices* into *out*."""
        samples = self._shard_set.index
        shards, offsets, sizes = samples.shards[indices], samples.offsets[indices], samples.sizes[indices]
        for first, last in adjacent_runs(shards, offsets, sizes):
            start, end = int(offsets[first]), int(offsets[last - 1] + sizes[last - 1])
            block = self._read(int(shards[first]), start, end, indices[first:last])
            starts = offsets[first:last] - start
            slices = zip(starts.tolist(), (starts + sizes[first:last]).tolist(), out[first:last], strict=True)
            for number, (image_start, image_end, image) in enumerate(slices, start=first):
                try:
                    decode_into(block[image_start:image_end], image)
                except ValueError as error:
                    raise self.unreadable_error(int(indices[number]), str(error)) from error


KINDS: tuple[type[StoredPixels], ...] = (StoredPixels, UncheckedPixels)


def checking_ratios(folder: Path, *, image_size: int, batch_size: int, num_threads: int) -> list[float]:
    """Return, for each turn, the CPU time of a pass with comparison, divided by a pass's without.

    Each turn is one pass of each kind, in alternating parts, so that other work on the machine affects both alike. Only
    the CPU time of this process counts, user and system, since other processes disturb it less than the wall time.
    """
    shard_set = ShardSet.open(folder)
    parts = np.array_split(np.arange(len(shard_set.index)), NUM_PARTS)
    stream = Stream(
        shard_set=shard_set, order=stored_order(shard_set.index), batch_size=batch_size, image_size=image_size,
        num_threads=num_threads,
    )  # fmt: skip
    ratios = []
    for turn in range(-1, NUM_TURNS):
        cpu_s = dict.fromkeys(KINDS, 0.0)
        for number, part in enumerate(parts):
            for kind in KINDS if (turn + number) % 2 else KINDS[::-1]:
                order = order_of(shard_set.index, part)
                cpu_s[kind] += _pass_s(replace(stream, order=order, open_pixels=kind))
        ratios.append(cpu_s[StoredPixels] / cpu_s[UncheckedPixels])
    return ratios[1:]  # the first turn warms up


def checking_row(folder: Path, *, image_size: int, batch_size: int, num_threads: int) -> tuple[str, str]:
    """Return a description of the measurement, and the median of the ratios with their range."""
    ratios = checking_ratios(folder, image_size=image_size, batch_size=batch_size, num_threads=num_threads)
    return (
        f"{image_size}x{image_size} CPU time with every sample compared, over that without",
        f"{statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]",
    )


def _pass_s(stream: Stream) -> float:
    """Return the CPU seconds of reading *stream*."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in stream:
        pass
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
