"""Shards in the layouts of other programs are adopted where they lie, with every image, order and label right."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import re
import subprocess
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.image_bytes import read_image_header
from tta_pipeline.data.images.existing_shards import ExistingShards
from tta_pipeline.data.images.kinds.shards import ShardsSection
from tta_pipeline.data.images.shard_files import find_shard_files, link_shards, shards_version
from tta_pipeline.data.images.shard_layouts import LAYOUTS, REFUSED_TYPES, ShardLayout
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ClassMapError, ImagesError, ManifestError, PipelineError
from tta_pipeline.extras.new_project.draft_benchmark import draft_benchmark
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.shards.adoption import adopt
from tta_pipeline.shards.set_contents import PublishedShardSet
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.verification import verify_shard_sets
from tta_pipeline_tests.conftest import in_one_line, jpeg
from tta_pipeline_tests.data.labels.test_label_files import write_devkit
from tta_pipeline_tests.shards.cell import CELL, QUIET

SHIFT = Cell(corruption="fog", severity=0)


def write_shard(path: Path, samples: Sequence[Mapping[str, Any]]) -> None:
    """Write a shard with webdataset's own writer; samples without a key are numbered as `000000`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path), mtime=0) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"{number:06d}", **sample})


def adopted(folder: Path, classes: tuple[str, ...] | None = None, **options: Any) -> PublishedShardSet:
    """Return what adoption makes of *folder*."""
    class_map = ClassMap(classes=classes) if classes else None
    return adopt(folder, CELL, QUIET, benchmark_name="theirs", class_map=class_map, **options)


def labels(folder: Path) -> list[int]:
    """Return the labels of the adopted set in *folder*, in stored order."""
    return ShardSet.open(folder).index.labels.tolist()


def stored_bytes(shard_set: ShardSet) -> list[bytes]:
    """Return the bytes that the index points at, in stored order."""
    names = [shard.name for shard in shard_set.manifest.shards]
    rows = zip(shard_set.index.shards, shard_set.index.offsets, shard_set.index.sizes, strict=True)
    return [(shard_set.folder / names[shard]).read_bytes()[start : start + size] for shard, start, size in rows]


def run(*arguments: str | Path) -> Any:
    """Run `tta-pipeline shards index`."""
    return CliRunner().invoke(main, ["shards", "index", *map(str, arguments)])


def test_further_members_are_kept_where_they_are_and_named(tmp_path: Path):
    """Captions, lists and thumbnails beside an image neither stop the adoption nor end up as samples."""
    extras = {"txt": "a caption", "meta": b"\x80\x02", "json": {"width": 3}, "thumbnail.jpg": jpeg(9), "id": 4}
    write_shard(tmp_path / "a-0.tar", [{"jpg": jpeg(number), "cls": 3 - number, **extras} for number in range(4)])

    result = run(tmp_path)

    assert 0 == result.exit_code, result.output
    assert "left out 4 .id, 4 .meta, 4 .thumbnail.jpg, and 1 more" in " ".join(result.output.split())
    assert [3, 2, 1, 0] == labels(tmp_path)
    assert [jpeg(number) for number in range(4)] == stored_bytes(ShardSet.open(tmp_path))
    assert 16 == ShardSet.open(tmp_path).manifest.source.num_strays


@pytest.mark.parametrize(
    ("content", "label"),
    [
        ({"label": 3, "caption": "a fish"}, 3),
        ({"class_id": 3, "class_name": "tench", "wnid": "n01440764"}, 3),
        ({"label": 3, "class_idx": 3, "target": "3"}, 3),
        ({"class": "b"}, 1),
        ({"label": "b", "cls": "b", "width": 500}, 1),
        ({"label": 3.0}, 3),
        ({"label": [3]}, 3),
        ({"label": [["tensor(3)"]], "target": [0, 0, 1]}, 3),
        ({"label": ["b"], "target": [0, 1]}, 1),
        (3, 3),
    ],
)
def test_a_label_in_a_json_member(tmp_path: Path, content: object, label: int):
    """A whole number in one of the known fields is the label; without one, the name of the class is looked up."""
    write_shard(tmp_path / "0.tar", [{"png": jpeg(0), "json": content}])

    adopted(tmp_path, ("a", "b", "c", "d"))

    assert [label] == labels(tmp_path)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"label": 3, "class_id": 4}, "label 3.*class_id 4"),
        ({"class_name": "tench", "wnid": "n01440764"}, "tench.*n01440764"),
        ({"label": -1}, " -1 "),
        ({"label": [1, 2]}, "2 numbers"),
        ({"label": [0, 0, 1]}, "3 numbers"),
        ({"target": [[False], [True]]}, "2 numbers"),
        ({"label": "[0, 0, 1]"}, "3 numbers"),
        ({"label": 1.5}, r"1\.5"),
        ({"label": float("nan")}, "nan"),
        ([0, 0, 1], "3 numbers"),
        ({"label": True}, " x "),
        ({"caption": "3"}, " x "),
        (b"{", " x .*line 1 column 2"),
        pytest.param(b'{"label": 1' + b" " * 2**20 + b"}", r"1,048,\d+ bytes", id="too long"),
    ],
)
def test_a_json_member_that_leaves_the_class_open_is_refused(tmp_path: Path, content: object, named: str):
    """Of several labels none is guessed, and neither is one made of something that is no integer."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with webdataset.TarWriter(str(tmp_path / "0.tar"), encoder=False) as writer:
        writer.write({"__key__": "x", "jpg": jpeg(0), "json": data})

    with pytest.raises(PipelineError, match=named):
        adopted(tmp_path, ("a", "b", "c", "d", "e"))
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("form", ["{}", "{}.0", "[{}]", "tensor({})", "np.int64({})", "+{}", "\ufeff{}\n"])
def test_numbers_in_any_form_are_labels(tmp_path: Path, form: str):
    """Taken for names, twelve of them would be sorted as text, 10 before 2."""
    numbers = [*range(12)]
    write_shard(tmp_path / "0.tar", [{"jpg": jpeg(number), "cls": form.format(number)} for number in numbers])

    assert 0 == run(tmp_path).exit_code

    assert numbers == labels(tmp_path)
    assert tuple(map(str, numbers)) == ShardSet.open(tmp_path).manifest.classes


@pytest.mark.parametrize("text", ["3.5", "[0, 1]", "tensor([0, 1])", "\x03"])
def test_label_text_that_is_no_class_is_refused(tmp_path: Path, text: str):
    """By the verb, with the text, and no manifest is written."""
    write_shard(tmp_path / "0.tar", [{"jpg": jpeg(0), "cls": text}])

    result = run(tmp_path)

    assert 1 == result.exit_code
    assert repr(text) in result.output
    assert not (tmp_path / "manifest.json").exists()


def test_double_extensions(tmp_path: Path):
    """`x.input.jpg` and `x.output.cls` are image and class of `x`, and a mask beside it is not its image."""
    write_shard(
        tmp_path / "0.tar",
        [{"input.jpg": jpeg(number), "mask.png": jpeg(7), "output.cls": number} for number in (1, 0)],
    )

    published = adopted(tmp_path)

    assert [1, 0] == labels(tmp_path)
    assert [jpeg(1), jpeg(0)] == stored_bytes(published.shard_set)
    assert {"mask.png": 2} == published.left_out


@pytest.mark.parametrize(
    ("sample", "named"),
    [
        ({"jpg": jpeg(0), "png": jpeg(1), "cls": 0}, r" 000000 .* \.jpg, \.png"),
        ({"1.jpg": jpeg(0), "2.jpg": jpeg(1), "cls": 0}, r" 000000 .* \.1\.jpg, \.2\.jpg"),
        ({"jpg": jpeg(0), "fine.cls": 0, "coarse.cls": 1}, r" 000000 .* \.coarse\.cls, \.fine\.cls"),
        ({"tif": b"II*", "cls": 0}, r" 000000 .* \.cls, \.tif"),
        ({"cls": 0}, r" 000000 .* \.cls\b"),
        ({"jpg": b"GIF89a", "cls": 0}, r"000000\.jpg at byte \d+.*GIF89a"),
        ({"jpg": jpeg(0), "cls": 0, "pyd": b""}, r"000000\.pyd"),
        ({"jpg": jpeg(0), "cls": 0, "pickle.gz": b""}, r"000000\.pickle\.gz"),
    ],
)
def test_a_sample_that_is_not_one_image_is_refused(tmp_path: Path, sample: Mapping[str, Any], named: str):
    """Neither is one of two images chosen, nor is a sample dropped because its image is of an unknown kind."""
    with webdataset.TarWriter(str(tmp_path / "0.tar"), encoder=False) as writer:
        encoded = {name: str(value).encode() if isinstance(value, int) else value for name, value in sample.items()}
        writer.write({"__key__": "000000", **encoded})

    with pytest.raises(ManifestError, match=named):
        adopted(tmp_path)


def test_files_that_webdataset_skips_are_counted(tmp_path: Path):
    """What macOS leaves beside each file, and files without an extension, are no samples."""
    (tmp_path / "n01").mkdir()
    for name, data in (("a.jpg", jpeg(0)), ("._a.jpg", b"AppleDouble"), ("LICENSE", b"free")):
        (tmp_path / "n01" / name).write_bytes(data)
    subprocess.run(["tar", "-cf", tmp_path / "0.tar", "-C", tmp_path, "n01"], check=True)

    first, again = run(tmp_path).output, run(tmp_path).output
    manifest = ShardSet.open(tmp_path).manifest

    assert (1, 2) == (manifest.num_samples, manifest.source.num_hidden)
    assert all("left out 2 hidden" in said for said in (first, again))


def write_as_imagenet_tools_tests(folder: Path, labels: Sequence[int]) -> None:
    """Write shards as the tests of AaltoRSE/ImageNetTools have them: `Data/Images/Pic8` and an integer in `.cls`."""
    for shard, start in enumerate(range(0, len(labels), 3)):
        numbers = range(start, min(start + 3, len(labels)))
        samples = [{"__key__": f"Data/Images/Pic{i}", "jpg": jpeg(i), "cls": str(labels[i])} for i in numbers]
        write_shard(folder / f"Shards{shard}.tar", samples)


@pytest.mark.parametrize("classes", [None, tuple("abcdefghijk"), tuple(map(str, range(11)))])
def test_a_folder_with_several_labels_is_no_class(tmp_path: Path, classes: tuple[str, ...] | None):
    """With a class map or without, `Data/Images` is no class of the samples in it."""
    expected = [2, 0, 5, 4, 1, 6, 10, 3, 7, 9, 8]
    write_as_imagenet_tools_tests(tmp_path, expected)

    adopted(tmp_path, classes)

    assert expected == labels(tmp_path)
    assert (
        tuple(map(str, range(11)))
        == ExistingShards(root=tmp_path, cells=(CELL,), elsewhere=((CELL, tmp_path),)).class_names()
    )


def test_a_wrong_label_among_class_folders_is_refused(tmp_path: Path):
    """A sample whose label is another than that of its folder does not turn the folder into a wrapper."""
    folders = ["ant", "ant", "bear", "bear"]
    for number, wrong in enumerate(([0, 0, 1, 1], [0, 1, 1, 1])):
        samples = [
            {"__key__": f"{folder}/{position}", "jpg": jpeg(position), "cls": label}
            for position, (folder, label) in enumerate(zip(folders, wrong, strict=True))
        ]
        write_shard(tmp_path / str(number) / "0.tar", samples)

    assert [0, 0, 1, 1] == adopted(tmp_path / "0").shard_set.index.labels.tolist()
    with pytest.raises(ClassMapError, match=r"ant/1 .* 1 .*bear"):
        adopted(tmp_path / "1", ("ant", "bear"))
    with pytest.raises(ClassMapError, match=r"bear.*\b0\b"):
        adopted(tmp_path / "1")


def test_a_sample_without_a_class_is_refused(tmp_path: Path):
    """Its folder is none, since others in it have several, or may be none, and no class map says so."""
    members = [{"__key__": f"x/{number}", "jpg": jpeg(number), "cls": number} for number in range(2)]
    write_shard(tmp_path / "0.tar", [*members, {"__key__": "x/2", "jpg": jpeg(2)}])

    with pytest.raises(ManifestError, match=r"x/2 has no class.*\bx\b"):
        adopted(tmp_path, ("a", "b"))
    write_shard(tmp_path / "0.tar", [{"__key__": f"{name}/0", "jpg": jpeg(0)} for name in ("n01", "train")])
    with pytest.raises(ClassMapError, match=r"\bfolder train\b"):
        adopted(tmp_path)


def test_a_folder_and_a_name_that_disagree_are_refused(tmp_path: Path):
    """Both are classes of the class map, and only one can be right."""
    write_shard(tmp_path / "0.tar", [{"__key__": "ant/0", "jpg": jpeg(0), "cls": "bear"}])

    with pytest.raises(ClassMapError, match=r"ant/0 .*bear"):
        adopted(tmp_path, ("ant", "bear"))


def test_numbers_of_the_devkit_are_no_labels(tmp_path: Path):
    """AaltoRSE/ImageNetTools writes `ILSVRC2012_ID`, from 1 and in another order than labels; the devkit has both."""
    wnids = {1: "n02119789", 2: "n02100735", 3: "n01440764"}
    devkit = write_devkit(tmp_path / "meta.mat", [(number, wnid, 0) for number, wnid in wnids.items()])
    for folder in ("with folders", "flat"):
        keys = [f"{wnid}/{wnid}_{number}" if folder != "flat" else f"val_{number}" for number, wnid in wnids.items()]
        samples = [{"__key__": key, "img": jpeg(at), "cls": str(at + 1)} for at, key in enumerate(keys)]
        write_shard(tmp_path / folder / "ImageNet0.tar", samples)

        result = run(tmp_path / folder, "--devkit", devkit)

        assert 0 == result.exit_code, result.output
        assert [2, 1, 0] == labels(tmp_path / folder)
        assert tuple(sorted(wnids.values())) == ShardSet.open(tmp_path / folder).manifest.classes
    write_shard(tmp_path / "wrong" / "0.tar", [{"jpg": jpeg(0), "cls": 0}])
    assert "a label member contains the class number 0; expected 1 to 3" in in_one_line(
        run(tmp_path / "wrong", "--devkit", devkit).output
    )


def test_a_devkit_that_is_given_later_counts(tmp_path: Path):
    """The shards are adopted anew, with the classes that its numbers stand for, and anew when it is taken away."""
    write_shard(tmp_path / "fog" / "5" / "0.tar", [{"jpg": jpeg(at), "cls": str(at)} for at in (1, 2)])
    devkit = write_devkit(tmp_path / "meta.mat", [(1, "n03", 0), (2, "n02", 0), (3, "n01", 0)])
    folder, given = tmp_path / "fog" / "5", {}
    for path in (None, devkit, devkit, None):
        source = ExistingShards(root=tmp_path, cells=(CELL,), devkit=path)
        version = shards_version(source.shards(CELL))
        result = adopted(folder, ("n01", "n02", "n03"), names_by_id=source.names_by_id(), version=version)
        assert source.version(CELL) == result.shard_set.manifest.source.version
        given[path] = [*given.get(path, ()), (result.was_built, labels(folder))]

    assert {None: [(True, [1, 2]), (True, [1, 2])], devkit: [(True, [2, 1]), (False, [2, 1])]} == given


def test_a_devkit_counts_without_a_version_too(tmp_path: Path):
    """As the verb `shards index` gives none."""
    write_shard(tmp_path / "0.tar", [{"jpg": jpeg(at), "cls": str(at)} for at in (1, 2)])
    classes, ids = ("n01", "n02", "n03"), {1: "n03", 2: "n02"}

    assert [True, False] == [adopted(tmp_path, classes).was_built for _ in range(2)]
    assert [True, False] == [adopted(tmp_path, classes, names_by_id=ids).was_built for _ in range(2)]
    assert [2, 1] == labels(tmp_path)


def test_images_called_img(tmp_path: Path):
    """The default of AaltoRSE/ImageNetTools: what the bytes are is told by the bytes."""
    write_shard(tmp_path / "TestSet0.tar", [{"img": jpeg(0), "cls": "3"}, {"img": jpeg(1), "cls": "0"}])

    shard_set = adopted(tmp_path).shard_set

    assert [3, 0] == shard_set.index.labels.tolist()
    (batch,) = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=2, image_size=32)
    assert (2, 32, 32, 3) == tuple(batch.images.shape)


def test_tensors_of_torch_have_their_pixels(tmp_path: Path):
    """A uint8 tensor (3, H, W), as Graphcore's converter writes with `--format tensor`, is read as it was written."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
    write_shard(tmp_path / "0.tar", [{"pth": torch.from_numpy(image), "cls": 0} for image in pixels])

    shard_set = adopted(tmp_path).shard_set

    (batch,) = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=3, image_size=32)
    assert np.array_equal(pixels.transpose(0, 2, 3, 1), batch.images.numpy())


def test_a_compressed_tensor_of_torch_is_refused(tmp_path: Path):
    """It may stand for any number of bytes."""
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(3, 32, 32, dtype=torch.uint8), plain)
    with zipfile.ZipFile(plain) as parts, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in parts.namelist():
            target.writestr(name, parts.read(name))
    write_shard(tmp_path / "0.tar", [{"pth": packed.getvalue(), "cls": "0"}])

    with pytest.raises(PipelineError, match=r"\.pth file is compressed"):
        adopted(tmp_path)


class Gadget:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self.folder,)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("gadget", r"\.pth"),
        ("float", r"float32 \(3, 8, 8\)"),
        ("grey", r"uint8 \(1, 8, 8\)"),
        ("dict", "dict"),
        ("cut", r"\.pth"),
    ],
)
def test_a_pth_that_is_no_image_is_refused_and_not_executed(tmp_path: Path, content: str, found: str):
    """Only a plain uint8 tensor (3, H, W) is read."""
    contents = {
        "gadget": Gadget(tmp_path / "it_ran"),
        "float": torch.zeros(3, 8, 8),
        "grey": torch.zeros(1, 8, 8, dtype=torch.uint8),
        "dict": {"image": torch.zeros(3, 8, 8, dtype=torch.uint8)},
        "cut": torch.zeros(3, 8, 8, dtype=torch.uint8),
    }
    buffer = io.BytesIO()
    torch.save(contents[content], buffer)
    data = buffer.getvalue()[: -40 if content == "cut" else None]

    with pytest.raises(ValueError, match=rf"{found}.*uint8 \(3, H, W\)"):
        read_image_header(data)
    assert not (tmp_path / "it_ran").exists()


def test_what_is_no_image_is_told_which_images_are_read():
    """All six formats are named."""
    with pytest.raises(ValueError, match=r"GIF89a.*JPEG, PNG, BMP, WebP, \.npy or \.pth"):
        read_image_header(b"GIF89a")


def write_side_by_side(folder: Path) -> None:
    """Write training and validation shards into one folder, under the same keys, as tmbdev's code does."""
    for split, count in (("train", 3), ("val", 2)):
        for shard in range(count):
            key = f"{shard:03d}"
            write_shard(
                folder / f"imagenet-{split}-{shard:06d}.tar", [{"__key__": key, "jpg": jpeg(shard), "cls": shard}]
            )


def test_training_and_validation_images_are_not_one_set(tmp_path: Path):
    """Side by side in one folder they are told apart by name, and one must be chosen."""
    write_side_by_side(tmp_path)

    result = run(tmp_path)

    assert 1 == result.exit_code
    assert "imagenet-train-*.tar, imagenet-val-*.tar" in result.output
    assert '--files "imagenet-val-*.tar"' in result.output
    with pytest.raises(ImagesError, match=r"imagenet-train-\*\.tar, imagenet-val-\*\.tar"):
        ExistingShards(root=tmp_path, cells=(CELL,), elsewhere=((CELL, tmp_path),)).version(CELL)


@pytest.mark.parametrize(
    ("files", "num_samples"),
    [
        (("imagenet-val-*.tar",), 2),
        (("imagenet-train-{000000..000002}.tar",), 3),
        (("imagenet-{train-000000,val-000001}.tar",), 2),
        (("imagenet-val-000000.tar", "imagenet-val-000001.tar"), 2),
    ],
)
def test_shards_are_chosen_by_patterns(tmp_path: Path, files: tuple[str, ...], num_samples: int):
    """The manifest holds those and says by which patterns, so that the others count as no part of it later."""
    write_side_by_side(tmp_path)
    arguments = [argument for pattern in files for argument in ("--files", pattern)]

    first, again = run(tmp_path, *arguments), run(tmp_path)

    assert (0, 0) == (first.exit_code, again.exit_code), first.output + again.output
    assert "indexed" in first.output
    assert "unchanged" in again.output
    manifest = ShardSet.open(tmp_path).manifest
    assert (num_samples, files) == (manifest.num_samples, manifest.files)
    assert [()] == [verdict.problems for verdict in verify_shard_sets([tmp_path], lambda *_: QUIET)]


def test_a_shard_that_came_later_under_the_pattern_is_noticed(tmp_path: Path):
    """A set that was chosen by a pattern is not whole any more once another file fits it."""
    write_side_by_side(tmp_path)
    adopted(tmp_path, files=("imagenet-val-*.tar",))
    write_shard(tmp_path / "imagenet-val-000002.tar", [{"__key__": "new", "jpg": jpeg(8), "cls": 1}])

    (verdict,) = verify_shard_sets([tmp_path], lambda *_: QUIET)

    assert "imagenet-val-000002.tar" in "".join(verdict.problems)


UNREAD = (
    "a-1.tar.zst", "a-1.tar.xz", "a-1.tar.bz2", "a-1.tar.lz4", "a-1.tar.Z", "a-1.TAR", "a-1.Tar.Gz", "a-1.TGZ",
    "a-1.tbz2", "a-1.txz", "a-1", "a-1.wds", "a-1.br", "a-1.tar~", "a-1.tar (1)", "a-1.tar.!ut", "a-1.tar.part",
    "a-1.tar.gz.unfinished", "a-1.zst", "a-1.zip", "b-1.tar.zst",
)  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_a_shard_that_is_not_read_is_refused(tmp_path: Path, name: str):
    """Half of a set is not adopted for the whole, and a cell with nothing else is not passed over."""
    write_shard(tmp_path / "fog" / "5" / "a-0.tar", [{"jpg": jpeg(0), "cls": 0}])
    (tmp_path / "fog" / "5" / name).write_bytes(b"x")

    result = run(tmp_path)

    assert 1 == result.exit_code
    assert name in result.output
    assert not (tmp_path / "fog" / "5" / "manifest.json").exists()


def test_a_cell_of_shards_that_are_not_read_is_refused(tmp_path: Path):
    """Beside cells that can be adopted; with a pattern too."""
    write_shard(tmp_path / "fog" / "5" / "a-0.tar", [{"jpg": jpeg(0), "cls": 0}])
    (tmp_path / "snow" / "5").mkdir(parents=True)
    (tmp_path / "snow" / "5" / "a-0.tar.zst").write_bytes(b"x")

    for options in ([], ["--files", "a-*.tar"], ["--files", "a-{0..0}.tar"]):
        result = run(tmp_path, *options)
        assert (1, True) == (result.exit_code, "a-0.tar.zst" in result.output)


@pytest.mark.parametrize(("name", "content"), [
    *((name, "x") for name in ("a-0.tar.zst", "a-0.TAR.XZ", "a-0.zip", "a-1.tar.md5", "a-1.tar.idx", "a-1.json",
                               "notes.zip", ".a-1.TAR", "metadata.json")),
    ("metadata.json", f'{{"train_length": 9, "checksum": "{"0" * 32}"}}'),
    ("metadata.json", '{"train_length": 9, "validation_length": 9}'),
])  # fmt: skip
def test_what_is_no_further_shard_may_lie_beside(tmp_path: Path, name: str, content: str):
    """The packed original of a tar, files about tars, and other data."""
    write_shard(tmp_path / "a-0.tar", [{"jpg": jpeg(0), "cls": 0}])
    (tmp_path / name).write_text(content)

    assert 0 == run(tmp_path).exit_code
    assert [()] == [verdict.problems for verdict in verify_shard_sets([tmp_path], lambda *_: QUIET)]


def test_a_shard_that_was_passed_over_is_found_by_verify(tmp_path: Path):
    """As an earlier release adopted half a set, or after a second download into the folder."""
    write_shard(tmp_path / "a-0.tar", [{"jpg": jpeg(0), "cls": 0}])
    adopted(tmp_path)
    (tmp_path / "a-1.tar.zst").write_bytes(b"x")

    (verdict,) = verify_shard_sets([tmp_path], lambda *_: QUIET)

    assert "a-1.tar.zst" in "".join(verdict.problems)


@pytest.mark.parametrize(
    ("names", "files"),
    [
        ([f"s-{number}" for number in range(12)], ()),
        ([f"s-{number}" for number in range(12)], ("s-{0..11}.tar",)),
        (["s-8", "s-9", "s-10", "s-11"], ("s-{8..11}.tar",)),
        (["s-1", "s-02", "s-003", "s-10"], ()),
        (["s-9-of-100", "s-10-of-100"], ()),
        (["part2-10", "part10-9"], ("*.tar",)),
    ],
)
def test_shards_are_in_the_order_of_their_numbers(tmp_path: Path, names: list[str], files: tuple[str, ...]):
    """Which is that of the stream; as text, 10 comes before 2."""
    for number, name in enumerate(names):
        write_shard(tmp_path / f"{name}.tar", [{"__key__": str(number), "jpg": jpeg(number), "cls": number}])

    published = adopted(tmp_path, files=files)

    assert [f"{name}.tar" for name in names] == [shard.name for shard in published.shard_set.manifest.shards]
    assert [*range(len(names))] == labels(tmp_path)


def test_a_range_with_a_gap_is_refused(tmp_path: Path):
    """Of a range that is written out, a missing shard is an error; three are named and the rest is counted."""
    write_side_by_side(tmp_path)

    with pytest.raises(ImagesError, match=r" 8 .* 10 .*000003\.tar, .* 5 ") as caught:
        adopted(tmp_path, files=("imagenet-val-{000000..000009}.tar",))
    assert len(str(caught.value)) < 500
    with pytest.raises(ImagesError, match=r"^There are no shards .* test-\*\.tar"):
        adopted(tmp_path, files=("test-*.tar",))
    with pytest.raises(ImagesError, match="100,000"):
        adopted(tmp_path, files=("val-{0..99999999999}.tar",))
    with pytest.raises(ImagesError, match=r"val-\{0\.\.9\.tar.*\{000\.\.127\}"):
        adopted(tmp_path, files=("val-{0..9.tar",))


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00002", "train-00001-of-00002"),
        ("0", "1", "10"),
        ("s 0  ", "s 1  "),
        ("cifar10-0", "cifar10-1"),
    ],
)
def test_numbers_do_not_make_several_sets(tmp_path: Path, names: Sequence[str]):
    """Shards that differ in their number alone are of one set, however they are numbered."""
    for number, name in enumerate(names):
        write_shard(tmp_path / f"{name}.tar", [{"__key__": str(number), "jpg": jpeg(number), "cls": 0}])

    assert 0 == run(tmp_path).exit_code


def test_keys_numbered_anew_in_each_shard(tmp_path: Path):
    """CCC as published: `serial_00000.tar` and on, `sample_0` and on in each; one stream of one shift, in its order."""
    folder = tmp_path / "ccc" / "baseline_20_transition+speed_1000_seed_44"
    counts = (4, 4, 3)
    for shard, count in enumerate(counts):
        samples = [
            {
                "__key__": f"sample_{number}",
                "info": b"\x80\x04.",
                "input.jpg": jpeg(10 * shard + number),
                "output.cls": 100 * shard + number,
            }
            for number in range(count)
        ]
        write_shard(folder / f"serial_{shard:05d}.tar", samples)

    result = run(tmp_path / "ccc")

    assert 0 == result.exit_code, result.output
    shard_set = ShardSet.open(folder)
    assert Cell(corruption=folder.name, severity=0) == shard_set.manifest.cell
    places = [(shard, number) for shard, count in enumerate(counts) for number in range(count)]
    assert [100 * shard + number for shard, number in places] == shard_set.index.labels.tolist()
    names = [f"serial_{shard:05d}_sample_{number}.input.jpg" for shard, number in places]
    assert names == shard_set.index.table["source_name"].to_pylist()
    assert [f"serial_{shard:05d}/sample_{number}" for shard, number in places] == shard_set.index.keys
    assert [jpeg(10 * shard + number) for shard, number in places] == stored_bytes(shard_set)
    order = stored_order(shard_set.index)
    batches = Stream(shard_set=shard_set, order=order, batch_size=4, image_size=32)
    assert shard_set.index.labels.tolist() == [label for batch in batches for label in batch.labels.tolist()]


def test_a_copy_of_a_shard_is_no_second_shard(tmp_path: Path):
    """The same images under the same keys are refused, with three of the keys and how many there are."""
    samples = [{"jpg": jpeg(number), "cls": number} for number in range(9)]
    write_shard(tmp_path / "0.tar", samples)
    write_shard(tmp_path / "1.tar", samples)

    with pytest.raises(ManifestError, match=r" 000002 .* 6 "):
        adopted(tmp_path)


def test_a_shift_without_severities(tmp_path: Path):
    """The shards of severity 0 lie in the shift's own folder, or in `0` if there is one."""
    source = ShardsSection(kind="shards", root=tmp_path)
    shifts = Dataset(name="mine", names=("fog",))

    assert (tmp_path / "fog",) == source.places(SHIFT, shifts)
    (tmp_path / "fog" / "0").mkdir(parents=True)
    assert (tmp_path / "fog" / "0",) == source.places(SHIFT, shifts)


def compressed(folder: Path, num_shards: int = 2) -> None:
    """Write shards and compress them."""
    for shard in range(num_shards):
        write_shard(folder / f"a-{shard}.tar", [{"__key__": str(shard), "jpg": jpeg(shard), "cls": shard}])
        path = folder / f"a-{shard}.tar"
        path.with_suffix(".tar.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def test_compressed_shards_are_unpacked_where_their_links_would_be(tmp_path: Path):
    """Once; their version is that of the originals, and another original is unpacked anew."""
    compressed(tmp_path / "theirs")
    theirs = find_shard_files(tmp_path / "theirs")

    assert link_shards(theirs, tmp_path / "cell")
    assert not link_shards(theirs, tmp_path / "cell")

    assert ["a-0.tar", "a-1.tar"] == [path.name for path in find_shard_files(tmp_path / "cell")]
    assert shards_version(theirs) == shards_version(find_shard_files(tmp_path / "cell"))
    assert [0, 1] == adopted(tmp_path / "cell").shard_set.index.labels.tolist()
    assert ["a-0.tar.gz", "a-1.tar.gz"] == sorted(path.name for path in (tmp_path / "theirs").iterdir())

    theirs[0].write_bytes(theirs[1].read_bytes())
    assert shards_version(theirs) != shards_version(find_shard_files(tmp_path / "cell"))
    assert link_shards(theirs, tmp_path / "cell")
    assert shards_version(theirs) == shards_version(find_shard_files(tmp_path / "cell"))


def test_compressed_shards_are_unpacked_in_place_if_asked_to(tmp_path: Path):
    """Without the option they are refused, as no sample can be read from their middle; a damaged one is named."""
    compressed(tmp_path)

    refused, done, again = run(tmp_path), run(tmp_path, "--unpack", "--files", "a-*.tar.gz"), run(tmp_path, "--unpack")

    assert 1 == refused.exit_code
    assert "a-0.tar.gz, a-1.tar.gz" in refused.output
    assert 0 == done.exit_code, done.output
    assert [0, 1] == labels(tmp_path)
    assert "unchanged" in again.output
    path = tmp_path / "b" / "a-0.tar.gz"
    path.parent.mkdir()
    path.write_bytes((tmp_path / "a-0.tar.gz").read_bytes()[:-20])
    damaged = run(tmp_path / "b", "--unpack")
    assert 1 == damaged.exit_code
    assert "a-0.tar.gz" in damaged.output
    assert [path] == list(path.parent.iterdir())


def test_a_shard_is_told_by_its_bytes_and_not_by_its_name(tmp_path: Path):
    """A plain tar called .tar.gz and a gzip called .tar are read where compressed shards are."""
    compressed(tmp_path / "theirs")
    theirs = tmp_path / "theirs"
    (theirs / "a-0.tar.gz").write_bytes(gzip.decompress((theirs / "a-0.tar.gz").read_bytes()))
    (theirs / "a-1.tar.gz").rename(theirs / "a-1.tar")

    link_shards(find_shard_files(theirs), tmp_path / "cell")
    assert not link_shards(find_shard_files(theirs), tmp_path / "cell")

    assert [0, 1] == adopted(tmp_path / "cell").shard_set.index.labels.tolist()
    assert shards_version(find_shard_files(theirs)) == shards_version(find_shard_files(tmp_path / "cell"))


def test_a_plain_tar_called_tar_gz_is_adopted(tmp_path: Path):
    """Tars are copied under their right names."""
    compressed(tmp_path)
    for path in tmp_path.glob("*.gz"):
        path.write_bytes(gzip.decompress(path.read_bytes()))

    assert 0 == run(tmp_path, "--unpack").exit_code
    assert [0, 1] == labels(tmp_path)


@pytest.mark.parametrize(
    ("pack", "kind"),
    [(gzip.compress, "gzip"), (lzma.compress, "xz"), (bz2.compress, "bzip2")],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_compressed_shard_called_tar_is_named_with_the_line_that_unpacks_it(
    tmp_path: Path, pack: Callable[[bytes], bytes], kind: str
):
    """Samples are read by offset, so adoption of a folder unpacks nothing by itself."""
    write_shard(tmp_path / "a-0.tar", [{"__key__": "0", "jpg": jpeg(0), "cls": 0}])
    path = tmp_path / "a-0.tar"
    path.write_bytes(pack(path.read_bytes()))

    with pytest.raises(ManifestError) as refused:
        adopted(tmp_path)

    assert f"{path} is compressed with {kind}" in str(refused.value)
    line = str(refused.value).partition("type ")[2]
    subprocess.run(line, shell=True, cwd=tmp_path, check=True)
    assert [0] == adopted(tmp_path).shard_set.index.labels.tolist()


def test_a_class_called_as_compressed_files_begin_is_read(tmp_path: Path):
    """The first bytes of a tar are a name."""
    write_shard(tmp_path / "a-0.tar", [{"__key__": "BZh91AY/0", "jpg": jpeg(0), "cls": 0}])

    assert [0] == adopted(tmp_path).shard_set.index.labels.tolist()


def folder_md5(folder: Path) -> str:
    """Return the checksum of *folder* as `checksumdir.dirhash` gives it: the md5 of the sorted md5s of all files."""
    found = sorted(hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir())
    return hashlib.md5("".join(found).encode()).hexdigest()


def write_as_graphcore(folder: Path) -> None:
    """Write what Graphcore's `create_webdataset.py` leaves: two splits, unpadded keys, and `metadata.json`."""
    for split, count in (("train", 3), ("validation", 2)):
        samples = [
            {"__key__": str(number), "jpg": jpeg(number), "cls": number, "json": {"bbox": None}}
            for number in range(count)
        ]
        write_shard(folder / f"{split}-000000.tar", samples)
    metadata = {"train_length": 3, "validation_length": 2, "format": "img", "checksum": folder_md5(folder)}
    (folder / "metadata.json").write_text(json.dumps(metadata))


def test_the_checksum_beside_graphcores_shards_is_compared(tmp_path: Path):
    """What was intact there is adopted, also after their `distributed` folder was added, which fails their check."""
    write_as_graphcore(tmp_path)
    (tmp_path / "distributed").mkdir()
    (tmp_path / "distributed" / "train-000000.tar.txt").write_text("later")

    published = adopted(tmp_path, files=("validation-*.tar",))

    assert [0, 1] == published.shard_set.index.labels.tolist()


@pytest.mark.parametrize(
    ("fault", "found"), [("other split changed", "[0-9a-f]{32}.*[0-9a-f]{32}"), ("shard missing", r" 1 .* 2\b")]
)
def test_shards_that_differ_from_graphcores_checksum_are_refused(tmp_path: Path, fault: str, found: str):
    """A changed file anywhere in the folder, or a number of samples that is not the stated one."""
    write_as_graphcore(tmp_path)
    if fault == "other split changed":
        write_shard(tmp_path / "train-000000.tar", [{"jpg": jpeg(77), "cls": 0}])
    else:
        write_shard(tmp_path / "validation-000000.tar", [{"jpg": jpeg(0), "cls": 0}])

    with pytest.raises(ManifestError, match=rf"(?=.*metadata\.json).*{found}"):
        adopted(tmp_path, files=("validation-*.tar",))
    assert not (tmp_path / "manifest.json").exists()


def write_as_clip_benchmark(folder: Path) -> None:
    """Write what CLIP_benchmark's `convert_dataset` leaves of a split: shards, and their number in `nshards.txt`."""
    for shard in range(2):
        samples = [{"__key__": f"s{at:07d}", "webp": jpeg(at), "cls": at % 2} for at in (2 * shard, 2 * shard + 1)]
        write_shard(folder / f"{shard}.tar", samples)
    (folder / "nshards.txt").write_text("2\n")
    (folder.parent / "classnames.txt").write_text("cat\ndog\n")


def test_the_number_of_shards_beside_those_of_clip_benchmark_is_compared(tmp_path: Path):
    """A shard that is missing is noticed; another program's file of this name says nothing."""
    write_as_clip_benchmark(tmp_path / "test")
    assert [0, 1, 0, 1] == adopted(tmp_path / "test").shard_set.index.labels.tolist()

    write_as_clip_benchmark(tmp_path / "val")
    (tmp_path / "val" / "1.tar").unlink()
    with pytest.raises(ManifestError, match=r" 1 .*nshards\.txt.* 2\b"):
        adopted(tmp_path / "val")
    assert not (tmp_path / "val" / "manifest.json").exists()

    (tmp_path / "val" / "nshards.txt").write_text("two")
    assert 2 == adopted(tmp_path / "val").shard_set.manifest.num_samples


def write_one_shard(*names: str) -> Callable[[Path], None]:
    """Return what writes a shard of two samples, label 1 and label 0, whose members have the extensions *names*."""
    image, label, *further = names

    def write(folder: Path) -> None:
        samples = [{image: jpeg(at), label: 1 - at, **dict.fromkeys(further, b"more")} for at in range(2)]
        write_shard(folder / "validation-0.tar", samples)

    return write


EXAMPLES: dict[str, Callable[[Path], None]] = {
    "webdataset": write_one_shard("jpg", "cls", "txt"),
    "imagenet-wds": write_one_shard("jpg", "cls"),
    "imagenet-tools": write_one_shard("img", "cls"),
    "graphcore": write_as_graphcore,
    "clip-benchmark": write_as_clip_benchmark,
    "ccc": write_one_shard("input.jpg", "output.cls", "mask.png"),
}
"""What writes an example of each layout."""


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_layout_has_an_example_that_is_adopted(tmp_path: Path, layout: ShardLayout):
    """Whoever adds a layout writes shards as its program does; what it says of their number is compared with them."""
    EXAMPLES[layout.name](tmp_path)
    files = ("validation-*.tar",) if (tmp_path / "train-000000.tar").exists() else ()

    shard_set = adopted(tmp_path, files=files).shard_set

    assert {0, 1} == set(shard_set.index.labels.tolist())
    assert [jpeg(number) for number in range(shard_set.manifest.num_samples)] == stored_bytes(shard_set)
    if layout.totals_file:
        (tmp_path / "manifest.json").unlink()
        write_shard(tmp_path / "validation-9.tar", [{"__key__": "more", "jpg": jpeg(9), "cls": 0}])
        with pytest.raises(ManifestError, match=rf" 3 .*{re.escape(layout.totals_file)}.* 2\b"):
            adopted(tmp_path, files=files)


@pytest.mark.parametrize(
    "sample",
    [
        {"jpg": jpeg(0), "json": {"label": 3}},
        {"input.jpg": jpeg(0), "mask.png": jpeg(1), "output.cls": 3},
        {"img": jpeg(0), "cls": 3},
    ],
)
def test_new_benchmark_counts_the_classes_that_adoption_finds(tmp_path: Path, sample: Mapping[str, Any]):
    """It reads the members of a sample in the same way: labels in `.json` members and double extensions too."""
    for severity in (1, 5):
        write_shard(tmp_path / "fog" / str(severity) / "0.tar", [sample])

    text = draft_benchmark("mine", [tmp_path]).text

    assert "4 classes, images of 32x32" in text


def test_no_layout_has_what_readers_execute():
    """The types are the union of all layouts', so a single record could let a pickle in."""
    assert not REFUSED_TYPES & {name for layout in LAYOUTS for name in (*layout.images, *layout.classes)}
