"""Leaderboards of every method on CIFAR-10 under ImageNet-C's corruptions: `python -m bench.leaderboard FOLDER BOARD`.

BOARD is `resnet` (15 cells) or `vit` (three cells, a small ViT that is trained first). FOLDER has `train.tar.gz` and
`test.tar.gz` (class folders of images), and `resnet.py` and `resnet20-12fca82f.th` from
akamaster/pytorch_resnet_cifar10. The first 100 test images of each class are corrupted here at severity 5, since the
published files were not available: the figures are comparable with each other, but with no published table. Data and
results are kept in $TTA_DATA_ROOT; finished evaluations are not repeated. The pages are docs/results/cifar.md and
docs/results/transformers.md, with their data and pictures. Each states a finding in words: read it again after a run.

`python -m bench.leaderboard FOLDER BOARD METHOD...` runs only these methods and prints their rows. They are
comparable with the page if `source` is among them and has the same figures: then network and images are the same.
Photographs of ImageNet have a separate board, `bench.photographs`.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml

from bench.result_pages import IMAGES, Row, command, csv_text, filled, listed, table, write_data, write_page
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.methods import METHODS
from tta_pipeline.report.error_figures import error_against_cost
from tta_pipeline.report.figure_style import as_png
from tta_pipeline.report.queries import LEADERBOARD
from tta_pipeline.report.tables import Table, query
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.util.files import published_folder

_OF_A_CLASS = 100
_FEW = 100
_OF_FEW_IMAGES = ("cotta", "memo", "ttaug")
"""Methods that run each image through the network dozens of times, here on the first 100 images of a cell."""
_DRAWING = (
    "adacontrast", "cmf", "cotta", "deyo", "dpcore", "foa", "memo", "petta", "rem", "rmt", "roid", "rotta", "spa",
    "ttaug",
)  # fmt: skip
"""Methods that draw random numbers, with three seeds."""
_SHORTENED = {"rmt": {"num_samples_warm_up": 2000}}
"""A warm-up before each cell that is shorter than the authors'; the page mentions it."""
_NOTES = {"rmt": "warm-up on 2,000 source images"}
_OF_BATCH_NORM = ("norm", "bn_alpha", "bn_ema")
COLUMNS = (
    "method", "images_per_cell", "error_percent", "sd_over_seeds", "ece_percent", "forwards_per_image",
    "backwards_per_image", "ms_per_image", "note",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Board:
    """A leaderboard: one model, some corruptions at severity 5, and every method that runs on the model."""

    name: str
    title: str
    page: str
    """Name of the page and its data in docs/results."""
    picture: str
    """Name of the picture in docs/images."""
    corruptions: Sequence[str]
    """Corruptions; empty: the 15 that enter the mean."""
    presets: Sequence[str]
    """Presets in the order of preference."""
    batch_size: int
    finding: Callable[[Mapping[str, Row]], str]
    """Function from the rows by method to the first paragraphs of the page."""
    shown: Sequence[str]
    """Methods in the page's table."""
    setup: str
    """Description of the model and the stream."""
    pieces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Methods made of pieces, by name."""

    @property
    def benchmark(self) -> str:
        """Name of the benchmark."""
        return f"{self.name}_leaderboard"


def _resnet(folder: Path) -> dict[str, object]:
    weights = folder / "resnet20-12fca82f.th"
    return {
        "kind": "python", "factory": "resnet:resnet20", "weights": str(weights), "sha256": sha256_of(weights),
        "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
    }  # fmt: skip


def _vit(_: Path) -> dict[str, object]:
    arguments = {
        "model_name": "vit_tiny_patch16_224", "img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 6,
        "num_heads": 3, "num_classes": 10,
    }  # fmt: skip
    return {
        "kind": "trained", "network": {"kind": "python", "factory": "timm:create_model", "arguments": arguments},
        "augmentation": "simple", "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.05, "batch_size": 128,
        "epochs": 6, "clip_norm": 1.0,
    }  # fmt: skip


MODELS: Mapping[str, Callable[[Path], dict[str, object]]] = {"resnet": _resnet, "vit": _vit}
"""Functions from the folder to the model's section of a benchmark file."""


def _finding_of_resnet(rows: Mapping[str, Row]) -> str:
    norm, source = rows["norm"], rows["source"]
    steps = [row for row in rows.values() if row["images_per_cell"] == norm["images_per_cell"] and _takes_steps(row)]
    not_worse = [row for row in steps if _error(row) <= _error(norm)]
    worse = [row["method"] for row in steps if row not in not_worse]
    times = [float(row["ms_per_image"]) / float(norm["ms_per_image"]) for row in not_worse]
    errors = [_error(row) for row in not_worse]
    return f"""**Batch-norm statistics do most of the work.** Recomputing them from each test batch (`norm`) lowers the
error of a ResNet-20 from {_error(source)} to {_error(norm)} %. Gradient steps add little: {len(not_worse)} of the
{len(steps)} methods that take them end between {min(errors)} and {max(errors)} %, at
{min(times):.1f} to {max(times):.1f} times the cost of `norm`. {listed(worse)} stay above `norm`.
So compare a method with `norm`, not only with `source`.

`lame` makes things worse ({_error(rows["lame"])} %): it expects neighbouring images to share a class, and these come in
random order."""


def _finding_of_vit(rows: Mapping[str, Row]) -> str:
    source = rows["source"]
    whole = [row for row in rows.values() if row["images_per_cell"] == source["images_per_cell"]]
    alike = [row for row in whole if row != source and abs(_error(row) - _error(source)) < 0.25]
    best, *next_ones = sorted(whole, key=_error)[:3]
    others = " and ".join(f"`{row['method']}` ({_error(row)} %)" for row in next_ones)
    return f"""**Settings for a ViT-B do not carry over to a small ViT.** Of {len(whole) - 1} methods on the same
images, {len(alike)} end within 0.2 points of no adaptation ({_error(source)} %). The three with the lowest errors take
no gradient step: `{best["method"]}` ({_error(best)} %), {others}. Before you try a method on a network of another size,
[tune its learning rate](../guides/tuning.md)."""


def _takes_steps(row: Row) -> bool:
    return float(row["backwards_per_image"]) > 0


def _error(row: Row) -> float:
    return float(row["error_percent"])


BOARDS: Mapping[str, Board] = {
    "resnet": Board(
        name="resnet",
        title="CIFAR-10 under 15 corruptions",
        page="cifar",
        picture="leaderboard",
        corruptions=(),
        presets=("cifar",),
        batch_size=200,
        finding=_finding_of_resnet,
        shown=("rmt", "shot_im", "roid", "eata", "tent", "norm", "rotta", "bn_alpha", "source", "lame"),
        setup="""A published ResNet-20 for CIFAR-10 under the 15 corruptions of ImageNet-C at severity 5, in batches of
200, with preset `cifar`.""",
    ),
    "vit": Board(
        name="vit",
        title="A small vision transformer",
        page="transformers",
        picture="transformers",
        corruptions=("gaussian_noise", "fog", "contrast"),
        presets=("imagenet_vit", "cifar"),
        batch_size=64,
        finding=_finding_of_vit,
        shown=("neo", "foa", "t3a", "imse", "rdumb", "shot_im", "sar", "tent", "source", "tent_lora", "rmt", "lame"),
        setup="""A small ViT (`vit_tiny` with 6 blocks of 96 channels and patches of 4 pixels), trained for 6 epochs on
CIFAR-10, under gaussian_noise, fog and contrast at severity 5, in batches of 64. The preset is `imagenet_vit` if a
method has it, otherwise `cifar`. `tent_lora`, `tent_adapters`, `tent_come_lora` and `sar_lora` are
[composed methods](../reference/methods.md) with the learning rate of their base.""",
        pieces={
            "tent_lora": {"base": "tent", "params": "lora"},
            "tent_adapters": {"base": "tent", "params": "adapters"},
            "tent_come_lora": {"base": "tent", "loss": "come", "params": "lora"},
            "sar_lora": {"base": "sar", "params": "lora"},
        },
    ),
}


def main(folder: Path, board: Board, methods: Sequence[str] = ()) -> None:
    """Run the unfinished evaluations of all methods, and write the page; or run *methods*, and print their rows."""
    locations = Locations.from_environment()
    sys.path.append(str(folder))  # for resnet.py
    prepare(locations, folder, board, methods)
    run_benchmark(folder, board.benchmark)
    if methods:
        sys.stdout.write(csv_text(COLUMNS, data_rows(read_table(locations, board))))
    else:
        write(locations, board)


def read_table(locations: Locations, board: Board) -> Table:
    """Return the rows of the board's methods."""
    with open_metrics(locations.metrics) as connection:
        return query(connection, LEADERBOARD, [board.benchmark, "cifar_10_c"])


def write(locations: Locations, board: Board) -> None:
    """Write the page, its data and its picture from the results."""
    found = read_table(locations, board)
    figure = error_against_cost(found)
    assert figure is not None, "a board has several methods"
    (IMAGES / f"{board.picture}.png").write_bytes(as_png(figure))
    write_page(board.page, page(board, write_data(board.page, COLUMNS, data_rows(found))))


def prepare(locations: Locations, folder: Path, board: Board, methods: Sequence[str] = ()) -> None:
    """Write the images and the benchmark file of *methods*, or of all that run on the board's model."""
    images = first_test_images(locations, folder)
    runs = [name for name in methods or METHODS if _runs(name, board)]
    model = MODELS[board.name](folder)
    train = {"train": str(folder / "train.tar.gz")} if model["kind"] == "trained" else {}
    content = {
        "title": board.title,
        "dataset": "cifar_10_c",
        "images": {"kind": "generated", "clean": str(images), "severity_table": "cifar_c", **train},
        **({"corruptions": list(board.corruptions)} if board.corruptions else {}),
        "severities": [5],
        "image_size": 32,
        "shards": {"num_shards": 1},
        **({"train_shards": {"num_shards": 4}} if train else {}),
        "models": {"model": model},
        "experiments": {
            **{name: experiment(name, board) for name in runs},
            **({} if methods else _pieces(board)),
        },
    }
    write_benchmark(locations, board.benchmark, content)


def experiment(name: str, board: Board) -> dict[str, object]:
    """Return a method's experiment in the form of a benchmark file."""
    few = {"subset": {"first": _FEW}, "batch_size": 50} if name in _OF_FEW_IMAGES else {}
    seeds = {"seeds": [0, 1, 2]} if name in _DRAWING else {}
    preset = next(each for each in board.presets if each in METHODS[name].presets)
    settings = {"hyperparameters": _SHORTENED[name]} if name in _SHORTENED else {}
    return {"model": "model", "method": name, "preset": preset, "batch_size": board.batch_size, **few, **seeds,
            **settings}  # fmt: skip


def first_test_images(locations: Locations, folder: Path, num_of_a_class: int = _OF_A_CLASS) -> Path:
    """Return a folder with class folders of the first images of each class, ordered by name."""
    images = locations.root / f"cifar_10_first_{num_of_a_class}"
    if not images.exists():
        with published_folder(images) as unfinished:
            _extract(folder / "test.tar.gz", unfinished, num_of_a_class)
    return images


def write_benchmark(locations: Locations, name: str, content: Mapping[str, object]) -> None:
    """Write the benchmark file *name*."""
    locations.benchmark_files.mkdir(parents=True, exist_ok=True)
    (locations.benchmark_files / f"{name}.yaml").write_text(yaml.safe_dump(dict(content), sort_keys=False))


def run_benchmark(folder: Path, name: str) -> None:
    """Run what is unfinished of the benchmark *name*, whose model is in *folder*, by the command line."""
    program = Path(sys.executable).with_name("tta-pipeline")
    subprocess.run([program, "run", name], env={**os.environ, "PYTHONPATH": _python_path(folder)}, check=True)


def _python_path(folder: Path) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def materialize(folder: Path, assets: str, cells: Sequence[Cell]) -> None:
    """Materialize *assets* of all *cells*."""
    launch_assets(folder, assets, "--partition-range", f"{cells[0].key}...{cells[-1].key}")


def launch_assets(folder: Path, assets: str, *partitions: str) -> None:
    """Materialize *assets* by the command line, with the networks in *folder*."""
    own = {"PYTHONPATH": _python_path(folder), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    program = Path(sys.executable).with_name("dagster")  # dg works only in the folder of a Dagster project
    command = [program, "asset", "materialize", "-m", "tta_pipeline.definitions", "--select", assets, *partitions]
    subprocess.run(command, env={**os.environ, **own}, check=True)


def page(board: Board, rows: Sequence[Row], version: str = torch.__version__) -> str:
    """Return the page in Markdown."""
    by_method = {row["method"]: row for row in rows}
    shown = [by_method[name] for name in board.shown]
    return filled(f"""# {board.title}

{board.finding(by_method)}

![Error over milliseconds per image, all methods](../images/{board.picture}.png)

{table(_HEADINGS, map(_cells, shown))}

[`{board.page}.csv`]({board.page}.csv) has all methods, with calibration (ECE), the spread over seeds and passes per
image.

## Measure it again

{command(f"python -m bench.leaderboard FOLDER {board.name}", needs="CIFAR-10 and a published network")}

The docstring of `bench/leaderboard.py` lists the files of `FOLDER`. Finished evaluations are not repeated.

## Setup and limits

{board.setup} Each cell has the first 100 test images of each class in random order, and each method is reset before
each cell. Methods that draw random numbers ran with three seeds. Measured with torch {version}.

- The images were JPEG files and were corrupted here. Compare these figures with each other, not with published tables.
- Each cell has only 1,000 images. Do not rank methods that are [half a point apart](../interpreting-results.md), and
  expect more from methods that learn slowly.
- {listed(_OF_FEW_IMAGES)} are slow and ran on the first {_FEW} images of each cell: do not compare their errors with
  the others.
- Times were measured on one shared CPU core. The numbers of passes hold on any machine.
- `rmt` warms up on {_SHORTENED["rmt"]["num_samples_warm_up"]:,} source images instead of 50,000.
""")


def data_rows(found: Table) -> Iterator[Sequence[object]]:
    """Yield the row of each method, in the order of COLUMNS."""
    columns = (
        "experiment", "subset", "mean_error", "sd_error", "mean_ece", "forwards_per_sample", "backwards_per_sample",
        "ms_per_image",
    )  # fmt: skip
    for name, subset, error, deviation, ece, forwards, backwards, ms in zip(*map(found.column, columns), strict=True):
        images = 10 * _OF_A_CLASS if subset == "all" else _FEW
        spread = "" if deviation is None else f"{100 * deviation:.2f}"
        shares = (f"{100 * error:.1f}", spread, f"{100 * ece:.1f}")
        yield name, images, *shares, f"{forwards:.1f}", f"{backwards:.1f}", f"{ms:.2f}", _NOTES.get(name, "")


_HEADINGS = ("method", "error", "backward passes per image", "ms per image")


def _cells(row: Row) -> Sequence[str]:
    return f"`{row['method']}`", f"{row['error_percent']} %", row["backwards_per_image"], row["ms_per_image"]


def _pieces(board: Board) -> dict[str, object]:
    return {name: {**experiment(pieces["base"], board), "method": pieces} for name, pieces in board.pieces.items()}


def _runs(name: str, board: Board) -> bool:
    """Return whether a method has settings for the board and runs on its model."""
    has_preset = any(preset in METHODS[name].presets for preset in board.presets)
    is_vit = board.name == "vit"
    needs = "batch norm" if name in _OF_BATCH_NORM else METHODS[name].needs
    return has_preset and needs not in ("clip", "batch norm" if is_vit else "vit")


def _extract(archive: Path, folder: Path, num_of_a_class: int) -> None:
    """Write the first images of each class, by name."""
    with tarfile.open(archive) as tar:
        members = sorted((each for each in tar if each.isfile()), key=lambda each: each.name)
        taken: dict[str, int] = {}
        for member in members:
            _, label, name = Path(member.name).parts
            if taken.setdefault(label, 0) < num_of_a_class and (data := tar.extractfile(member)) is not None:
                taken[label] += 1
                (folder / label).mkdir(parents=True, exist_ok=True)
                (folder / label / name).write_bytes(data.read())


def sha256_of(path: Path) -> str:
    """Return the hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]), BOARDS[sys.argv[2]], sys.argv[3:])
