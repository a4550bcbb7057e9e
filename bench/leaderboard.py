"""Leaderboards of every method on CIFAR-10 under ImageNet-C's corruptions: `python -m bench.leaderboard FOLDER BOARD`.

BOARD is `resnet` (15 cells) or `vit` (three cells, a small ViT that is trained first). FOLDER has `train.tar.gz` and
`test.tar.gz` (class folders of images), and `resnet.py` and `resnet20-12fca82f.th` from
akamaster/pytorch_resnet_cifar10. The first 100 test images of each class are corrupted here at severity 5, since the
published files were not available: the figures are comparable with each other, but with no published table. Data and
results lie in $TTA_DATA_ROOT; finished evaluations are not repeated. The pages are docs/leaderboard.md and
docs/transformers.md, with their pictures.

`python -m bench.leaderboard FOLDER BOARD METHOD...` runs these methods only and prints their rows, beside which the
rows of a page still stand if `source` among them has the page's figures: the network and the images are the same.
Photographs of ImageNet have a board of their own, `bench.photographs`.
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
    "adacontrast", "cmf", "cotta", "deyo", "foa", "memo", "petta", "rem", "rmt", "roid", "rotta", "spa", "ttaug"
)  # fmt: skip
"""Methods that draw random numbers, with three seeds."""
_SHORTENED = {"rmt": {"num_samples_warm_up": 2000}}
"""A warm-up before each cell that is shorter than the authors'; the page mentions it."""
_OF_BATCH_NORM = ("norm", "bn_alpha", "bn_ema")
DOCS = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True, kw_only=True)
class Board:
    """A leaderboard: one model, some corruptions at severity 5, and every method that runs on the model."""

    name: str
    title: str
    page: str
    """Name of the page below docs, and of its picture."""
    corruptions: Sequence[str]
    """Corruptions; empty: the 15 that enter the mean."""
    presets: Sequence[str]
    """Presets in the order of preference."""
    batch_size: int
    text: str
    """Text before the table."""
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
BOARDS: Mapping[str, Board] = {
    "resnet": Board(
        name="resnet",
        title="Every method on one benchmark",
        page="leaderboard",
        corruptions=(),
        presets=("cifar",),
        batch_size=200,
        text="""A published ResNet-20 of CIFAR-10 under the 15 corruptions of ImageNet-C at severity 5, batches of 200,
preset `cifar`.""",
    ),
    "vit": Board(
        name="vit",
        title="Every method on a transformer",
        page="transformers",
        corruptions=("gaussian_noise", "fog", "contrast"),
        presets=("imagenet_vit", "cifar"),
        batch_size=64,
        text="""A small ViT (`vit_tiny` with 6 blocks of 96 channels, patches of 4 pixels), trained here for 6 epochs on
CIFAR-10, under three corruptions at severity 5, batches of 64, preset `imagenet_vit` where a method has it, else
`cifar`. The settings of `imagenet_vit` are for a ViT-B on ImageNet: a collapse here shows that learning rates do not
carry over. `tent_lora`, `tent_adapters`, `tent_come_lora` and `sar_lora` are
[made of pieces](methods.md#methods-made-of-pieces), with the learning rate of their base.""",
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
    left_out = prepare(locations, folder, board, methods)
    run_benchmark(folder, board.benchmark)
    if methods:
        sys.stdout.write("\n".join(_rows(read_table(locations, board))) + "\n")
    else:
        write(locations, board, left_out)


def read_table(locations: Locations, board: Board) -> Table:
    """Return the rows of the board's methods."""
    with open_metrics(locations.metrics) as connection:
        return query(connection, LEADERBOARD, [board.benchmark, "cifar_10_c"])


def write(locations: Locations, board: Board, left_out: Mapping[str, str]) -> None:
    """Write the page and its picture from the results."""
    table = read_table(locations, board)
    figure = error_against_cost(table)
    assert figure is not None, "a board has several methods"
    (DOCS / "images" / f"{board.page}.png").write_bytes(as_png(figure))
    (DOCS / f"{board.page}.md").write_text(page(board, table, left_out))


def prepare(locations: Locations, folder: Path, board: Board, methods: Sequence[str] = ()) -> dict[str, str]:
    """Write the images and the benchmark file of *methods* or of all, and return why each other one is left out."""
    images = first_test_images(locations, folder)
    left_out = {name: why for name in METHODS if (why := _reason_left_out(name, board))}
    runs = [name for name in methods or METHODS if name not in left_out]
    model = MODELS[board.name](folder)
    train = {"train": str(folder / "train.tar.gz")} if model["kind"] == "trained" else {}
    content = {
        "title": board.title,
        "shift_set": "cifar_10_c",
        "source": {"kind": "generated", "clean": str(images), "severity_table": "cifar_c", **train},
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
    return left_out


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


def page(board: Board, table: Table, left_out: Mapping[str, str]) -> str:
    """Return the page in Markdown."""
    lines = (
        f"# {board.title}",
        "",
        f"Made by `python -m bench.leaderboard FOLDER {board.name}` with torch {torch.__version__}.",
        *board.text.splitlines(),
        *_TEXT.splitlines(),
        "",
        f"![Error over cost](images/{board.page}.png)",
        "",
        *_rows(table),
        "",
        *_reasons(left_out),
    )
    return "\n".join(lines) + "\n"


_TEXT = """
Each cell has the first 100 test images of each class, in a random order; each method is reset before each cell. The
images were JPEG files, and were **corrupted here**: compare these figures with each other, not with published tables.
Methods that draw random numbers ran with three seeds. Times are of one shared CPU core; the numbers of forwards and
backwards hold on any machine. On few images a method that learns slowly does not reach its best.
`rmt` warms up on 2,000 source images, not on 50,000.

Photographs of ImageNet have [a page of their own](photograph-leaderboard.md), which says what 500 of them can show and
what they cannot. Methods for a CLIP are compared [on many sets](clip.md), where five lines repeat TTABC's table.
Ten methods with and without [unknown images](open-set.md) in the stream, and four whose learning rates were
[chosen without labels](tuning-criteria.md), are of the ResNet-20 of [the leaderboard](leaderboard.md).
"""


def _pieces(board: Board) -> dict[str, object]:
    return {name: {**experiment(pieces["base"], board), "method": pieces} for name, pieces in board.pieces.items()}


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


def _reason_left_out(name: str, board: Board) -> str:
    """Return the reason why a method does not run on the model, or an empty string if it does."""
    if not any(preset in METHODS[name].presets for preset in board.presets):
        return f"it has no settings for {' or '.join(board.presets)}"
    if board.name == "vit" and name in _OF_BATCH_NORM:
        return "it needs batch norm"
    if board.name == "resnet" and METHODS[name].needs == "vit":
        return "it needs a ViT"
    if METHODS[name].needs == "clip":
        return "it needs a CLIP"
    return ""


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
