"""Turn a folder of class folders into shards.

    python examples/shard_folder.py data/digits_c/source/fog/5 shards/fog/5

prints

    fog|5: 600 samples in 4 shards, 600 files became 9
    every byte is what the manifest says
"""

import sys
from pathlib import Path

import tta_pipeline as tta


def main(source: str, output: str) -> None:
    """Write the shards, and verify them."""
    cell = tta.shard(source, output, num_shards=4)
    before = sum(path.is_file() for path in Path(source).rglob("*"))
    after = sum(path.is_file() for path in Path(output).iterdir())
    manifest = cell.manifest
    print(f"{manifest.cell.key}: {len(cell)} samples in {len(manifest.shards)} shards, {before} files became {after}")
    problems = [problem for verdict in tta.verify(output) for problem in verdict.problems]
    print("; ".join(problems) or "every byte is what the manifest says")


if __name__ == "__main__":
    main(*sys.argv[1:])
