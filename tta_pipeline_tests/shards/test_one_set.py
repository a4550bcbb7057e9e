"""A source that is one set becomes the shards of the output folder itself, by the command line."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from torchvision.datasets.imagenet import ARCHIVE_META

from tta_pipeline.cli import main
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.data.images.images_section import ImagesContext
from tta_pipeline.data.images.kinds.clean_images import MD5_BY_ARCHIVE, CleanImages
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.errors import ImagesError
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import in_one_line, jpeg, write_tree
from tta_pipeline_tests.data.images.test_archive import archive

FILES_OF_A_SET = {"clean-0-00000.tar", "manifest.json", "samples.parquet", "checksums.xxh64", "writer.json",
                  "verified.json"}  # fmt: skip
LABELS = {"a": 0, "b": 1}


def run(*arguments: object) -> Result:
    """Run the verb `shards make` in this process."""
    return CliRunner().invoke(
        main, ["shards", "make", *map(str, arguments), "--num-shards", "1", "--jobs", "1"], catch_exceptions=False
    )


def nested(folder: Path) -> tuple[Path, list[str]]:
    """Write an archive with an archive for each class; return it, and the options it needs."""
    inner = {name: archive(folder / f"{name}.tar", {f"{name}_{i}.JPEG": jpeg(i) for i in range(3)}) for name in "ab"}
    return archive(folder / "X.tar", {f"{name}.tar": path.read_bytes() for name, path in inner.items()}), []


def classes(folder: Path) -> tuple[Path, list[str]]:
    """Write an archive of class folders; return it, and the options it needs."""
    return archive(folder / "X.tar", {f"{name}/{name}_{i}.JPEG": jpeg(i) for name in "ab" for i in range(3)}), []


def flat(folder: Path) -> tuple[Path, list[str]]:
    """Write an archive without folders; return it, and the options it needs."""
    names = [f"{name}_{i}.JPEG" for name in "ab" for i in range(3)]
    (folder / "truth.txt").write_text("".join(f"{name} {name[0]}\n" for name in names))
    path = archive(folder / "X.tar", {name: jpeg(int(name[2])) for name in names})
    return path, ["--ground-truth", str(folder / "truth.txt")]


@pytest.mark.parametrize("lay", [nested, classes, flat])
@pytest.mark.parametrize("is_compressed", [False, True], ids=["tar", "tar.gz"])
def test_every_layout_of_one_set_becomes_the_output(tmp_path: Path, lay, *, is_compressed: bool):
    """The output is the set and nothing else, beside it nothing is left, and a second run writes nothing."""
    (tmp_path / "in").mkdir()
    path, options = lay(tmp_path / "in")
    if is_compressed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    command = (path, tmp_path / "out" / "set", "--layout", lay.__name__, *options)

    finished = run(*command)
    assert 0 == finished.exit_code, finished.output
    shard_set = ShardSet.open(tmp_path / "out" / "set")
    written = {file.name: file.stat().st_mtime_ns for file in shard_set.folder.iterdir()}

    assert set(written) == FILES_OF_A_SET
    assert [LABELS[key[0]] for key in shard_set.index.keys] == shard_set.index.labels.tolist()
    assert 0 == run(*command).exit_code
    assert written == {file.name: file.stat().st_mtime_ns for file in shard_set.folder.iterdir()}
    assert [shard_set.folder] == list((tmp_path / "out").iterdir())


def test_a_set_that_could_not_be_written_leaves_nothing(tmp_path: Path):
    """A class that stood there once by mistake is not pinned for the next try."""
    write_tree(tmp_path / "tree", classes={"n01": 2, "wrong": 1})
    (tmp_path / "tree" / "n01" / "image_000.JPEG").write_bytes(b"<html>")

    assert 1 == run(tmp_path / "tree", tmp_path / "out", "--class-dir-depth", "0").exit_code

    assert not (tmp_path / "out").exists()


def run_on(tree: Path, output: Path, *options: str) -> Result:
    """Run the verb `shards make` on class folders in this process."""
    command = ["shards", "make", str(tree), str(output), "--class-dir-depth", "0", "--jobs", "1", *options]
    return CliRunner().invoke(main, command, catch_exceptions=False)


def largest_shard_bytes(folder: Path) -> int:
    """Return the size of the largest shard."""
    return max(path.stat().st_size for path in folder.glob("*.tar"))


@pytest.mark.parametrize("options", [[], ["--labels"], ["--suffix", "jpg", "--labels"]], ids=" ".join)
@pytest.mark.parametrize("length", [9, 96, 180])
def test_no_shard_is_larger_than_asked(tmp_path: Path, length: int, options: list[str]):
    """Label members and headers of long names count too, and there are no more shards than the limit needs."""
    tree = tmp_path / "tree" / "n01"
    tree.mkdir(parents=True)
    for number in range(40):
        (tree / f"{number:0{length}d}.JPEG").write_bytes(jpeg(number))

    finished = run_on(tree.parent, tmp_path / "out", "--max-shard-bytes", "40960", *options)
    assert 0 == finished.exit_code, finished.output
    one_fewer = len(list((tmp_path / "out").glob("*.tar"))) - 1
    assert 0 == run_on(tree.parent, tmp_path / "fewer", "--num-shards", str(one_fewer), *options).exit_code

    assert largest_shard_bytes(tmp_path / "out") <= 40_960 < largest_shard_bytes(tmp_path / "fewer")


def test_an_image_larger_than_a_shard_may_be_is_refused(tmp_path: Path):
    """It is named with its size and the limit; the others do not become a shard each in silence."""
    write_tree(tmp_path / "tree", classes={"n01": 3})
    (tmp_path / "tree" / "n01" / "large.JPEG").write_bytes(jpeg(1, size=512))

    finished = run_on(tmp_path / "tree", tmp_path / "out", "--max-shard-bytes", "10240")

    assert 1 == finished.exit_code
    assert f"n01/large.JPEG has {len(jpeg(1, size=512)):,} bytes" in finished.stderr
    assert "at most 10,240" in finished.stderr
    assert not (tmp_path / "out").exists()


def test_the_published_archives_of_ilsvrc2012_are_known(tmp_path: Path):
    """By torchvision's sums, in a benchmark file and on the command line; another archive of that name is refused."""
    assert dict(ARCHIVE_META.values()) == MD5_BY_ARCHIVE
    val = archive(tmp_path / "ILSVRC2012_img_val.tar", {"n01/a.JPEG": jpeg(0)})
    options = ("--layout", "classes", "--expect-md5", "ILSVRC2012_img_val.tar=published")
    told = f"{hashlib.md5(val.read_bytes()).hexdigest()}.*29b22e2961454d5413ddabcf34fc5622"

    refused = run(val, tmp_path / "out", *options)
    clean = CleanImages(path=val, published="ilsvrc2012")
    dataset = shipped_sets()["imagenet_c"]
    context = ImagesContext(
        cells=(CLEAN,), dataset=dataset, spill_root=tmp_path, generated_root=tmp_path, image_size=32
    )

    assert (1, True) == (refused.exit_code, bool(re.search(told, in_one_line(refused.stderr))))
    with pytest.raises(ImagesError, match=told), clean.open(context).prepared((CLEAN,)):
        pass
    with pytest.raises(ValueError, match=r"mine\.tar.*ILSVRC2012_img_val\.tar"):
        CleanImages(path=tmp_path / "mine.tar", published="ilsvrc2012")
    unknown = run(val, tmp_path / "out", "--layout", "classes", "--expect-md5", "mine.tar=published")
    assert (2, True) == (unknown.exit_code, "NAME=MD5" in unknown.stderr)
