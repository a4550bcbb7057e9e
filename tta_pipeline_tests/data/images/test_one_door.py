"""The verb `shards make` and a benchmark file describe a source by one section, and open it by one function."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.cli import main
from tta_pipeline.cli.make_shards import _section
from tta_pipeline.data.images.image_options import ImageOptions
from tta_pipeline.data.images.kinds import KINDS, ConvertedSection, section_from_options
from tta_pipeline.errors import BenchmarkFileError, ImagesError
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import write_tree

MD5 = "a" * 32
HEAD = "title: x\nimage_size: 32\nshards: {num_shards: 1}\nmodels: {}\nexperiments: {}\n"
DEFAULTS = {
    "class_dir_depth": 2, "class_pattern": None, "layout": "corruptions", "ground_truth": None, "class_map": None,
    "function": None,
    "ground_truth_name": "ILSVRC2012_val_%08d.JPEG",
}  # fmt: skip


def lay(tmp_path: Path) -> None:
    """Lay a source of each kind into *tmp_path*."""
    write_tree(tmp_path / "tree" / "fog" / "1", classes={"n01": 1, "n02": 1})
    for name in ("a", "b"):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            tar.add(tmp_path / "tree", arcname=".")
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "labels.npy", np.tile(np.array([0, 1, 2]), 5))
    np.save(tmp_path / "arrays" / "fog.npy", np.arange(15 * 8 * 8 * 3, dtype=np.uint8).reshape(15, 8, 8, 3))
    with tarfile.open(tmp_path / "arrays.tar", "w") as tar:
        tar.add(tmp_path / "arrays", arcname="CIFAR-10-C")


@pytest.mark.parametrize(
    ("sources", "options", "written"),
    [
        (["tree"], {}, "{kind: folder, root: tree}"),
        (["tree"], {"class_dir_depth": 3}, "{kind: folder, root: tree, class_dir_depth: 3}"),
        (["tree"], {"class_dir_depth": 0}, "{kind: folder, root: tree, class_dir_depth: 0}"),
        (["tree"], {"class_pattern": "(n.)"}, "{kind: folder, root: tree, class_pattern: (n.)}"),
        (["a.tar", "b.tar"], {}, "{kind: archive, archives: [a.tar, b.tar]}"),
        (["a.tar"], {"md5s": (f"a.tar={MD5}",)}, f"{{kind: archive, archives: [a.tar], md5: {{a.tar: {MD5}}}}}"),
        (["a.tar"], {"class_dir_depth": 0}, "{kind: archive, archives: [a.tar], layout: classes}"),
        (["a.tar"], {"layout": "nested"}, "{kind: archive, archives: [a.tar], layout: nested}"),
        (["a.tar"], {"class_pattern": "(n.)"}, "{kind: archive, archives: [a.tar], class_pattern: (n.)}"),
        (["a.tar"], {"layout": "flat", "ground_truth": Path("t"), "class_map": Path("m.mat")},
         "{kind: archive, archives: [a.tar], layout: flat, ground_truth: t, devkit: m.mat}"),
        (["tree"], {"ground_truth": Path("t.json")}, "{kind: folder, root: tree, ground_truth: t.json}"),
        (["tree"], {"ground_truth": Path("t"), "ground_truth_name": "%03d.png"},
         "{kind: folder, root: tree, ground_truth: t, ground_truth_name: '%03d.png'}"),
        (["arrays.tar"], {}, "{kind: archive, archives: [arrays.tar]}"),
        (["arrays"], {}, "{kind: npy, root: arrays}"),
        ([], {"function": "json:loads", "arguments": ("s=x", "n=1")},
         "{kind: python, function: 'json:loads', arguments: {s: x, n: 1}}"),
    ],
)  # fmt: skip
def test_options_and_fields_give_one_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], options: dict, written: str
):
    """Every option of every kind that the verb takes has its field, and every such field its option."""
    lay(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(f"{HEAD}images: {written}\n")
    told = {**DEFAULTS, **options, "sources": tuple(map(Path, sources))}
    md5s, arguments = told.pop("md5s", ()), told.pop("arguments", ())

    assert load_benchmark(path).images == _section(told, md5s, arguments)


def test_every_kind_that_the_verb_takes_is_tried_above():
    """A kind with options is one of those whose section is compared."""
    taking = {kind for kind in KINDS if issubclass(kind, ConvertedSection) and "from_options" in vars(kind)}

    assert {"ArchiveSection", "FolderSection", "NpySection", "PythonSection"} <= {kind.__name__ for kind in taking}
    assert all(kind.options <= set(ImageOptions.__dataclass_fields__) for kind in taking)


def test_an_option_without_effect_is_refused(tmp_path: Path):
    """It would be ignored in silence, as --layout was for a folder."""
    lay(tmp_path)

    with pytest.raises(ImagesError, match=r"\blayout\b.*'nested'.*\bfolder\b"):
        section_from_options(ImageOptions(sources=(tmp_path / "tree",), layout="nested"))
    with pytest.raises(ImagesError, match=r"\bclass_pattern\b.*'\(a\)'.*\bnpy\b"):
        section_from_options(ImageOptions(sources=(tmp_path / "arrays",), class_pattern="(a)"))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("{kind: shards, root: 'https://h/{shift}/a-{0..3}.tar'}", r"root\b.*https://h/fog/a-.*fog|1.*fog|2"),
        ("{kind: shards, root: 'https://h/fog/{severity}'}", r"root\b.*https://h/fog/1.*fog|1.*snow|1"),
        ("{kind: shards, root: ['https://h/{shift}/{severity}.tar', 'https://h/a.tar']}", r"root\b.*https://h/a.tar.*fog|1.*fog|2"),
        ("{kind: shards, root: 'https://h/set'}", ""),
        ("{kind: shards, root: 'https://h/{shift}-{severity}'}", ""),
    ],
)  # fmt: skip
def test_no_two_cells_have_the_same_images(tmp_path: Path, source: str, found: str):
    """Their shards would have other names and equal images, and every mean would be wrong."""
    path = tmp_path / "mine.yaml"
    head = HEAD.replace("shards: {num_shards: 1}\n", "") if "kind: shards" in source else HEAD
    path.write_text(f"{head}corruptions: [fog, snow]\nseverities: [1, 2]\nimages: {source}\n")

    if found:
        with pytest.raises(BenchmarkFileError, match=found.replace("|", r"\|")):
            load_benchmark(path)
    else:
        load_benchmark(path)


def test_labels_of_arrays_are_named_by_the_class_map_on_both_roads(tmp_path: Path):
    """Arrays with numbers, a class map with names, and clean images in folders of names or of numbers."""
    lay(tmp_path)
    (tmp_path / "map.json").write_text('["airplane", "bird", "cat"]')
    for folder, names in (("named", ("airplane", "bird", "cat")), ("numbered", ("0", "1", "2"))):
        for name in names:
            (tmp_path / folder / name).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(tmp_path / folder / name / "x.png")
    finished = CliRunner().invoke(
        main, ["shards", "make", f"{tmp_path}/arrays", f"{tmp_path}/out", "--num-shards", "1", "--jobs", "1",
               "--class-map", f"{tmp_path}/map.json"], catch_exceptions=False,
    )  # fmt: skip
    assert 0 == finished.exit_code, finished.output
    by_verb = ShardSet.open(tmp_path / "out" / "fog" / "1")
    packed = CliRunner().invoke(
        main, ["shards", "make", f"{tmp_path}/arrays.tar", f"{tmp_path}/packed/out", "--num-shards", "1", "--jobs", "1",
               "--class-map", f"{tmp_path}/map.json"], catch_exceptions=False,
    )  # fmt: skip
    assert 0 == packed.exit_code, packed.output
    assert by_verb.index.table == ShardSet.open(tmp_path / "packed" / "out" / "fog" / "1").index.table

    for clean in ("named", "numbered"):
        root = tmp_path / f"data_{clean}"
        path = tmp_path / "mine.yaml"
        path.write_text(
            f"{HEAD}images: {{kind: npy, root: {tmp_path}/arrays, clean: {tmp_path}/{clean}}}\n"
            f"class_map: {tmp_path}/map.json\ncorruptions: [fog]\n"
        )
        by_file = sharded(path, root)
        assert by_verb.index.table == by_file["fog/1"].index.table
        assert [0, 1, 2] == sorted(by_file["clean/0"].index.labels.tolist())


def sharded(path: Path, data_root: Path) -> dict[str, ShardSet]:
    """Write the shards of the first cell and of the clean images of the benchmark at *path*."""
    from tta_pipeline.benchmarks.open_images import load_class_map
    from tta_pipeline.domain.cells import CLEAN
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.shards.conversion import benchmark_conversion
    from tta_pipeline.shards.write_cell import write_cell
    from tta_pipeline.util.progress import quiet_reporter

    benchmark, locations = load_benchmark(path), Locations(root=data_root)
    conversion = benchmark_conversion(benchmark, locations, quiet_reporter)
    assert load_class_map(benchmark, locations) == conversion.class_map
    cells = (benchmark.cells[0], CLEAN)
    with conversion.session(cells) as session:
        return {cell.path: write_cell(session.task(cell), quiet_reporter).shard_set for cell in cells}


def test_one_split_keeps_the_name_that_the_output_has(tmp_path: Path):
    """`shard SPLIT shards/fog/5 --class-dir-depth 0` makes fog|5; another name is clean images."""
    write_tree(tmp_path / "split", classes={"n01": 2})
    for output, expected in (("shards/fog/5", "fog|5"), ("shards/imagenet_r/0", "imagenet_r|0"), ("mine", "clean|0")):
        finished = CliRunner().invoke(
            main, ["shards", "make", f"{tmp_path}/split", f"{tmp_path}/{output}", "--num-shards", "1", "--jobs", "1",
                   "--class-dir-depth", "0"], catch_exceptions=False,
        )  # fmt: skip
        assert 0 == finished.exit_code, finished.output
        assert expected == ShardSet.open(tmp_path / output).manifest.cell.key


def test_names_of_another_set_are_sharded(tmp_path: Path):
    """An archive of ImageNet-C-bar needs its name; without it, the message says so."""
    write_tree(tmp_path / "x" / "plasma_noise" / "1", classes={"n01440764": 2})
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "x", arcname="x")
    command = ["shards", "make", f"{tmp_path}/x.tar", f"{tmp_path}/out", "--num-shards", "1", "--jobs", "1"]

    refused = CliRunner().invoke(main, command)
    assert "--dataset" in refused.output
    taken = CliRunner().invoke(main, [*command, "--dataset", "imagenet_c_bar"])

    assert 0 == taken.exit_code, taken.output
    assert 1000 == len(ShardSet.open(tmp_path / "out" / "plasma_noise" / "1").manifest.classes)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (f"md5: {{A.tar: {MD5}}}", r"\bmd5\b.*\bA\.tar\b.*\ba\.tar, b\.tar\b"),
        ("md5: {a.tar: sha}", r"\bmd5\b.*\ba\.tar\b.*'sha'.*\b32\b"),
        ("published: imagenet_r", r"\bpublished\b.*\bimagenet_r\b.*\ba\.tar, b\.tar\b.*\bimagenet-r\.tar\b"),
    ],
)  # fmt: skip
def test_a_sum_that_would_be_compared_with_nothing_is_refused(tmp_path: Path, more: str, said: str):
    """Sums go by the names of files, so that another name would check nothing."""
    (tmp_path / "mine.yaml").write_text(f"{HEAD}images: {{kind: archive, archives: [a.tar, b.tar], {more}}}\n")

    with pytest.raises(BenchmarkFileError, match=said):
        load_benchmark(tmp_path / "mine.yaml")


def test_another_archive_than_the_published_one_is_refused(tmp_path: Path):
    """By the sum of its publisher, and by the name of the set if that is not known to the benchmark."""
    lay(tmp_path)
    (tmp_path / "our.dataset.yaml").write_text(f"names: [fog]\nseverities: [1]\narchives: {{a.tar: {{md5: {MD5}}}}}\n")
    for dataset, said in (("our", rf"a\.tar.*{MD5}"), ("imagenet_c", r"\bpublished\b.*\bour\b.*\bimagenet_c\b")):
        (tmp_path / "mine.yaml").write_text(
            f"{HEAD}images: {{kind: archive, archives: [{tmp_path}/a.tar], published: our}}\n"
            f"dataset: {dataset}\nsubset: true\ncorruptions: [fog]\nseverities: [1]\n"
        )
        with pytest.raises(ImagesError, match=said):
            sharded(tmp_path / "mine.yaml", tmp_path / "data")
