"""Each option of the verb `shards make` does what it says."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from tta_pipeline.cli import main
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import in_one_line, jpeg, write_tree


def run(*arguments: object) -> Result:
    """Run a verb in this process."""
    return CliRunner().invoke(main, [*map(str, arguments), "--jobs", "1"], catch_exceptions=False)


def sharded(tree: Path, output: Path, *options: object) -> ShardSet:
    """Return the set that `shards make` makes of class folders."""
    finished = run("shards", "make", tree, output, "--class-dir-depth", "0", *options)
    assert 0 == finished.exit_code, finished.output
    return ShardSet.open(output)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Five images of two classes."""
    write_tree(tmp_path / "tree", classes={"n01": 3, "n02": 2})
    return tmp_path / "tree"


def images(shard_set: ShardSet) -> Iterator[bytes]:
    """Yield the stored images."""
    index = shard_set.index
    for shard, offset, size in zip(index.shards.tolist(), index.offsets.tolist(), index.sizes.tolist(), strict=True):
        yield (shard_set.folder / shard_set.manifest.shards[shard].name).read_bytes()[offset : offset + size]


def test_a_prefix_chooses_cells(tmp_path: Path):
    """Of three cells those of fog, or one of them."""
    for cell in ("fog/1", "fog/5", "snow/5"):
        write_tree(tmp_path / "tree" / cell, classes={"n01": 2})
    for prefix, expected in (("fog", ["fog/1", "fog/5"]), ("fog/5", ["fog/5"])):
        output = tmp_path / f"out-{len(expected)}"
        assert 0 == run("shards", "make", tmp_path / "tree", output, "--num-shards", "1", "--only", prefix).exit_code
        assert expected == sorted(str(path.parent.relative_to(output)) for path in output.rglob("manifest.json"))


def test_a_limit_of_samples_holds(tree: Path, tmp_path: Path):
    """Five samples, at most two in a shard."""
    shard_set = sharded(tree, tmp_path / "out", "--samples-per-shard", "2")

    assert [1, 2, 2] == sorted(shard.num_samples for shard in shard_set.manifest.shards)


def test_the_quality_is_that_of_images_encoded_again(tree: Path, tmp_path: Path):
    """A lower one takes fewer bytes, and the manifest names it."""
    found = {
        quality: sharded(
            tree, tmp_path / str(quality), "--num-shards", "1", "--center-crop", "24", "--quality", str(quality)
        ).manifest
        for quality in (20, 90)
    }

    assert [20, 90] == [manifest.encoding.quality for manifest in found.values()]
    assert found[20].payload_bytes < found[90].payload_bytes


def test_damaged_images_are_left_out_where_that_is_allowed(tree: Path, tmp_path: Path):
    """`--skip-corrupt-images` names them in the manifest; with --decode-all too, which sees damage inside an image."""
    data = (tree / "n01" / "image_000.JPEG").read_bytes()
    start = data.rindex(b"\xff\xda") + 14  # behind the header of the scan
    damaged = data[:start] + b"\xff\xd8" * 20 + data[start + 40 :]
    (tree / "n01" / "image_000.JPEG").write_bytes(damaged)
    Image.open(io.BytesIO(data)).save(tree / "n02" / "image.png")
    with (tree / "n02" / "image.png").open("r+b") as file:
        file.seek(200)
        file.write(bytes(50))

    kept = sharded(tree, tmp_path / "kept", "--num-shards", "1")
    seen = run("shards", "make", tree, tmp_path / "seen", "--class-dir-depth", "0", "--num-shards", "1", "--decode-all")
    skipped = sharded(tree, tmp_path / "skipped", "--num-shards", "1", "--decode-all", "--skip-corrupt-images")

    assert 6 == kept.manifest.num_samples, "the header and the end are whole"
    assert (1, True) == (seen.exit_code, ") is not an intact image" in seen.stderr)
    assert (4, ["n01/image_000.JPEG", "n02/image.png"]) == (
        skipped.manifest.num_samples, [image.name for image in skipped.manifest.source.skipped],
    )  # fmt: skip


def test_whatever_is_left_out_is_counted_and_said(tree: Path, tmp_path: Path):
    """In the line of the cell, and in the facts for programs."""
    (tree / "n01" / "image_000.JPEG").write_bytes(b"GIF89a")
    for name in ("a.gif", "b.tif", "c", ".hidden"):
        (tree / "n02" / name).write_bytes(b"")
    options = ("--class-dir-depth", "0", "--num-shards", "1", "--skip-corrupt-images")

    said = run("shards", "make", tree, tmp_path / "out", *options).stdout
    told = run("shards", "make", tree, tmp_path / "out", *options, "--json").stdout

    assert all(found in said for found in ("left out: 1 damaged (n01/image_000.JPEG", "3 not named", "1 hidden"))
    assert all(found in json.loads(told)[0]["left_out"] for found in ("1 damaged", "3 not named"))


def test_a_class_without_an_image_is_said(tree: Path, tmp_path: Path):
    """Its folder may have been taken away after the classes were pinned."""
    names = sorted(path.name for path in tree.iterdir())
    (tmp_path / "classes.json").write_text(json.dumps(["a", *names]))
    options = ("shards", "make", tree, tmp_path / "out", "--class-dir-depth", "0", "--num-shards", "1")
    options = (*options, "--class-map", tmp_path / "classes.json")

    assert "no sample of 1 of them: a)" in run(*options).stdout
    assert ["a"] == json.loads(run(*options, "--json").stdout)[0]["missing_classes"]


def test_extra_classes_are_left_out_where_that_is_allowed(tree: Path, tmp_path: Path):
    """A class folder that the class map lacks is refused, or counted and named."""
    (tmp_path / "map.json").write_text('["n01"]')
    options = ("--num-shards", "1", "--class-map", tmp_path / "map.json")

    refused = run("shards", "make", tree, tmp_path / "out", "--class-dir-depth", "0", *options)
    shard_set = sharded(tree, tmp_path / "out", *options, "--skip-extra-classes")

    assert (1, True) == (refused.exit_code, "the class map does not contain: n02" in refused.stderr)
    assert (3, ("n02",)) == (shard_set.manifest.num_samples, shard_set.manifest.source.extra_classes)


def test_a_pattern_that_takes_years_on_some_names_is_refused(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Before a name of the images is matched; a usual pattern is no such one."""
    with monkeypatch.context() as patched:
        patched.setattr("tta_pipeline.cli.make_shards._PATTERN_LIMIT_S", 0.5)
        finished = run("shards", "make", tree, tmp_path / "out", "--num-shards", "1", "--class-pattern", "^(a+)+$")

    assert 2 == finished.exit_code
    assert "without nested repetitions" in in_one_line(finished.output)
    assert not (tmp_path / "out").exists()
    assert 5 == len(sharded(tree, tmp_path / "out", "--num-shards", "1", "--class-pattern", "^(n[0-9]+)/").index)


def test_the_ground_truth_names_files_by_their_numbers(tmp_path: Path):
    """A line of it is that of `--ground-truth-name` with its number."""
    (tmp_path / "tree").mkdir()
    for number in (1, 2, 3):
        (tmp_path / "tree" / f"test_{number:03d}.jpg").write_bytes(jpeg(number))
    (tmp_path / "truth.txt").write_text("cat\nant\ncat\n")

    shard_set = sharded(
        tmp_path / "tree", tmp_path / "out", "--num-shards", "1", "--order", "source",
        "--ground-truth", tmp_path / "truth.txt", "--ground-truth-name", "test_%03d.jpg",
    )  # fmt: skip

    assert ["ant/test_002", "cat/test_001", "cat/test_003"] == sorted(shard_set.index.keys)


def test_labels_lie_beside_images(tree: Path, tmp_path: Path):
    """`--labels` puts a .cls and a .json member beside each image, which stays as it is."""
    before = sharded(tree, tmp_path / "first", "--num-shards", "1")
    after = sharded(tree, tmp_path / "labelled", "--num-shards", "1", "--labels")

    assert [*images(before)] == [*images(after)]
    assert {(32, 32)} == {Image.open(io.BytesIO(image)).size for image in images(after)}
    text = (after.folder / after.manifest.shards[0].name).read_bytes()
    assert all(f"{key}.cls".encode() in text and f"{key}.json".encode() in text for key in after.index.keys)


def test_a_run_that_is_refused_pins_no_classes(tmp_path: Path):
    """The classes of a wrong dataset do not stand in the way of the right one; those of finished sets stay."""
    write_tree(tmp_path / "in" / "imagenet_r", classes={"n01": 2})
    output = tmp_path / "out"
    common = ("shards", "make", tmp_path / "in", output, "--class-dir-depth", "1", "--num-shards", "1")

    refused = run(*common, "--dataset", "imagenet_r")

    assert 1 == refused.exit_code
    assert "n01" in refused.output
    assert not (output / "class_map.json").exists()
    (tmp_path / "map.json").write_text('["n01"]')
    assert 0 == run(*common, "--class-map", tmp_path / "map.json").exit_code
    write_tree(tmp_path / "in" / "imagenet_r", classes={"n02": 1})
    assert 1 == run(*common).exit_code
    assert (output / "class_map.json").exists()


def test_a_dataset_of_other_classes_than_the_pinned_ones_is_refused(tmp_path: Path):
    """Its labels would be those of the earlier set, without a word; shards that are there stay."""
    write_tree(tmp_path / "in" / "fog" / "5", classes={"n01440764": 1})
    command = ("shards", "make", tmp_path / "in", tmp_path / "out", "--num-shards", "1")
    (tmp_path / "map.json").write_text('["n01440764"]')
    assert 0 == run(*command, "--class-map", tmp_path / "map.json").exit_code

    refused = run(*command, "--dataset", "imagenet_c_bar", "--class-map", "imagenet")

    assert 1 == refused.exit_code
    assert f"pinned at {tmp_path / 'out' / 'class_map.json'} gives it to" in in_one_line(refused.stderr)
    assert (tmp_path / "out/fog/5").is_dir()
