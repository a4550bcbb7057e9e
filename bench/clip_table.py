"""Every method for a CLIP on three sets: `python -m bench.clip_table CIFAR`.

CIFAR is the folder of `bench.leaderboard`. A small CLIP is trained first (`bench.tiny_clip`), unless it is there. The
first test images of each class are laid out as three kinds of sets are published: with a split in CoOp's form, as a tar
of class folders, and as clean images that are corrupted here. Data and results lie in $TTA_DATA_ROOT; finished
evaluations are not repeated. The table is a part of docs/clip.md, after the line `MARK`.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from PIL import Image, ImageOps

from bench.leaderboard import DOCS, sha256_of
from bench.tiny_clip import train_clip
from tta_pipeline.domain.locations import Locations
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.report.queries import GROUP_MEANS
from tta_pipeline.report.tables import Table, query
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.util.files import published_folder

NAME = "clip_table"
MARK = "<!-- Below: written by `python -m bench.clip_table`. -->"
_OF_A_CLASS = 30
_CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog")
_SEVERITY = 3
_OWN_SETS: Mapping[str, Mapping[str, object]] = {
    "things": {"names": ["things"], "group": "fine_grained", "split": "split_zhou_Things.json",
               "templates": ["a photo of a {}, a type of thing."]},
    "greys": {"names": ["greys"], "group": "natural"},
}  # fmt: skip
_GROUPS = ("natural", "fine_grained", "corruption")


def main(folder: Path) -> None:
    """Train the CLIP and evaluate what is unfinished, and write the table."""
    locations = Locations.from_environment()
    prepare(locations, folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program, kept = Path(sys.executable).with_name("tta-pipeline"), locations.root / f"{NAME}_kept"
    subprocess.run([str(program), "run", NAME, "--decoded-folder", str(kept)], env=environment, check=True)
    with open_metrics(locations.metrics) as connection:
        table = query(connection, GROUP_MEANS, [NAME])
    page = DOCS / "clip.md"
    text = page.read_text().partition(MARK)[0]
    page.write_text("\n".join([f"{text.rstrip()}\n\n{MARK}\n", *rows(table)]) + "\n")


def prepare(locations: Locations, folder: Path) -> None:
    """Write the sets and the benchmark file, and train the CLIP if there is none."""
    made = locations.root / f"{NAME}_images"
    images = _first_images(folder / "test.tar.gz")
    if not made.exists():
        with published_folder(made) as unfinished:
            _lay(unfinished, images)
    architecture, weights = train_clip(folder / "train.tar.gz", locations.root / f"{NAME}_model")
    generated = {"kind": "generated", "clean": str(made / "clean"), "severity_table": "cifar_c"}
    content = {
        "title": "Methods for a CLIP",
        "image_size": 32,
        "shards": {"num_shards": 1},
        "sets": {
            "things": {"source": {"kind": "folder", "root": str(made / "things")}},
            "greys": {"source": {"kind": "archive", "archives": [str(made / "greys.tar")]}},
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
    for name, shift_set in _OWN_SETS.items():
        (locations.benchmark_files / f"{name}.shifts.yaml").write_text(yaml.safe_dump(dict(shift_set)))
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


def rows(table: Table) -> Iterator[str]:
    """Yield the lines of the table: errors with intervals by method and group, and cost."""
    found = {
        (row["experiment"], row["shift_group"]): row
        for row in (dict(zip(table.columns, values, strict=True)) for values in table.rows)
    }
    sums = {name: sum(found[name, each]["mean_error"] for each in _GROUPS) for name, _ in found}
    yield f"| method | {' | '.join(_GROUPS)} | mean | against zero_shot | ms an image | forwards |"
    yield "|---|---|---|---|---|---|---|"
    for name in sorted(sums, key=sums.__getitem__):
        errors = [found[name, each] for each in _GROUPS]
        cells = [
            f"{100 * each['mean_error']:.1f} [{100 * each['error_low']:.1f}-{100 * each['error_high']:.1f}]"
            for each in errors
        ]
        mean, change = (100 * each / len(_GROUPS) for each in (sums[name], sums[name] - sums["zero_shot"]))
        cost = sum(each["ms_per_image"] for each in errors) / len(errors)
        forwards = max(each["forwards_per_sample"] for each in errors)
        yield f"| `{name}` | {' | '.join(cells)} | {mean:.1f} | {change:+.1f} | {cost:.1f} | {forwards:.0f} |"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
