"""The data-set card of the Hub, which is the README of the folder: https://huggingface.co/docs/hub/datasets-cards."""

from collections.abc import Iterator

import yaml

from tta_pipeline.extras.publishing.data_set import DataSet
from tta_pipeline.util.json_values import JsonObject

CROISSANT_FILE = "croissant.json"
PREVIEW_FILE = "preview.png"
CLASSES_FILE = "classes.txt"
SUMS_FILE = "SHA256SUMS"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
          (10_000_000, "1M<n<10M"))  # fmt: skip
_LARGEST = "10M<n<100M"
"""The Hub's size categories with their exclusive upper limits on the number of images."""


def card_text(data_set: DataSet) -> str:
    """Return the text of `README.md`: the Hub's settings, with one `config` for each cell, and a text for readers."""
    head = yaml.safe_dump(_settings(data_set), sort_keys=False, allow_unicode=True, width=10_000)
    return f"---\n{head}---\n\n" + "\n".join(_lines(data_set)) + "\n"


def _settings(data_set: DataSet) -> JsonObject:
    size = next((name for limit, name in _SIZES if data_set.num_samples < limit), _LARGEST)
    return {
        "pretty_name": data_set.title,
        "license": data_set.terms.hub_name,
        "task_categories": ["image-classification"],
        "tags": ["robustness", "distribution-shift", "webdataset", "croissant"],
        "size_categories": [size],
        "configs": [
            {"config_name": cell.name, "data_files": [{"split": "test", "path": f"{cell.place}/*.tar"}]}
            for cell in data_set.cells
        ],
    }


def _lines(data_set: DataSet) -> Iterator[str]:
    terms, first = data_set.terms, data_set.cells[0]
    image = first.image_types[0]
    yield f"# {data_set.title}"
    yield ""
    yield data_set.description
    yield ""
    yield f"![The same image in each cell]({PREVIEW_FILE})"
    yield ""
    yield "```python"
    yield "from datasets import load_dataset"
    yield ""
    yield f'cell = load_dataset("PATH OR NAME OF THIS DATA SET", "{first.name}", split="test")'
    yield f'image, label = cell[0]["{image}"], cell[0]["cls"]'
    yield "```"
    yield ""
    yield f"- Classes, in the order of their labels: `{CLASSES_FILE}`."
    yield "- Each folder below `shards` is one cell: its tars, `manifest.json`, and `samples.parquet` with the key,"
    yield "  label, place and sha256 of each sample. `__key__` of a record is the key."
    yield f"- Is everything here? `sha256sum --check --quiet {SUMS_FILE}`."
    yield f"- `{CROISSANT_FILE}` describes the set in Croissant 1.1, which `mlcroissant` loads."
    yield f"- Licence: {terms.licence or 'none is stated'}." + (
        f" {terms.address}" if terms.hub_name != "other" else ""
    )
    if terms.homepage:
        yield f"- The published set: {terms.homepage}"
    if terms.citation:
        yield f"- Cite: {terms.citation}"
    yield ""
    yield "| cell | images | shards | MB |"
    yield "|---|---|---|---|"
    for cell in data_set.cells:
        manifest = cell.shard_set.manifest
        size = f"{manifest.shard_bytes / 1e6:,.1f}"
        yield f"| {cell.name} | {manifest.num_samples:,} | {len(manifest.shards)} | {size} |"
