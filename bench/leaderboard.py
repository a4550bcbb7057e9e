"""The leaderboard of every method on CIFAR-10 under ImageNet-C's corruptions: `python -m bench.leaderboard FOLDER`.

FOLDER has `test.tar.gz` (class folders of images), `resnet.py` and `resnet20-12fca82f.th` of
akamaster/pytorch_resnet_cifar10. The first 100 images of each class are corrupted here at severity 5, since the
published files could not be had: the figures compare with each other, and with no published table. Data and results lie
in $TTA_DATA_ROOT; what is finished there is not evaluated again. The page is docs/leaderboard.md, with its picture.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import yaml

from tta_pipeline.adaptation import METHODS
from tta_pipeline.locations import Locations
from tta_pipeline.metrics.database import open_metrics
from tta_pipeline.reports.drawing import as_png
from tta_pipeline.reports.error_figures import error_against_cost
from tta_pipeline.reports.queries import LEADERBOARD
from tta_pipeline.reports.tables import Table, query

NAME = "cifar_leaderboard"
_OF_A_CLASS = 100
_FEW = 100
_OF_FEW_IMAGES = ("cotta", "memo", "ttaug")
"""Methods that run each image through the network dozens of times, here on the first 100 images of a cell."""
_DRAWING = ("adacontrast", "cmf", "cotta", "deyo", "memo", "rmt", "roid", "rotta", "ttaug")
"""Methods that draw random numbers, with three seeds."""
_SETTINGS: Mapping[str, object] = {"model": "resnet20", "preset": "cifar", "batch_size": 200}
_DOCS = Path(__file__).parents[1] / "docs"


def main(folder: Path) -> None:
    """Evaluate what is left, and write the page."""
    locations = Locations.from_environment()
    left_out = prepare(locations, folder)
    evaluate(folder)
    with open_metrics(locations) as connection:
        table = query(connection, LEADERBOARD, [NAME, "cifar_10_c"])
    picture = _DOCS / "images" / "leaderboard.png"
    picture.write_bytes(as_png(error_against_cost(table)))
    (_DOCS / "leaderboard.md").write_text(page(table, left_out))


def prepare(locations: Locations, folder: Path) -> dict[str, str]:
    """Write images and benchmark file, and return why each method that is left out is left out."""
    images = locations.root / "cifar_10_first_100"
    if not images.exists():
        _extract(folder / "test.tar.gz", images)
    weights = folder / "resnet20-12fca82f.th"
    left_out = {name: why for name in METHODS if (why := _why_not(name))}
    content = {
        "title": "Every method on CIFAR-10 under ImageNet-C's corruptions",
        "shift_set": "cifar_10_c",
        "source": {"kind": "generated", "clean": str(images), "severity_table": "cifar_c"},
        "severities": [5],
        "image_size": 32,
        "shards": {"num_shards": 1},
        "models": {
            "resnet20": {
                "kind": "python", "factory": "resnet:resnet20", "weights": str(weights), "sha256": _sha256(weights),
                "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
            }
        },
        "experiments": {name: experiment(name) for name in METHODS if name not in left_out},
    }  # fmt: skip
    locations.benchmark_files.mkdir(parents=True, exist_ok=True)
    (locations.benchmark_files / f"{NAME}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return left_out


def experiment(name: str) -> dict[str, object]:
    """Return the experiment of a method as a benchmark file has it."""
    few = {"subset": {"first": _FEW}, "batch_size": 50} if name in _OF_FEW_IMAGES else {}
    seeds = {"seeds": [0, 1, 2]} if name in _DRAWING else {}
    return {**_SETTINGS, "method": name, **few, **seeds}


def evaluate(folder: Path) -> None:
    """Materialize images, shards and all experiments with the command line."""
    python_path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
    dg = str(Path(sys.executable).with_name("dg"))
    cells = ("--partition-range", "gaussian_noise|5...jpeg_compression|5")
    subprocess.run([dg, "launch", "--assets", f"group:{NAME}", *cells], env=environment, check=True)


def page(table: Table, left_out: Mapping[str, str]) -> str:
    """Return the page in Markdown."""
    return "\n".join(
        [*_HEAD.format(torch=torch.__version__).splitlines(), "", *_rows(table), "", *_reasons(left_out), ""]
    )


_HEAD = """# Every method on one benchmark

Made by `python -m bench.leaderboard FOLDER` with torch {torch}: a published ResNet-20 of CIFAR-10 under the
15 corruptions of ImageNet-C at severity 5. The first 100 test images of each class, in a drawn order, batches of 200,
each method reset before each cell, hyperparameters of the preset `cifar`. The images were JPEG files, and were
**corrupted here**: these figures compare with each other, and with no published table. Methods that draw random numbers
ran with three seeds. Times are those of one shared CPU core; forwards and backwards hold anywhere. On few images a
method that learns slowly shows less than it can.

![Error over cost](images/leaderboard.png)
"""


def _rows(table: Table) -> Iterator[str]:
    yield "| method | images a cell | error | over seeds | ECE | forwards an image | backwards an image | ms an image |"
    yield "|---|---|---|---|---|---|---|---|"
    columns = (
        "experiment", "subset", "mean_error", "sd_error", "mean_ece", "forwards_per_sample", "backwards_per_sample",
        "ms_per_image",
    )  # fmt: skip
    for name, subset, error, deviation, ece, forwards, backwards, ms in zip(*map(table.column, columns), strict=True):
        images = f"{10 * _OF_A_CLASS:,}" if subset == "all" else str(_FEW)
        spread = "" if deviation is None else f"± {100 * deviation:.2f}"
        shares = f"{100 * error:.1f} % | {spread} | {100 * ece:.1f} %"
        yield f"| {name} | {images} | {shares} | {forwards:.1f} | {backwards:.1f} | {ms:.2f} |"


def _reasons(left_out: Mapping[str, str]) -> Iterator[str]:
    if left_out:
        yield "Left out:"
        yield ""
        yield from (f"- `{name}`: {why}" for name, why in left_out.items())


def _why_not(name: str) -> str:
    """Return why a method does not run on a ResNet-20; empty if it does."""
    return "" if "cifar" in METHODS[name].presets else "its authors have no settings for CIFAR"


def _extract(archive: Path, folder: Path) -> None:
    """Write the first images of each class, by name."""
    with tarfile.open(archive) as tar:
        members = sorted((each for each in tar if each.isfile()), key=lambda each: each.name)
        taken: dict[str, int] = {}
        for member in members:
            _, label, name = Path(member.name).parts
            if taken.setdefault(label, 0) < _OF_A_CLASS and (data := tar.extractfile(member)) is not None:
                taken[label] += 1
                (folder / label).mkdir(parents=True, exist_ok=True)
                (folder / label / name).write_bytes(data.read())


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
