"""Prepares the tour: images, archives, arrays, shards of others, and additions to a project of `tta-pipeline init`.

<root>/
  sources/   images and archives, always the same bytes
  web/       folder of a local web server
  project/   the working directory of every step, written by the tour's first one
  tmp/       TMPDIR
  home/      HOME
"""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save_file
from scipy.io import savemat

OWN_FILES = Path(__file__).with_name("project")
CLASSES = ("n01", "n02", "n03")
_NUM_IMAGES = 4
"""Number of images in each class folder."""


def make_sources(root: Path) -> None:
    """Write everything below *root* that does not depend on the code."""
    for name in ("sources", "web", "tmp", "home"):
        (root / name).mkdir()
    sources = root / "sources"
    _write(sources / "tree", _cells("gaussian_noise", "fog"))
    _write(sources / "deep", {f"all/{name}": data for name, data in _cells("fog").items()})
    _write(sources / "shifts", {f"fog/{name}": data for name, data in _classes(3).items()})
    _write(sources / "one", _classes(4))
    _write(sources / "other_classes", _classes(5) | {"n99/foreign.JPEG": _jpeg(6)})
    _write(sources / "damaged", _classes(7) | {"n01/broken.JPEG": b"\xff\xd8 no image"})
    _write(sources / "files", _by_file(8))
    _write_archives(sources)
    _write_label_files(sources)
    _write_arrays(sources / "arrays")
    _write_parquet(sources / "parquet")
    _write_shards_of_others(sources / "others")
    _write_shards_of_others(sources / "adopt")


def complete_project(root: Path, *, web: str, examples: Path) -> None:
    """Add the tour's own files to the project at *root*: benchmarks, a model, a method, shift sets, settings."""
    project = root / "project"
    _write_network(project / "shufflenet.safetensors")
    facts = {
        "@@web": web,
        "@@project": str(project),
        "@@root": str(root),
        "@@sha256_of_3": _write_weights(project / "own_3.safetensors", num_classes=3),
        "@@sha256_of_10": _write_weights(project / "own.safetensors", num_classes=10),
        "@@md5": md5(root / "web" / "weather.tar"),
    }
    for path in sorted(path for path in OWN_FILES.rglob("*") if path.suffix in (".py", ".yaml", ".csv")):
        text = path.read_text()
        for name, value in facts.items():
            text = text.replace(name, value)
        (_home_of_benchmarks(project) if path.parent != OWN_FILES else project).joinpath(path.name).write_text(text)
    for name in ("own_method.py", "own_model.py"):
        shutil.copy(examples / name, project / name)


def md5(path: Path) -> str:
    """Return the md5 of the file at *path*."""
    return hashlib.md5(path.read_bytes()).hexdigest()


def _home_of_benchmarks(project: Path) -> Path:
    return project / "data" / "benchmarks"


def _write_archives(sources: Path) -> None:
    cells = _cells("fog", "snow")
    (sources / "weather.tar").write_bytes(_tar(cells))
    (sources / "noise.tar").write_bytes(_tar(_cells("gaussian_noise")))
    (sources.parent / "web" / "weather.tar").write_bytes(_tar(cells))
    (sources / "classes.tar").write_bytes(_tar(_classes(9)))
    by_class = {
        f"{name}.tar": _tar({Path(path).name: data for path, data in _classes(10).items() if path.startswith(name)})
        for name in CLASSES
    }
    (sources / "nested.tar").write_bytes(_tar(by_class))
    (sources / "flat.tar").write_bytes(_tar(_by_file(11)))


def _write_label_files(sources: Path) -> None:
    (sources / "truth.txt").write_text("".join(f"{CLASSES[number % 3]}\n" for number in range(6)))
    (sources / "truth.json").write_text(json.dumps({name: CLASSES[at % 3] for at, name in enumerate(_by_file(8))}))
    (sources / "classes.json").write_text(json.dumps(CLASSES))
    fields = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height",
              "num_train_images")  # fmt: skip
    synsets = np.zeros((len(CLASSES), 1), [(name, object) for name in fields])
    for row, name in enumerate(reversed(CLASSES)):  # the devkit's numbers do not follow the alphabet
        synsets[row, 0] = (row + 1, name, "words", "a gloss", 0, np.zeros(0), 0, 1300)
    savemat(sources / "meta.mat", {"synsets": synsets})


def _write_arrays(folder: Path) -> None:
    """Write a folder in the published form of CIFAR-10-C, with ten images for each severity."""
    folder.mkdir()
    pixels = np.random.default_rng(12).integers(0, 256, (50, 32, 32, 3), np.uint8)
    np.save(folder / "fog.npy", pixels)
    np.save(folder / "labels.npy", np.tile(np.arange(10), 5))


def _write_shards_of_others(folder: Path) -> None:
    """Write shards without a manifest: with labels, with the devkit's numbers, and a compressed one."""
    plain = {f"{at:04d}.{kind}": data for at in range(6) for kind, data in _sample(at, label=at % 3).items()}
    devkit = {f"{at:04d}.{kind}": data for at in range(6) for kind, data in _sample(at, label=at % 3 + 1).items()}
    for name, members in {"plain/fog/5/val-0.tar": plain, "plain/snow/5/val-0.tar": plain, "devkit/val-0.tar": devkit,
                          "named/val-0.tar": plain, "named/train-0.tar": plain}.items():  # fmt: skip
        _write(folder, {name: _tar(members)})
    _write(folder, {"packed/val-0.tar.gz": gzip.compress(_tar(plain), mtime=0)})


def _write_parquet(folder: Path) -> None:
    """Write each cell of the tree as a split of a data set of the Hub."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for shift in ("fog", "gaussian_noise"):
        for severity in (3, 5):
            images = _classes(severity)
            rows = {
                "image": [{"bytes": data, "path": name} for name, data in images.items()],
                "label": [CLASSES.index(name.partition("/")[0]) for name in images],
            }
            pq.write_table(pa.table(rows), folder / f"{shift}_{severity}.parquet")


def _write_weights(path: Path, *, num_classes: int) -> str:
    """Write weights of the example's model, and return their sha256."""
    draw = np.random.default_rng(13)
    weights = {
        "layers.2.weight": draw.normal(size=(num_classes, 48)).astype(np.float32),
        "layers.2.bias": np.zeros(num_classes, np.float32),
    }
    save_file(weights, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_network(path: Path) -> None:
    """Write weights of one of torchvision's networks."""
    import torch
    from safetensors.torch import save_file as save_tensors
    from torchvision.models import shufflenet_v2_x0_5

    torch.manual_seed(14)
    save_tensors(shufflenet_v2_x0_5(num_classes=10).state_dict(), path)


def _sample(seed: int, *, label: int) -> dict[str, bytes]:
    return {"jpg": _jpeg(seed, 32), "cls": str(label).encode()}


def _cells(*shifts: str) -> dict[str, bytes]:
    return {
        f"{shift}/{severity}/{path}": data
        for at, shift in enumerate(shifts)
        for severity in (3, 5)
        for path, data in _classes(100 * at + severity).items()
    }


def _classes(seed: int) -> dict[str, bytes]:
    return {
        f"{name}/image_{number}.JPEG": _jpeg(1000 * seed + 10 * at + number)
        for at, name in enumerate(CLASSES)
        for number in range(_NUM_IMAGES)
    }


def _by_file(seed: int) -> dict[str, bytes]:
    return {f"ILSVRC2012_val_{number:08d}.JPEG": _jpeg(1000 * seed + number) for number in range(1, 7)}


def _jpeg(seed: int, size: int = 40) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _write(root: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def _tar(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in _in_order(members.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _in_order(members: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return sorted(members)
