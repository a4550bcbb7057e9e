"""Section of JPEG decoding on the GPU: is it faster, and does it return the same pixels as libjpeg-turbo?"""

import time
from collections.abc import Iterator

import numpy as np
import simplejpeg
import torch
from torchvision.io import decode_jpeg

from bench.decode_limit import decoded_images_per_s
from bench.gpu_day.lines import Figure
from bench.gpu_day.passes import NOT_HERE, lease_device, median, shards_of
from bench.gpu_day.plan import Plan
from tta_pipeline.evaluation.device.clock import Clock
from tta_pipeline.evaluation.machine import default_decode_threads
from tta_pipeline.extras.loader_bench.baseline import read_stored_files


def jpeg(plan: Plan) -> Iterator[Figure]:
    """Decode the same files on the device and by CPU threads."""
    shard_set = shards_of(plan)
    files = [data for data, _ in zip(read_stored_files(shard_set), range(4 * plan.batch_size), strict=False)]
    threads = default_decode_threads()
    rate = decoded_images_per_s(
        shard_set.folder, image_size=plan.image_size, batch_size=plan.batch_size, num_threads=threads
    )
    yield Figure(what=f"JPEG decoded by {threads} threads", found=rate, unit="images/s", is_speed=True)
    with lease_device(plan) as device:
        if device.type != "cuda":
            yield Figure(what="JPEG decoded on the GPU", why_not=NOT_HERE)
            return
        clock, rates = Clock(device), []
        encoded = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
        for _ in range(plan.turns + 1):
            started = time.perf_counter()
            decoded = [
                image
                for start in range(0, len(encoded), plan.batch_size)
                for image in decode_jpeg(encoded[start : start + plan.batch_size], device=device)
            ]
            clock.synchronize()
            rates.append(len(files) / (time.perf_counter() - started))
        yield median("JPEG decoded on the GPU", rates[1:], unit="images/s")
        differences = [
            np.abs(image.cpu().permute(1, 2, 0).numpy().astype(int) - simplejpeg.decode_jpeg(data, "RGB")).max()
            for image, data in zip(decoded[:64], files, strict=False)
        ]
        yield Figure(what="largest difference of a pixel to libjpeg-turbo's, of 255", found=float(max(differences)))
