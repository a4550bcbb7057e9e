"""The GPU part of the figures, on any machine with a GPU: `python -m bench.gpu`.

ResNet-50, 224 px, bf16: JPEG shards end to end against the forward pass on batches that are already on the device. The
weights are random: speed does not depend on them.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torchvision.models import resnet50

from bench.sharding import QUIET
from tta_pipeline.adaptation import build
from tta_pipeline.benchmarks.shards import ShardSettings
from tta_pipeline.evaluation.one_pass import run_pass
from tta_pipeline.evaluation.protocol_driver import ProtocolDriver
from tta_pipeline.evaluation.scores import scored_samples
from tta_pipeline.labels.class_map import ClassMap
from tta_pipeline.loader_bench.photographs import jpeg_tree
from tta_pipeline.partitions import CLEAN
from tta_pipeline.shards.manifest import ShardSet
from tta_pipeline.shards.read_back import publish_shard_set
from tta_pipeline.shards.writing import Target, write_shards
from tta_pipeline.sources.folder_tree import discover
from tta_pipeline.streaming.device import as_floats
from tta_pipeline.streaming.order import as_stored
from tta_pipeline.streaming.reader import Stream

REPEATS = 5
BATCH_SIZE = 256
NUM_THREADS = len(os.sched_getaffinity(0))


def main() -> None:
    """Measure in turn, and print medians and ranges."""
    if not torch.cuda.is_available():
        sys.exit("found no CUDA device; expected one: run this where there is a GPU")
    device = torch.device("cuda")
    data = Path(os.environ.get("TTA_DATA_ROOT", "data")) / "bench"
    tree = jpeg_tree(data / "tree_224", num_images=6000, size=224)
    with tempfile.TemporaryDirectory(dir=data) as folder:
        shard_set = _shard_set(tree, Path(folder) / "shards")
        resident, streamed = [], []
        for repeat in range(REPEATS + 1):
            speeds = _resident(device), _streamed(shard_set, device)
            if repeat:  # the first warms up
                resident.append(speeds[0])
                streamed.append(speeds[1])
    ratios = [ours / limit for ours, limit in zip(streamed, resident, strict=True)]
    table = Table(title=f"{torch.cuda.get_device_name()}, {NUM_THREADS} decoding threads, torch {torch.__version__}")
    for name in ("what", "images/s", "ratio", "asked"):
        table.add_column(name)
    table.add_row("ResNet-50, 224 px, bf16, forward on resident data", _spread(resident), "", "")
    table.add_row("  the same from JPEG shards, end to end", _spread(streamed), _spread(ratios, ".3f"), ">= 0.95")
    Console(width=140).print(table)


def _shard_set(tree: Path, folder: Path) -> ShardSet:
    source = discover(tree, group_depth=0)
    class_map = ClassMap(classes=source.class_names())
    target = Target(folder=folder, benchmark_name="bench", source_kind="folder")
    settings = ShardSettings(num_shards=8)
    write_shards(source.listing(CLEAN), target, version="1", class_map=class_map, settings=settings, progress=QUIET)
    return publish_shard_set(folder, class_map, QUIET).shard_set


def _model(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return resnet50().to(device).to(memory_format=torch.channels_last)


def _resident(device: torch.device) -> float:
    """Return images/s of only the forward pass, including what `run_pass` does with a batch."""
    method = build("source", _model(device), num_classes=1000)
    images = torch.randint(0, 256, (BATCH_SIZE, 224, 224, 3), dtype=torch.uint8, device=device)
    labels = torch.zeros(BATCH_SIZE, dtype=torch.int64)
    for number in range(34):
        if number == 10:  # ten batches warm up
            torch.cuda.synchronize()
            started = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            scored_samples(method.predict(as_floats(images)).float().log_softmax(1), labels, labels)
    torch.cuda.synchronize()
    return 24 * BATCH_SIZE / (time.perf_counter() - started)


def _streamed(shard_set: ShardSet, device: torch.device) -> float:
    method = build("source", _model(device), num_classes=1000)
    stream = Stream(
        shard_set=shard_set, order=as_stored(shard_set.index), batch_size=BATCH_SIZE, image_size=224,
        num_threads=NUM_THREADS, pin_memory=True,
    )  # fmt: skip
    driver = ProtocolDriver(method)
    for _ in range(2):  # the first warms up
        result = run_pass(driver, stream, device=device, precision="bf16", advance=lambda _: None)
    return len(shard_set.index) / result.wall_s


def _spread(values: list[float], form: str = ",.0f") -> str:
    return f"{statistics.median(values):{form}} [{min(values):{form}}-{max(values):{form}}]"


if __name__ == "__main__":
    main()
