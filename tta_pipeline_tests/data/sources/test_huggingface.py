"""Data sets in the layouts of the Hub become the images that are in them."""

import io
import json
import os
import re
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import ValidationError

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.benchmarks.open_source import load_class_map, open_source
from tta_pipeline.data.sources.kinds import HuggingFaceSource
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ClassMapError, SourceError
from tta_pipeline.extras.new_project.draft_benchmark import draft_benchmark
from tta_pipeline_tests.conftest import jpeg

NAMES = ["cat", "dog", "ape"]


def parquet(path: Path, labels: list, *, names: list[str] | None = None, image: str = "image") -> None:
    """Write a Parquet file as `datasets` does: `{bytes, path}`, and the names of the classes in the metadata."""
    rows = [{"bytes": jpeg(number), "path": f"{number}.jpg"} for number in range(len(labels))]
    table = pa.table({image: rows, "label": labels})
    features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}} if names else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), path)


def webdataset(path: Path, members: list[tuple[str, bytes]]) -> None:
    """Write a tar of *members*, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def benchmark(tmp_path: Path, source: dict, **fields: object) -> Benchmark:
    """Return the benchmark of *source*, with fog at severities 1 and 5."""
    text = {
        "title": "x", "image_size": 32, "shards": {"num_shards": 1}, "models": {}, "experiments": {},
        "source": {"kind": "huggingface", "data_set": str(tmp_path / "hub"), **source},
        **({"corruptions": ["fog"], "severities": [1, 5]} if not {"shift_set", "custom"} & set(fields) else {}),
        **fields,
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(text))
    return load_benchmark(tmp_path / "mine.yaml")


def images(found: Benchmark, tmp_path: Path) -> dict[str, list[tuple[str, bytes]]]:
    """Return name and bytes of the images of each cell."""
    source = open_source(found, Locations(root=tmp_path / "data"))
    with source.prepared(found.cells):
        return {cell.key: [(image.name, image.read()) for image in source.listing(cell).images] for cell in found.cells}


@pytest.mark.parametrize(
    ("files", "source"),
    [
        (("fog/1/a.parquet", "fog/5/a.parquet"), {}),
        (("fog/1-00000-of-00001.parquet", "fog/5-00000-of-00001.parquet"), {}),
        (("data/fog_1-00000-of-00001.parquet", "data/fog_5-00000-of-00001.parquet"), {"part": "{shift}_{severity}"}),
        (("all/mist/s1/x.parquet", "all/mist/s5/x.parquet"), {"parts": {"fog": "all/mist/s{severity}/*.parquet"}}),
    ],
    ids=["folders", "splits of a configuration", "splits", "pattern"],
)
def test_every_layout_gives_each_cell_its_images(tmp_path: Path, files: tuple[str, str], source: dict):
    """Splits and configurations as folders or beginnings of names; bytes stay, classes have their names."""
    for number, name in enumerate(files):
        parquet(tmp_path / "hub" / name, [2, 0, 1][: 3 - number], names=NAMES)

    found = images(benchmark(tmp_path, source), tmp_path)

    assert [("ape/00000000.jpg", jpeg(0)), ("cat/00000001.jpg", jpeg(1)), ("dog/00000002.jpg", jpeg(2))] == found[
        "fog|1"
    ]
    assert 2 == len(found["fog|5"])


def test_classes_come_from_class_map_features_or_labels(tmp_path: Path):
    """In that order; features keep their own order, which need not be the alphabet's."""
    for names, class_map, expected in (
        (NAMES, None, tuple(NAMES)),
        (None, None, ("0", "1", "2")),
        (None, ["x", "y", "z"], ("x", "y", "z")),
        (NAMES, ["ape", "cat", "dog"], ("ape", "cat", "dog")),
    ):
        for severity in (1, 5):
            parquet(tmp_path / "hub" / "fog" / str(severity) / "a.parquet", [0, 1, 2], names=names)
        (tmp_path / "map.json").write_text(json.dumps(class_map))
        fields = {"class_map": str(tmp_path / "map.json")} if class_map else {}
        found = benchmark(tmp_path, {}, **fields)
        root = tmp_path / f"data{len(list(tmp_path.iterdir()))}"

        assert expected == load_class_map(found, Locations(root=root)).classes
        first = images(found, root)["fog|1"]
        assert ("cat" if names else expected[0]) in [name.split("/")[0] for name, data in first if data == jpeg(0)]


@pytest.mark.parametrize("class_folders", ["names", "numbers"])
def test_names_that_are_numbers_count_in_the_class_map(tmp_path: Path, class_folders: str):
    """As `imagefolder` stores ImageNetV2: features 0, 1, 10, 11, whose labels 0, 1, 2, 3 are not those of the map."""
    classes = [f"n{number:02d}" for number in range(12)]
    (tmp_path / "map.json").write_text(json.dumps(classes))
    (tmp_path / "v2.shifts.yaml").write_text(
        f"{{names: [test], classes: {tmp_path}/map.json, class_folders: {class_folders}}}"
    )
    names = sorted(map(str, range(12)))
    for labels, features in ((list(range(12)), names), (names, None)):
        parquet(tmp_path / "hub" / "test.parquet", labels, names=features)

        found = images(benchmark(tmp_path, {}, shift_set="v2"), tmp_path)

        expected = sorted(f"n{int(name):02d}/{label:08d}.jpg" for label, name in enumerate(names))
        assert expected == [name for name, _ in found["test|0"]]


@pytest.mark.parametrize("form", ["{}.0", "tensor({})", "[{}]"])
def test_numbers_that_are_text_are_read_in_any_form(tmp_path: Path, form: str):
    """Sorted as text they would have other labels; with a class map they count in it."""
    parquet(tmp_path / "hub" / "fog" / "1.parquet", [form.format(number) for number in range(12)])
    (tmp_path / "map.json").write_text(json.dumps([f"n{number}" for number in range(12)]))
    for class_map, expected in (("folders", "10"), (str(tmp_path / "map.json"), "n10")):
        found = benchmark(tmp_path, {}, class_map=class_map, severities=[1])
        root = tmp_path / f"data{expected}"

        assert expected == load_class_map(found, Locations(root=root)).classes[10]
        assert f"{expected}/00000010.jpg" in [name for name, _ in images(found, root)["fog|1"]]


def test_names_with_numbers_whose_order_is_unknown_are_refused(tmp_path: Path):
    """Nobody knows whether class_10 has the label 2 or 10."""
    parquet(tmp_path / "hub" / "fog" / "1.parquet", [f"class_{number}" for number in range(11)])

    with pytest.raises(ClassMapError, match=r"1\.parquet.*class_2\b"):
        load_class_map(benchmark(tmp_path, {}, severities=[1]), Locations(root=tmp_path / "data"))


@pytest.mark.parametrize("label", ["3.5", "[0, 1]", "-1"])
def test_text_that_is_no_class_is_refused(tmp_path: Path, label: str):
    """The file and the text are named."""
    parquet(tmp_path / "hub" / "fog" / "1.parquet", [label])

    with pytest.raises(SourceError, match=rf"1\.parquet .*{re.escape(label)}"):
        load_class_map(benchmark(tmp_path, {}, severities=[1]), Locations(root=tmp_path / "data"))


def test_names_that_the_class_map_lacks_are_refused(tmp_path: Path):
    """Their labels would otherwise count in the map, as tench for goldfish; so would text, and a number too large."""
    path = tmp_path / "hub" / "fog" / "1" / "a.parquet"
    for labels, names, found in (
        ([0, 1, 2, 3], ["goldfish", "tench", "ant", "cow"], r"\D*\b4\b.*goldfish, tench, ant\D*\b1\b"),
        (["goldfish", "goldfish"], None, r"\D*\b1\b.*goldfish"),
        ([0, 1], ["0", "1000"], r"\D*\b1\b.*1000"),
        ([0, 1], ["0", "n01440764"], r"\D*\b1\b.*\b0\b"),
        ([0, 1], ["n01440764", "n01440764"], r"\D*n01440764"),
    ):
        parquet(path, labels, names=names)
        with pytest.raises(SourceError, match=rf"a\.parquet{found}"):
            images(benchmark(tmp_path, {"part": "fog/1/a.parquet"}, class_map="imagenet", severities=[1]), tmp_path)


def test_each_file_has_classes_of_its_own(tmp_path: Path):
    """Features differ in order and number; a file without them beside one with them is refused."""
    parquet(tmp_path / "hub" / "fog" / "1.parquet", [0, 1], names=["cat", "dog"])
    parquet(tmp_path / "hub" / "fog" / "5.parquet", [0, 1, 2], names=["dog", "ape", "cat"])
    found = benchmark(tmp_path, {})

    made = images(found, tmp_path)

    assert [("cat/00000000.jpg", jpeg(0)), ("dog/00000001.jpg", jpeg(1))] == made["fog|1"]
    assert [("ape/00000001.jpg", jpeg(1)), ("cat/00000002.jpg", jpeg(2)), ("dog/00000000.jpg", jpeg(0))] == made[
        "fog|5"
    ]
    assert ("ape", "cat", "dog") == load_class_map(found, Locations(root=tmp_path / "data")).classes
    parquet(tmp_path / "hub" / "fog" / "5.parquet", [0, 1])
    with pytest.raises(SourceError, match=r"fog/1\.parquet.*fog/5\.parquet"):
        load_class_map(found, Locations(root=tmp_path / "other"))


def test_webdataset_tars_are_read(tmp_path: Path):
    """An image and a .cls, a name or a number, for each sample."""
    for severity, texts in ((1, ("1", "0")), (5, ("0", "1"))):
        members = [
            member for number, text in enumerate(texts)
            for member in ((f"{number}.jpg", jpeg(number)), (f"{number}.cls", text.encode()))
        ]  # fmt: skip
        webdataset(tmp_path / "hub" / "fog" / f"{severity}-00000-of-00001.tar", members)

    found = images(benchmark(tmp_path, {}), tmp_path)

    assert [("0/00000001.jpg", jpeg(1)), ("1/00000000.jpg", jpeg(0))] == found["fog|1"]


def test_the_image_of_a_sample_is_that_of_adoption(tmp_path: Path):
    """A mask beside the image is left out, whatever comes first; .json says the class; two images are refused."""
    path = tmp_path / "hub" / "fog" / "5.tar"
    found = benchmark(tmp_path, {}, severities=[5])
    for members in (
        [("a.jpg", jpeg(1)), ("a.seg.png", jpeg(9)), ("a.cls", b"0")],
        [("a.seg.png", jpeg(9)), ("a.json", b'{"label": 0}'), ("a.jpg", jpeg(1)), ("._a.jpg", b"")],
    ):
        webdataset(path, members)
        assert [("0/00000000.jpg", jpeg(1))] == images(found, tmp_path)["fog|5"]
    for members, said in (
        ([("a.jpg", jpeg(1)), ("a.png", jpeg(9)), ("a.cls", b"0")], r"\b2\b.*\.jpg, \.png"),
        ([("a.jpg", jpeg(1)), ("a.cls", b"0"), ("a.jpg", jpeg(9))], r"\b2\b"),
        ([("a.jpg", jpeg(1))], r"\.cls\b.*\.json"),
        ([("a.cls", b"1")], r"\.cls\b.*\bwebp\b"),
    ):
        webdataset(path, members)
        with pytest.raises(SourceError, match=rf"5\.tar.*\ba\b.*{said}"):
            images(found, tmp_path)


def test_files_of_another_split_are_not_taken(tmp_path: Path):
    """`gaussian` is not the beginning of `gaussian-blur`."""
    for number, name in enumerate(("gaussian", "gaussian-blur"), start=1):
        parquet(tmp_path / "hub" / f"{name}-00000-of-00001-0a1b.parquet", [0] * number)

    found = images(benchmark(tmp_path, {}, custom={"names": ["gaussian", "gaussian-blur"]}), tmp_path)

    assert [1, 2] == [len(found["gaussian|0"]), len(found["gaussian-blur|0"])]


@pytest.mark.parametrize(
    ("names", "is_refused"),
    [
        (("data/fog-00000-of-00001", "fog/test"), True),
        (("fog", "fog/test"), True),
        (("fog/test-00000-of-00001", "fog/train-00000-of-00001"), True),
        (("fog-00000-of-00002", "fog-00000-of-00003"), True),
        (("fog/0000", "fog/0001"), False),
        (("fog/test-00000-of-00002", "fog/test-00001-of-00002"), False),
    ],
)
def test_what_can_mean_two_parts_is_refused(tmp_path: Path, names: tuple[str, str], *, is_refused: bool):
    """Two places, or two splits in a folder, would make one cell of both; numbered files of one split are one."""
    for name in names:
        parquet(tmp_path / "hub" / f"{name}.parquet", [0, 1])
    found = benchmark(tmp_path, {}, custom={"names": ["fog"]})

    if is_refused:
        with pytest.raises(SourceError) as raised:
            images(found, tmp_path)
        assert all(f"{Path(name).name}.parquet" in str(raised.value) for name in names)
    else:
        assert 4 == len(images(found, tmp_path)["fog|0"])
    assert 2 == len(found.source.places(found.cells[0], found.shift_set))


def test_a_split_that_lacks_a_file_is_refused(tmp_path: Path):
    """The names of its files say how many there are."""
    for number in (0, 1):
        parquet(tmp_path / "hub" / "fog" / f"test-0000{number}-of-00003.parquet", [0, 1])

    with pytest.raises(SourceError, match=r"\b2 of the 3\b"):
        images(benchmark(tmp_path, {}, custom={"names": ["fog"]}), tmp_path)


@pytest.mark.parametrize("name", ["fog/1.tar.gz", "fog/1.TAR", "fog-00001-of-00002.tar.zst"])
def test_files_in_a_form_that_is_not_read_are_refused(tmp_path: Path, name: str):
    """Half of a split is not taken for the whole."""
    first = "fog-00000-of-00002.tar" if "of" in name else "fog/0.tar"
    webdataset(tmp_path / "hub" / first, [("a.jpg", jpeg(1)), ("a.cls", b"0")])
    (tmp_path / "hub" / name).write_bytes(b"x")
    found = benchmark(tmp_path, {}, custom={"names": ["fog"]})

    with pytest.raises(SourceError, match=Path(name).name):
        images(found, tmp_path)
    assert 2 == len(found.source.places(found.cells[0], found.shift_set))


def test_files_are_in_the_order_of_their_numbers(tmp_path: Path):
    """Images are named by their position in the cell."""
    for number in (2, 10, 9):
        parquet(tmp_path / "hub" / "fog" / f"part-{number}.parquet", [number])
    (tmp_path / "map.json").write_text(json.dumps([f"c{number}" for number in range(11)]))

    found = images(benchmark(tmp_path, {}, custom={"names": ["fog"]}, class_map=str(tmp_path / "map.json")), tmp_path)

    assert ["c10/00000002.jpg", "c2/00000000.jpg", "c9/00000001.jpg"] == [name for name, _ in found["fog|0"]]


def version(found: Benchmark, tmp_path: Path) -> str:
    """Return the version of the first cell."""
    return open_source(found, Locations(root=tmp_path / "data")).version(found.cells[0])


def test_what_decides_images_and_labels_decides_the_version(tmp_path: Path):
    """Another folder, other names of classes, or another map make other shards, even if sizes and times are equal."""
    (tmp_path / "map.json").write_text(json.dumps(NAMES))
    versions = []
    for folder, names, fields in (
        ("x", NAMES, {}), ("y", NAMES, {}), ("x", NAMES[::-1], {}), ("x", NAMES, {"class_map": f"{tmp_path}/map.json"})
    ):  # fmt: skip
        path = tmp_path / "hub" / folder / "test.parquet"
        parquet(path, [0, 1], names=names)
        os.utime(path, (10**9, 10**9))
        versions.append(version(benchmark(tmp_path, {"part": f"{folder}/test"}, severities=[1], **fields), tmp_path))

    assert 4 == len(set(versions))
    assert versions[3] == version(
        benchmark(tmp_path, {"part": "x/test"}, severities=[1], class_map=f"{tmp_path}/map.json"), tmp_path
    )


def test_a_repository_is_read_from_the_cache_at_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As huggingface_hub lays it; without revision it is refused, and another revision is not there."""
    revision = "a" * 40
    snapshot = tmp_path / "cache" / "datasets--me--cats" / "snapshots" / revision
    for severity in (1, 5):
        parquet(snapshot / "fog" / f"{severity}.parquet", [0, 1, 2], names=NAMES)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", os.fspath(tmp_path / "cache"))

    found = benchmark(tmp_path, {"data_set": "me/cats", "revision": revision})

    assert 3 == len(images(found, tmp_path)["fog|1"])
    assert () == found.source.places(found.cells[0], found.shift_set)
    with pytest.raises(SourceError, match=r"`hf download me/cats .*b{40}`"):
        images(benchmark(tmp_path, {"data_set": "me/cats", "revision": "b" * 40}), tmp_path)
    with pytest.raises(ValidationError, match=r"me/cats.*\brevision\b"):
        HuggingFaceSource(kind="huggingface", data_set="me/cats")


def test_what_is_wrong_is_named(tmp_path: Path):
    """No file of a cell, no such column, a label of no class, and a file that is cut."""
    (tmp_path / "hub").mkdir()
    with pytest.raises(SourceError, match=r"fog\|1.*hub.*1\.parquet"):
        images(benchmark(tmp_path, {}), tmp_path)
    path = tmp_path / "hub" / "fog" / "1" / "a.parquet"
    parquet(path, [0, 1], image="img")
    with pytest.raises(SourceError, match=r"a\.parquet.*\bimg, label\b.*\bimage\b"):
        images(benchmark(tmp_path, {}), tmp_path)
    (tmp_path / "map.json").write_text('["x"]')
    parquet(path, [0, 1])
    with pytest.raises(SourceError, match=r"a\.parquet\D*\b1\b\D*\b0\b"):
        images(benchmark(tmp_path, {}, class_map=str(tmp_path / "map.json")), tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SourceError, match=r"a\.parquet"):
        images(benchmark(tmp_path, {}), tmp_path)


def test_new_benchmark_knows_it(tmp_path: Path):
    """The names of splits and configurations tell the shift set, if it has such images."""
    for name in ("plasma_noise/1", "plasma_noise/3", "train"):
        parquet(tmp_path / "hub" / f"{name}-00000-of-00001.parquet", [0, 2], names=NAMES)
    facts = "images_per_cell: 2, num_classes: 3, image_size: 32"
    (tmp_path / "mine_c.shifts.yaml").write_text(f"{{names: [plasma_noise, fog], severities: [1, 2, 3], {facts}}}")

    text = draft_benchmark("mine", [tmp_path / "hub"], own_folder=tmp_path).text
    (tmp_path / "mine.yaml").write_text(text)
    found = load_benchmark(tmp_path / "mine.yaml")

    assert ("huggingface", "mine_c", (1, 3)) == (found.source.kind, found.shift_set.name, found.severities)
    assert "3 classes, images of 32x32" in text


def test_labels_that_count_from_1_are_refused(tmp_path: Path):
    """Numbers alone, none of which is 0, would be given a class too many; a class map says what they count in."""
    parquet(tmp_path / "hub" / "fog" / "1" / "a.parquet", [1, 2])
    parquet(tmp_path / "hub" / "fog" / "5" / "a.parquet", [2, 3])
    (tmp_path / "map.json").write_text('["a", "b", "c", "d"]')

    with pytest.raises(ClassMapError, match=r"a\.parquet\D*\b1\b\D*\b3\b\D*\b0\b"):
        load_class_map(benchmark(tmp_path, {}), Locations(root=tmp_path / "data"))
    named = benchmark(tmp_path, {}, class_map=str(tmp_path / "map.json"))
    assert 4 == len(load_class_map(named, Locations(root=tmp_path / "data")).classes)


@pytest.mark.parametrize("labels", [["a", "b"], ["0", "1"]], ids=["names", "numbers"])
def test_a_tar_is_opened_twice_for_its_cell(tmp_path: Path, labels: list[str]):
    """Once for what it says about the classes, since that may come behind an image, and once for the images."""
    path = tmp_path / "hub" / "fog" / "1" / "0.tar"
    members = [(f"{n}.{kind}", data) for n in (0, 1) for kind, data in (("jpg", jpeg(n)), ("cls", labels[n].encode()))]
    webdataset(path, members)
    found = benchmark(tmp_path, {}, severities=[1])
    source, openings = open_source(found, Locations(root=tmp_path / "data")), Openings(path)

    with openings:
        assert 2 == len(source.class_names())
    assert 1 == openings.count
    with openings, source.prepared(found.cells):
        assert 2 == len(source.listing(found.cells[0]).images)
    assert 3 == openings.count


class Openings:
    """Counts how often this process opens the file *path* in blocks."""

    def __init__(self, path: Path) -> None:
        self.count, self._path, self._counts = 0, str(path), False
        sys.addaudithook(self._hear)  # it stays until the process ends, so it must do nothing outside blocks

    def __enter__(self) -> None:
        self._counts = True

    def __exit__(self, *_: object) -> None:
        self._counts = False

    def _hear(self, event: str, arguments: tuple) -> None:
        if self._counts and event == "open" and str(arguments[0]) == self._path:
            self.count += 1
