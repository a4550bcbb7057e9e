"""Ten methods with unknown images in their streams: `python -m bench.open_set CIFAR PHOTOGRAPHS`.

CIFAR is the folder of `bench.leaderboard`: the first 100 test images of each class are the known images, corrupted here
at severity 5. PHOTOGRAPHS has `photographs.tar.gz`, with `<...>/<WordNet id>/<file>.JPEG`, and `wnids.txt`, the 1,000
ids of ImageNet in the order of its labels. Photographs of subclasses of CIFAR-10's classes are left out
(`UNDER_CIFAR_10`); the others are scaled to 32 pixels, corrupted alike, and are 20 % of each open stream. Each method
runs on the closed and on the open stream of the same seed, with a reset before each cell. Data and results are kept in
$TTA_DATA_ROOT; finished evaluations are not repeated. The page is docs/results/open-set.md, with its data and picture.
"""

import io
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from PIL import Image, ImageOps

from bench.leaderboard import (
    MODELS,
    first_test_images,
    launch_assets,
    materialize,
    run_benchmark,
    write_benchmark,
)
from bench.result_pages import IMAGES, Row, command, filled, listed, table, write_data, write_page
from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.error_figures import open_set_dots
from tta_pipeline.report.figure_style import as_png
from tta_pipeline.report.queries import OPEN_SET
from tta_pipeline.report.tables import Table, query
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.util.files import published_folder

KNOWN, UNKNOWN = "resnet_open", "photographs_c"
METHODS = ("source", "norm", "tent", "eata", "sar", "deyo", "come", "roid", "ostta", "unient")
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
SHARE = 0.2
FOR_UNKNOWN = ("ostta", "unient")
"""Methods made for streams with unknown images; they score images by energy, the others by maximum softmax."""
PAGE = "open-set"
COLUMNS = (
    "method", "closed_error_percent", "open_error_percent", "change_points", "auroc", "fpr95", "aupr", "h_score",
    "unknown_photographs",
)  # fmt: skip
UNDER_CIFAR_10: tuple[range, ...] = (
    *(range(first, last + 1) for first, last in (
        (7, 24), (80, 100), (127, 146),  # birds
        (30, 32),  # frogs
        (151, 280), (281, 293),  # dogs and their relatives, cats and theirs
        (339, 340), (351, 353),  # horses, antelopes
        (403, 405), (407, 407), (436, 436), (468, 468), (472, 472), (484, 484), (510, 511), (554, 555), (569, 569),
        (573, 573), (575, 576), (586, 586), (609, 609), (625, 625), (627, 628), (654, 654), (656, 656), (661, 661),
        (675, 675), (717, 717), (724, 724), (734, 734), (751, 751), (779, 780), (803, 803), (814, 814), (817, 817),
        (833, 833), (847, 847), (864, 864), (866, 867), (871, 871), (874, 874), (895, 895), (914, 914),
        # aeroplanes, cars and buses, lorries, ships and boats
    )),
)  # fmt: skip
"""Positions, among ImageNet's 1,000 classes, of subclasses of CIFAR-10's classes and of lookalikes."""
_SIZE = 32


def main(folder: Path, photographs: Path) -> None:
    """Run the unfinished evaluations, and write the page."""
    locations = Locations.from_environment()
    sys.path.append(str(folder))  # for resnet.py
    images = small_photographs(locations, photographs)
    common = {
        "dataset": "cifar_10_c",
        "corruptions": list(CORRUPTIONS),
        "severities": [5],
        "image_size": _SIZE,
        "shards": {"num_shards": 1},
    }
    write_benchmark(locations, UNKNOWN, {
        "title": "Photographs of other classes", **common, "class_map": "folders", "models": {}, "experiments": {},
        "images": {"kind": "generated", "clean": str(images), "severity_table": "cifar_c"},
    })  # fmt: skip
    write_benchmark(locations, KNOWN, {
        "title": "CIFAR-10, and photographs of none of its classes", **common,
        "images": {"kind": "generated", "clean": str(first_test_images(locations, folder)),
                   "severity_table": "cifar_c"},
        "models": {"model": MODELS["resnet"](folder)},
        "experiments": {},
        "matrix": {
            "models": ["model"], "methods": list(METHODS), "preset": "cifar", "batch_size": 200,
            "protocols": ["reset_each_shift",
                          {"shift": "reset_each_shift", "unknown": {"source": UNKNOWN, "share": SHARE}}],
        },
    })  # fmt: skip
    unknown = load_all_benchmarks(locations).benchmark(UNKNOWN)
    launch_assets(folder, f"*{UNKNOWN}/clean/shard_manifest")
    materialize(folder, f"*{UNKNOWN}/shard_manifest", unknown.cells)
    run_benchmark(folder, KNOWN)
    write(locations, num_photographs=len(list(images.rglob("*.png"))))


def small_photographs(locations: Locations, folder: Path) -> Path:
    """Return a folder of class folders with the photographs of classes that CIFAR-10 lacks, 32 pixels wide and high."""
    images = locations.root / "photographs_32"
    if images.exists():
        return images
    ids = (folder / "wnids.txt").read_text().split()
    left_out = {ids[place] for places in UNDER_CIFAR_10 for place in places}
    with tarfile.open(folder / "photographs.tar.gz") as tar, published_folder(images) as unfinished:
        for member in tar:
            name = PurePosixPath(member.name)
            data = tar.extractfile(member) if member.isfile() else None
            if data is not None and name.parent.name in ids and name.parent.name not in left_out:
                target = unfinished / name.parent.name / f"{name.stem}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                with Image.open(io.BytesIO(data.read())) as photograph:
                    ImageOps.fit(photograph.convert("RGB"), (_SIZE, _SIZE), Image.Resampling.LANCZOS).save(target)
    return images


def write(locations: Locations, *, num_photographs: int) -> None:
    """Write the page, its data and its picture from the results."""
    with open_metrics(locations.metrics) as connection:
        found = query(connection, OPEN_SET, [KNOWN, "cifar_10_c"])
    figure = open_set_dots(found)
    assert figure is not None, "there are open streams"
    (IMAGES / f"{PAGE}.png").write_bytes(as_png(figure))
    write_page(PAGE, page(write_data(PAGE, COLUMNS, data_rows(found, num_photographs))))


def data_rows(found: Table, num_photographs: int) -> Iterator[Sequence[object]]:
    """Yield the row of each method, in the order of COLUMNS."""
    columns = ("closed_experiment", "closed_error", "error", "error_change", "auroc", "fpr95", "aupr", "h_score")
    for name, closed, error, change, *scores in zip(*map(found.column, columns), strict=True):
        errors = (f"{100 * closed:.1f}", f"{100 * error:.1f}", f"{100 * change:+.1f}")
        yield name, *errors, *(f"{each:.3f}" for each in scores), num_photographs


def page(rows: Sequence[Row], _: str = "") -> str:
    """Return the page in Markdown."""
    adapting = [row for row in rows if row["method"] != "source"]
    changes = sorted(abs(float(row["change_points"])) for row in adapting)
    made, usual = (
        sorted(row["auroc"] for row in adapting if (row["method"] in FOR_UNKNOWN) == is_made)
        for is_made in (True, False)
    )
    shown = [
        [f"`{row['method']}`", f"{row['closed_error_percent']} %", f"{row['open_error_percent']} %",
         row["change_points"], row["auroc"], row["fpr95"]]
        for row in rows
    ]  # fmt: skip
    return filled(f"""# Unknown images in the stream

**Unknown images do no harm here, but most methods do not recognise them either.** If {100 * SHARE:g} % of the stream
are
images of other classes, the error on the known images falls by {changes[0]} to {changes[-1]} points for all nine
adapting methods. {listed(FOR_UNKNOWN)}, which are made for such streams, tell unknown from known images
with an AUROC of {made[0]} to {made[-1]}; the other adapting methods reach {usual[0]} to {usual[-1]}.

![Error in the closed and in the open stream, and AUROC](../images/{PAGE}.png)

{table(("method", "error, closed", "error, open", "change, points", "AUROC", "FPR95"), shown)}

*Closed* is the stream without unknown images; both errors count the same known images.
[Metrics](../reference/metrics.md#known-or-unknown) defines the columns. AUPR and H-score are in
[`{PAGE}.csv`]({PAGE}.csv).

## Measure it again

{command("python -m bench.open_set CIFAR PHOTOGRAPHS", needs="CIFAR-10, photographs and a published network")}

The docstring of `bench/open_set.py` lists the files of both folders. Finished evaluations are not repeated.

## Setup and limits

A published ResNet-20 for CIFAR-10 under {", ".join(CORRUPTIONS[:-1])} and {CORRUPTIONS[-1]} at severity 5, in batches
of 200, with preset `cifar` and a reset before each cell. The known images are the first 100 test images of each class.
The unknown ones come from {rows[0]["unknown_photographs"]} photographs of ImageNet, scaled to 32 pixels, whose classes
do not belong to one of CIFAR-10's.

- All images were corrupted here. Compare these figures with each other, not with published tables.
- {listed(FOR_UNKNOWN)} score images by energy, the others by maximum softmax, so the AUROC compares scores as well as
  methods.
- A cell has five batches, or seven with unknown images. Methods that drift slowly show little here.
""")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
