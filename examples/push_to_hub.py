"""Upload a benchmark's shards to the Hugging Face Hub. Requires `pip install huggingface_hub` and `hf auth login`.

Others read a cell from there: `tta.open_shards("hf://datasets/you/digits_c/fog/5")`.

    python examples/push_to_hub.py data/digits_c/shards you/digits_c

prints

    you/digits_c: 77 shard sets, 156 shards, 65.8 MB
"""

import sys

from huggingface_hub import HfApi

import tta_pipeline as tta

FILES_OF_A_SET = ["*.tar", "*manifest.json", "*samples.parquet", "*checksums.xxh64"]
"""Not `writer.json` and `verified.json`, which only concern this machine."""


def main(folder: str, repository: str) -> None:
    """Hash every shard, and upload the sets if all match their manifests."""
    verdicts = tta.verify(folder)
    if problems := [problem for verdict in verdicts for problem in verdict.problems]:
        sys.exit("; ".join(problems))
    api = HfApi()
    api.create_repo(repository, repo_type="dataset", exist_ok=True)
    api.upload_folder(repo_id=repository, repo_type="dataset", folder_path=folder, allow_patterns=FILES_OF_A_SET)
    num_shards, num_bytes = (sum(getattr(each, name) for each in verdicts) for name in ("num_shards", "shard_bytes"))
    print(f"{repository}: {len(verdicts)} shard sets, {num_shards} shards, {num_bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
