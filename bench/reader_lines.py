"""What the reader does beyond decoding, line by line, in one process: the limit, and what each step adds to it."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.decode_limit import decode_files
from bench.figures import spread
from tta_pipeline.extras.loader_bench.baseline import read_stored_files
from tta_pipeline.loading.decode import decode_into
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.shards.checksums import checksum
from tta_pipeline.shards.shard_set import ShardSet

NUM_TURNS = 9
COLUMNS = ("what", "wall, us", "CPU, us", "limit / this, wall", "limit / this, CPU")


def line_rows(folder: Path, *, image_size: int, batch_size: int, num_threads: int) -> list[tuple[str, ...]]:
    """Return `COLUMNS` for each line: medians and ranges of the times per image, over turns of all lines."""
    shard_set = ShardSet.open(folder)
    stream = Stream(
        shard_set=shard_set, order=stored_order(shard_set.index), batch_size=batch_size, image_size=image_size,
        num_threads=num_threads,
    )  # fmt: skip
    lines = dict(_lines(list(read_stored_files(shard_set)), stream))
    found = {name: np.array(times) * 1e6 / len(stream.order) for name, times in _measure(lines).items()}
    limit = next(iter(found.values()))
    return [
        (
            f"{image_size}x{image_size} {name}",
            *(spread(each, digits=1) for each in times.T.tolist()),
            *(spread(each, digits=2) for each in (limit / times).T.tolist()),
        )
        for name, times in found.items()
    ]


def _lines(files: list[bytes], stream: Stream) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what each line does with all *files*, and a function that does it."""
    shape = (stream.batch_size, stream.image_size, stream.image_size, 3)
    for name, num_batches, decode in (
        ("decoding in memory, the limit", 1, decode_files),
        ("into as many batches in turn as a stream has", stream.prefetch + 1, decode_files),
        ("with a copy of each file", stream.prefetch + 1, _copy_and_decode),
        ("with its checksum", stream.prefetch + 1, _hash_and_decode),
    ):
        yield name, partial(_in_threads, decode, files, (num_batches * shape[0], *shape[1:]), stream.num_threads)
    yield "a stream: reads, compares checksums, hands over", partial(_read, stream)


def _read(stream: Stream) -> None:
    for _ in stream:
        pass


def _measure(lines: Mapping[str, Callable[[], None]]) -> Mapping[str, list[tuple[float, float]]]:
    """Return the wall and CPU seconds of each line in each turn; the lines of a turn follow one another."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in lines}
    for _ in range(1 + NUM_TURNS):
        for name, work in lines.items():
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            work()
            found[name].append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
    return {name: times[1:] for name, times in found.items()}  # the first turn warms up


def _in_threads(
    decode: Callable[[list[bytes], npt.NDArray[np.uint8]], None],
    files: list[bytes],
    shape: tuple[int, ...],
    num_threads: int,
) -> None:
    with ThreadPoolExecutor(num_threads) as pool:
        outs = [np.empty(shape, np.uint8) for _ in range(num_threads)]
        list(pool.map(decode, [files[number::num_threads] for number in range(num_threads)], outs))


def _copy_and_decode(files: list[bytes], out: npt.NDArray[np.uint8]) -> None:
    for number, data in enumerate(files):
        decode_into(bytes(memoryview(data)), out[number % len(out)])


def _hash_and_decode(files: list[bytes], out: npt.NDArray[np.uint8]) -> None:
    for number, data in enumerate(files):
        copy = bytes(memoryview(data))
        checksum(copy)
        decode_into(copy, out[number % len(out)])
