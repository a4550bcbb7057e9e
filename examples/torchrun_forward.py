"""A forward pass in several processes: each reads its share of the shards, and together they read each image once.

    torchrun --nproc-per-node 2 examples/torchrun_forward.py SHARDS MODEL
    python examples/torchrun_forward.py data/digits_c/shards/fog/5 data/digits_c/source_models/digits_cnn.safetensors

The second command, with one process, prints

    600 of 600 images, 0 twice, 2,106 images/s
    2 shards, shuffled when they were written: permuted, seed 0
    rank 0: 600 images, 10 batches, 0.28 s, peak memory 0.71 GiB
      metadata scan 0.01 s, pipeline setup 0.00 s
      first batch 0.01 s, computed in 0.03 s
"""

import os
import sys

import torch

import tta_pipeline as tta


def main(folder: str, model: str) -> None:
    """Evaluate this process's share, and print the figures of all in the first process."""
    rank, num_ranks, gpu = (int(os.environ.get(*each)) for each in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    cell = tta.open_shards(folder, rank=rank, num_ranks=num_ranks)
    network = tta.load_model(model).to(f"cuda:{gpu}" if torch.cuda.is_available() else "cpu")
    own = tta.evaluate(tta.build("source", network, num_classes=len(cell.classes)), cell, keep=True)
    found = [own] * num_ranks
    if num_ranks > 1:
        torch.distributed.init_process_group("gloo")
        torch.distributed.all_gather_object(found, own)
        torch.distributed.destroy_process_group()
    if rank == 0:
        print_figures(cell, found)


def print_figures(cell: tta.Shards, found: list[tta.Evaluation]) -> None:
    """Print the figures of all processes together, of the shards, and of each process."""
    keys, facts = [key for each in found for key in each.predictions["key"].to_pylist()], cell.manifest
    images_per_s = f"{len(keys) / max(each.time.wall_s for each in found):,.0f} images/s"
    print(f"{len({*keys})} of {facts.num_samples} images, {len(keys) - len({*keys})} twice, {images_per_s}")
    print(f"{len(facts.shards)} shards, shuffled when they were written: {facts.order.name}, seed {facts.order.seed}")
    for rank, each in enumerate(found):
        time, peak = each.time, f"peak memory {each.cost.peak_cuda_gib or each.cost.peak_rss_gib:.2f} GiB"
        print(f"rank {rank}: {each.scores.num_samples} images, {time.num_batches} batches, {time.wall_s:.2f} s, {peak}")
        print(f"  metadata scan {time.metadata_scan_s:.2f} s, pipeline setup {time.pipeline_setup_s:.2f} s")
        print(f"  first batch {time.time_to_first_batch_s:.2f} s, computed in {time.first_batch_compute_s:.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
