"""The upper limit for any loader: independent threads decode JPEG files from memory."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import simplejpeg

from tta_pipeline.extras.loader_bench.baseline import read_stored_files
from tta_pipeline.shards.shard_set import ShardSet


def decoded_images_per_s(folder: Path, *, image_size: int, batch_size: int, num_threads: int) -> float:
    """Return the number of images of the shard set in *folder* decoded per second, in the second of two passes."""
    files = list(read_stored_files(ShardSet.open(folder)))
    for _ in range(2):
        started = time.perf_counter()
        with ThreadPoolExecutor(num_threads) as pool:
            shares = [files[number::num_threads] for number in range(num_threads)]
            outs = [np.empty((batch_size, image_size, image_size, 3), np.uint8) for _ in shares]
            list(pool.map(decode_files, shares, outs))
        wall_s = time.perf_counter() - started
    return len(files) / wall_s


def decode_files(files: list[bytes], out: npt.NDArray[np.uint8]) -> None:
    """Decode *files* into *out*, uint8 (B, H, W, 3), again and again from its start."""
    for number, data in enumerate(files):
        simplejpeg.decode_jpeg(data, "RGB", buffer=out[number % len(out)])
