"""Every method for CLIP on three sets: `python -m bench.clip_table CIFAR`.

CIFAR is the folder of `bench.leaderboard`. A small CLIP is trained first (`bench.tiny_clip`), unless its weights
exist. The first test images of each class are stored in the three forms in which datasets are published: with a split
in CoOp's form, as a tar of class folders, and as clean images that are corrupted here. Data and results are kept in
$TTA_DATA_ROOT; finished evaluations are not repeated. The page is docs/results/clip.md, with its data.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from PIL import Image, ImageOps

from bench.leaderboard import sha256_of
from bench.result_pages import Row, command, filled, table, write_data, write_page
from bench.tiny_clip import train_clip
from tta_pipeline.domain.locations import Locations
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.report.queries import GROUP_MEANS
from tta_pipeline.report.tables import Table, query
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.util.files import published_folder

NAME = "clip_table"
PAGE = "clip"
_OF_A_CLASS = 30
_CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog")
_SEVERITY = 3
_OWN_SETS: Mapping[str, Mapping[str, object]] = {
    "things": {"names": ["things"], "group": "fine_grained", "split": "split_zhou_Things.json",
               "templates": ["a photo of a {}, a type of thing."]},
    "greys": {"names": ["greys"], "group": "natural"},
}  # fmt: skip
_GROUPS = ("natural", "fine_grained", "corruption")
COLUMNS = (
    "method", *(f"{group}{part}" for group in _GROUPS for part in ("", "_low", "_high")), "mean", "minus_zero_shot",
    "ms_per_image", "forwards",
)  # fmt: skip


def main(folder: Path) -> None:
    """Train CLIP, evaluate what is unfinished, and write the page and its data."""
    locations = Locations.from_environment()
    prepare(locations, folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program, kept = Path(sys.executable).with_name("tta-pipeline"), locations.root / f"{NAME}_kept"
    subprocess.run([str(program), "run", NAME, "--cache-dir", str(kept)], env=environment, check=True)
    with open_metrics(locations.metrics) as connection:
        found = query(connection, GROUP_MEANS, [NAME])
    write_page(PAGE, page(write_data(PAGE, COLUMNS, data_rows(found))))


def prepare(locations: Locations, folder: Path) -> None:
    """Write the sets and the benchmark file, and train CLIP if there are no weights."""
    made = locations.root / f"{NAME}_images"
    images = _first_images(folder / "test.tar.gz")
    if not made.exists():
        with published_folder(made) as unfinished:
            _lay(unfinished, images)
    architecture, weights = train_clip(folder / "train.tar.gz", locations.root / f"{NAME}_model")
    generated = {"kind": "generated", "clean": str(made / "clean"), "severity_table": "cifar_c"}
    content = {
        "title": "Methods for CLIP",
        "image_size": 32,
        "shards": {"num_shards": 1},
        "sets": {
            "things": {"images": {"kind": "folder", "root": str(made / "things")}},
            "greys": {"images": {"kind": "archive", "archives": [str(made / "greys.tar")]}},
            "cifar_10_c": {"source": generated, "corruptions": list(_CORRUPTIONS), "severities": [_SEVERITY]},
        },
        "models": {
            "clip": {
                "kind": "open_clip", "architecture": str(architecture), "weights": str(weights),
                "sha256": sha256_of(weights),
            }
        },
        "matrix": {
            "models": ["clip"],
            "methods": [name for name, entry in METHODS.items() if entry.needs == "clip"],
            "preset": "imagenet",
            "batch_size": 50,
        },
    }  # fmt: skip
    locations.benchmark_files.mkdir(parents=True, exist_ok=True)
    for name, dataset in _OWN_SETS.items():
        (locations.benchmark_files / f"{name}.dataset.yaml").write_text(yaml.safe_dump(dict(dataset)))
    (locations.benchmark_files / f"{NAME}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def _first_images(archive: Path) -> dict[str, bytes]:
    """Return the first images of each class by `<class>/<file>`."""
    with tarfile.open(archive) as tar:
        members = {"/".join(Path(each.name).parts[-2:]): each for each in tar if each.isfile()}
        taken: dict[str, int] = {}
        found: dict[str, bytes] = {}
        for name in sorted(members):
            label = name.partition("/")[0]
            if taken.setdefault(label, 0) < _OF_A_CLASS and (data := tar.extractfile(members[name])) is not None:
                taken[label] += 1
                found[name] = data.read()
    return found


def _lay(root: Path, images: Mapping[str, bytes]) -> None:
    """Write the three sets."""
    classes = sorted({name.partition("/")[0] for name in images})
    split = [[name, classes.index(name.partition("/")[0]), name.partition("/")[0]] for name in images]
    for name, data in images.items():
        for path in (root / "clean" / name, root / "things" / "images" / name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    path = root / "things" / str(_OWN_SETS["things"]["split"])
    path.write_text(json.dumps({"train": [], "val": [], "test": split}))
    with tarfile.open(root / "greys.tar", "w") as tar:
        for name, data in images.items():
            member = tarfile.TarInfo(f"greys/{Path(name).with_suffix('.png')}")
            grey = _grey(data)
            member.size = len(grey)
            tar.addfile(member, io.BytesIO(grey))


def _grey(data: bytes) -> bytes:
    """Return a PNG of the image in eight greys."""
    buffer = io.BytesIO()
    grey = ImageOps.posterize(ImageOps.grayscale(Image.open(io.BytesIO(data))).convert("RGB"), 3)
    grey.save(buffer, "PNG")
    return buffer.getvalue()


def data_rows(table: Table) -> Iterator[Sequence[object]]:
    """Yield the row of each method, in the order of COLUMNS: errors with intervals by group, and cost."""
    found = {
        (row["experiment"], row["shift_group"]): row
        for row in (dict(zip(table.columns, values, strict=True)) for values in table.rows)
    }
    sums = {name: sum(found[name, each]["mean_error"] for each in _GROUPS) for name, _ in found}
    for name in sorted(sums, key=sums.__getitem__):
        errors = [found[name, each] for each in _GROUPS]
        cells = [f"{100 * each[part]:.1f}" for each in errors for part in ("mean_error", "error_low", "error_high")]
        mean, change = (100 * each / len(_GROUPS) for each in (sums[name], sums[name] - sums["zero_shot"]))
        cost = sum(each["ms_per_image"] for each in errors) / len(errors)
        forwards = max(each["forwards_per_sample"] for each in errors)
        yield name, *cells, f"{mean:.1f}", f"{change:+.1f}", f"{cost:.1f}", f"{forwards:.0f}"


def page(rows: Sequence[Row], _: str = "") -> str:
    """Return the page in Markdown."""
    by_method = {row["method"]: row for row in rows}
    best, zero, plain = rows[0], by_method["zero"], by_method["zero_shot"]
    lost = [float(zero[group]) - float(plain[group]) for group in _GROUPS]
    leader = min(rows, key=lambda row: float(row["corruption"]))
    gained = float(plain["corruption"]) - float(leader["corruption"])
    shown = [[f"`{row['method']}`", *(f"{row[group]} %" for group in _GROUPS), row["minus_zero_shot"],
              row["ms_per_image"]] for row in rows]  # fmt: skip
    return filled(f"""# Methods for CLIP

**On a small CLIP, no method helps everywhere, and votes over crops hurt.** `zero` loses {min(lost):.1f} to
{max(lost):.1f} points against the model without adaptation (`zero_shot`). The best mean gain,
{best["minus_zero_shot"].lstrip("-")} points by `{best["method"]}`, is below the 2 points that these images can show. On
corruptions, `{leader["method"]}` gains {gained:.1f} points, and leads there as in TTABC.

{table(_HEADINGS, shown)}

[`{PAGE}.csv`]({PAGE}.csv) adds intervals and forward passes.

These figures say nothing about a published CLIP, whose weights we could not get. If you can, measure it yourself:

## Repeat TTABC's table

You need a GPU, and the sets in one folder, as archives or as CoOp and TPT arrange them. Missing sets are left out.

{_COMMANDS}

`new-benchmark` writes a file with every set that it found, OpenAI's ViT-B/16, and each method with the hyperparameters
of its paper. Comment out what you do not want: `tpt` and `ctpt` take most of the time. With `--cache-dir`, methods
[share one pass of the image tower](../guides/clusters.md). The report of each set then has the table "Means over groups
of datasets", next to the figures of TTABC (arXiv:2606.14299) where they apply; errors are 1 minus the printed
accuracies.

- Your own set joins a group by the field `group` of its [dataset](../guides/datasets.md#your-own-dataset).
- TTABC measures SAR and DeYO after the update: set `predict_after_update: true` in the
  [protocol](../reference/protocols.md).
- `onzeta` needs `stream_size`, the length of the stream; the file has 50,000. Lower it for a short set.

## Setup and limits

The small CLIP is open_clip's ResNet with one block per stage for 32 pixels, trained for four epochs on CIFAR-10 and the
names of its classes. *Fine-grained*, *natural* and *corruption* are 30 test images per class: in CoOp's layout, reduced
to eight greys, and under three corruptions of severity {_SEVERITY}. To measure this table again:

{command("python -m bench.clip_table CIFAR", needs="CIFAR-10")}

- {_OF_A_CLASS * 10} images leave an interval of five points to either side, and changes below 2 points say nothing.
- Crops of a 32-pixel image have few pixels, and this network never saw such crops in training.
- Times leave out the image tower if its features were shared.
""")


_COMMANDS = """<!-- not run by the tests: the sets and the weights of CLIP are needed -->
```sh
pip install 'tta_pipeline[clip]'
tta-pipeline init clip && cd clip
tta-pipeline new-benchmark ttabc /data/clip --like ttabc
tta-pipeline run ttabc --cache-dir /scratch/clip
tta-pipeline query "
  SELECT shift_group, experiment, num_sets, mean_error, error_low, error_high, published_error
  FROM group_means"
```"""
_HEADINGS = ("method", "natural", "fine-grained", "corruption", "mean change, points", "ms per image")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
