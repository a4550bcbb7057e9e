"""Ways to decode, crop and flip training images; each is measured over one pass, in the calling process."""

import os
import resource
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from tta_pipeline.benchmarks.training_recipe import TrainingInputSettings
from tta_pipeline.data.image_bytes import read_image_header
from tta_pipeline.extras.loader_bench.baseline import MEAN, STD, read_stored_files
from tta_pipeline.extras.training.augmented_pixels import as_uniform, draw_numbers, key_hashes
from tta_pipeline.extras.training.crops import NUM_DRAWS, random_crop_box
from tta_pipeline.extras.training.input import TrainingInput
from tta_pipeline.loading.decode import decode_rows
from tta_pipeline.shards.shard_set import ShardSet

NUM_CORES = len(os.sched_getaffinity(0))
BATCH_SIZE, IMAGE_SIZE = 64, 224


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Speed and CPU cost of one pass."""

    images_per_s: float
    cpu_us: float
    """Microseconds of CPU time per image, worker processes included."""


def measure_input(shards: Path) -> Measured:
    """Measure this project's input: bytes that are compared with the manifest, and normalised on the device later."""
    source = TrainingInput(
        shard_set=ShardSet.open(shards),
        settings=TrainingInputSettings(augmentation="full"),
        image_size=IMAGE_SIZE,
        batch_size=BATCH_SIZE,
        seed=0,
        num_threads=NUM_CORES,
    )
    return _measure(len(batch.labels) for batch in source.epoch(0))


def measure_torchvision(images: Path, num_workers: int, is_normalised: bool) -> Measured:  # noqa: FBT001 - sent to a process
    """Measure the loader in the examples of torchvision and PyTorch."""
    output: list[Any] = [transforms.PILToTensor()]
    if is_normalised:
        output = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    dataset = ImageFolder(
        str(images),
        transforms.Compose([transforms.RandomResizedCrop(IMAGE_SIZE), transforms.RandomHorizontalFlip(), *output]),
    )
    loader = DataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=num_workers)
    return _measure(len(labels) for _, labels in loader)


def measure_dali(images: Path) -> Measured:
    """Measure the same pipeline in NVIDIA DALI on the CPU, which decodes only the region of the crop."""
    from nvidia.dali import Pipeline, fn

    pipeline = Pipeline(BATCH_SIZE, NUM_CORES, None, seed=0)
    with pipeline:
        encoded, _ = fn.readers.file(file_root=str(images), random_shuffle=True, name="files")
        cropped = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        resized = fn.resize(cropped, size=[IMAGE_SIZE, IMAGE_SIZE])
        pipeline.set_outputs(fn.flip(resized, horizontal=fn.random.coin_flip()))
    pipeline.build()
    num_batches = int(pipeline.epoch_size("files")) // BATCH_SIZE
    return _measure(len(pipeline.run()[0]) for _ in range(num_batches))


def measure_decoding(shards: Path) -> Measured:
    """Measure the limit: independent threads decode, from files in memory, only the rows that a crop needs."""
    files = list(read_stored_files(ShardSet.open(shards)))
    numbers = draw_numbers(key_hashes([str(place) for place in range(len(files))]), seed=0, epoch=0, count=NUM_DRAWS)
    crops = as_uniform(numbers).tolist()

    def decode(places: Sequence[int]) -> int:
        for place in places:
            header = read_image_header(files[place])
            box = random_crop_box(header.height, header.width, crops[place])
            decode_rows(files[place], header, end=box.top + box.height)
        return len(places)

    with ThreadPoolExecutor(NUM_CORES) as pool:
        return _measure(pool.map(decode, np.array_split(range(len(files)), len(files) // 16)))


def _measure(counts: Iterator[int]) -> Measured:
    """Time an epoch whose batches have *counts* images; the time includes the start of processes."""
    cpu_s, started = _cpu_s(), time.perf_counter()
    count = sum(counts)
    wall_s = time.perf_counter() - started
    return Measured(images_per_s=count / wall_s, cpu_us=1e6 * (_cpu_s() - cpu_s) / count)


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
