"""Cost of methods that need no gradient, and of DPCore, beside `source` and `tent`: `python -m bench.forward_only`.

A small ViT (6 blocks of 96 channels, 64 patches) and batches of 64 images of 32 x 32 pixels in memory, in one thread.
Each method runs in its own process. Its memory is how far the peak of the process grows from before the method is
built, so it includes the statistics of the source; its speed is counted in seconds of the CPU. Medians of three
processes. The weights are random: neither speed nor memory depends on them.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

from tta_pipeline.methods import build

METHODS = ("source", "tent", "dpcore", "foa", "fozo", "zoa")
NUM_CLASSES, BATCH_SIZE = 10, 64
NUM_BATCHES = int(os.environ.get("BENCH_BATCHES", "6"))
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))


def main() -> None:
    """Measure each method of the table, or, with a method's name, that method alone, as JSON."""
    if sys.argv[1:]:
        sys.stdout.write(json.dumps(measure(sys.argv[1])))
        return
    table = Table("method", "forwards an image", "backwards", "peak grows by, MiB", "images/s of the CPU", box=None)
    for method in METHODS:
        command = [sys.executable, "-m", __spec__.name, method]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        table.add_row(
            method, *(f"{found[name]:,.0f}" for name in ("forwards", "backwards", "peak_mib", "images_per_s"))
        )
    Console().print(table)


def measure(method: str) -> dict[str, float]:
    """Return passes for each image, peak memory (MiB) and speed of *method* in this process."""
    from timm.models.vision_transformer import VisionTransformer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = VisionTransformer(
        img_size=32, patch_size=4, embed_dim=96, depth=6, num_heads=3, num_classes=NUM_CLASSES
    ).eval()
    batches = [torch.rand(BATCH_SIZE, 3, 32, 32) for _ in range(NUM_BATCHES)]
    held_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    adapted = build(
        method, network, num_classes=NUM_CLASSES, preset="imagenet_vit",
        source_data=None if method in ("source", "tent") else [(each, torch.zeros(BATCH_SIZE)) for each in batches],
    )  # fmt: skip
    seconds = []
    for images in batches:
        begun = time.process_time()
        adapted.predict(images)
        seconds.append(time.process_time() - begun)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    num_images = BATCH_SIZE * NUM_BATCHES
    return {
        "forwards": adapted.num_forwards / num_images,
        "backwards": adapted.num_backwards / num_images,
        "peak_mib": (peak_kib - held_kib) / 1024,
        "images_per_s": BATCH_SIZE / statistics.median(seconds[1:]),
    }


if __name__ == "__main__":
    main()
