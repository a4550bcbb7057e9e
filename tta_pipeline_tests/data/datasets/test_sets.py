"""The datasets that come with the project."""

import re
from pathlib import Path

import pytest

from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.datasets.dataset_files import match_cell, shipped_sets
from tta_pipeline.data.images.choose_dataset import CellImages
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.domain.cells import Cell
from tta_pipeline_tests.imagenet_c import COMMON_CORRUPTIONS, EXTRA_CORRUPTIONS

SHAPES = {
    "caltech101": (1, 0, None),
    "ccc": (27, 0, "imagenet"),
    "cifar_100_c": (19, 5, "cifar_100"),
    "cifar_10_c": (19, 5, "cifar_10"),
    "cifar_10_c_bar": (10, 5, "cifar_10"),
    "dtd": (1, 0, None),
    "eurosat": (1, 0, None),
    "fgvc_aircraft": (1, 0, None),
    "flowers102": (1, 0, None),
    "food101": (1, 0, None),
    "imagenet_3dcc": (12, 5, "imagenet"),
    "imagenet_a": (1, 0, "imagenet_a"),
    "imagenet_c": (19, 5, None),
    "imagenet_c_bar": (10, 5, "imagenet"),
    "imagenet_r": (1, 0, "imagenet_r"),
    "imagenet_sketch": (1, 0, "imagenet"),
    "imagenet_v2": (3, 0, "imagenet"),
    "laion_c": (6, 5, "laion_c"),
    "objectnet": (1, 0, "objectnet"),
    "oxford_pets": (1, 0, None),
    "stanford_cars": (1, 0, None),
    "sun397": (1, 0, None),
    "tiny_imagenet_c": (19, 5, "tiny_imagenet"),
    "ucf101": (1, 0, None),
}
"""Number of shifts, number of severities, and list of classes of each set; a split has the classes of some."""
MD5_BY_ARCHIVE = {
    "CIFAR-100-C.tar": "11f0ed0f1191edbf9fa23466ae6021d3",
    "CIFAR-10-C.tar": "56bf5dcef84df0e2308c6dcbcbbd8499",
    "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
    "EuroSAT.zip": "c8fa014336c82ac7804f0398fcb19387",
    "SUN397.tar.gz": "8ca2778205c41d23104230ba66911c7a",
    "caltech-101.zip": "3138e1922a9193bfa496528edbbc45d0",
    "dtd-r1.0.1.tar.gz": "fff73e5086ae6bdbea199a49dfb8a4c1",
    "food-101.tar.gz": "85eeb15f3717b99a5da872d97d918f87",
    "images.tar.gz": "5c4f3ee8e5d25df40f4fd59a7f44e54c",
    "imagenet-a.tar": "c3e55429088dc681f30d81f4726b6595",
    "noise.tar": "e80562d7f6c3f8834afb1ecf27252745",
    "blur.tar": "2d8e81fdd8e07fef67b9334fa635e45c",
    "weather.tar": "33ffea4db4d93fe4a428c40a6ce0c25d",
    "digital.tar": "89157860d7b10d5797849337ca2e5c03",
    "extra.tar": "d492dfba5fc162d8ec2c3cd8ee672984",
    "imagenet-r.tar": "a61312130a589d0ca1a8fca1f2bd3337",
    "Tiny-ImageNet-C.tar": "f9c9a9dbdc11469f0b850190f7ad8be1",
    "Tiny-ImageNet-C-extra.tar": "0db0588d243cf403ef93449ec52b70eb",
}


def each_set() -> pytest.MarkDecorator:
    """Run a test for every set."""
    sets = shipped_sets()
    return pytest.mark.parametrize("dataset", sets.values(), ids=sets)


def test_the_sets_are_those_of_the_page():
    """Twenty-four sets, with as many shifts and severities as their authors say, and with their classes."""
    found = {name: (len(each.names), len(each.severities), each.classes) for name, each in shipped_sets().items()}

    assert SHAPES == found


@each_set()
def test_a_set_has_as_many_images_as_the_page_says(dataset: Dataset):
    """In each cell, and as many classes; of some nobody here has counted the images."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "datasets.md").read_text("utf-8")
    row = re.search(rf"^\| \[?`{dataset.name}`[^|]*\|(?:[^|]*\|){{1,2}} ([\d,]+) \| ([\d,]+) \|", page, re.MULTILINE)
    published = CellImages.of(dataset)

    assert (row is None) == (dataset.name in {"ccc", "laion_c", "objectnet"}) == (published.num_images is None)
    if row:
        assert row[2] == f"{published.num_images:,}"
        assert dataset.split or row[1] == f"{published.num_classes:,}"


@each_set()
def test_a_set_says_where_it_is_from(dataset: Dataset):
    """Title, citation and homepage are there; an arXiv number is left out where there is none."""
    assert dataset.title
    assert re.search(r"(19|20)\d\d, .+", dataset.citation)
    assert dataset.split or dataset.name == "objectnet" or re.search(r"arXiv:\d{4}\.\d{4,5}$", dataset.citation)
    assert dataset.homepage.startswith("https://")


@each_set()
def test_titles_and_archives_are_not_confused(dataset: Dataset):
    """No other set has the title, an address or an md5 of this one."""
    others = [each for each in shipped_sets().values() if each is not dataset]

    def marks(each: Dataset) -> set[str | None]:
        archives = each.archives.values()
        return {each.title, *(found.md5 for found in archives), *(found.url for found in archives)} - {None}

    assert not any(marks(dataset) & marks(other) for other in others)


@each_set()
def test_an_archive_can_be_downloaded_and_checked(dataset: Dataset):
    """Addresses end in the archive's name, and an md5 is 32 hexadecimal digits."""
    for name, archive in dataset.archives.items():
        assert archive.url is not None
        assert re.fullmatch(rf"https?://\S+/{re.escape(name)}", archive.url)
        assert archive.url.startswith("https://") or archive.md5
        assert archive.md5 is None or re.fullmatch("[0-9a-f]{32}", archive.md5)


@each_set()
def test_archives_hold_each_shift_once(dataset: Dataset):
    """Where archives say what they hold, each shift is in one of them."""
    held = [name for archive in dataset.archives.values() for name in archive.shifts]

    assert not held or sorted(dataset.names) == sorted(held)


@each_set()
def test_a_family_is_whole_or_missing(dataset: Dataset):
    """A shift has one family, and if a set has families, every shift has one."""
    members = [name for names in dataset.families.values() for name in names]

    assert not members or sorted(dataset.names) == sorted(members)
    assert all(dataset.family_of(name) in dataset.families for name in members)


@each_set()
def test_classes_are_a_list_that_is_shipped(dataset: Dataset):
    """Or they come from a split; ImageNet-C has neither, since its copies have any of the 1,000."""
    assert dataset.classes is None or shipped_classes(dataset.classes)
    assert ("imagenet_c" != dataset.name) == bool(dataset.classes or dataset.split)


@pytest.mark.parametrize("name", ["imagenet_c", "tiny_imagenet_c", "cifar_10_c", "cifar_100_c"])
def test_the_corruptions_of_hendrycks_come_in_one_order(name: str):
    """15 in the order of the papers, then the 4 that no mean has."""
    dataset = shipped_sets()[name]

    assert COMMON_CORRUPTIONS + EXTRA_CORRUPTIONS == dataset.names
    assert (COMMON_CORRUPTIONS, EXTRA_CORRUPTIONS) == (dataset.in_mean, dataset.held_out)
    assert (1, 2, 3, 4, 5) == dataset.cell_severities


def test_md5_sums_are_those_that_were_found():
    """Eighteen archives have one, and nothing stands where none was found."""
    found = {file: each.md5 for dataset in shipped_sets().values() for file, each in dataset.archives.items()}

    assert MD5_BY_ARCHIVE == {file: md5 for file, md5 in found.items() if md5}


def test_a_set_without_severities_has_cells():
    """Each shift is one cell, of severity 0, at the folder that it has where it is published."""
    v2 = shipped_sets()["imagenet_v2"]

    assert ((0,), "numbers") == (v2.cell_severities, v2.class_folders)
    assert "imagenetv2-threshold0.7-format-val" == v2.folder_of("threshold_0.7")
    assert "imagenet-r" == shipped_sets()["imagenet_r"].folder_of("imagenet_r")
    assert "fog" == shipped_sets()["imagenet_c"].folder_of("fog")


def test_the_streams_of_ccc_are_named_as_their_folders():
    """Three accuracies, three speeds, three seeds."""
    ccc = shipped_sets()["ccc"]

    assert "baseline_20_transition+speed_1000_seed_44" in ccc.names
    assert {"hard": 9, "medium": 9, "easy": 9} == {family: len(names) for family, names in ccc.families.items()}
    assert "easy" == ccc.family_of("baseline_40_transition+speed_5000_seed_45")


@pytest.mark.parametrize(("folder", "cell"), [
    ("out/fog/5", Cell(corruption="fog", severity=5)), ("imagenet_r/0", Cell(corruption="imagenet_r", severity=0)),
    ("LAION-C/mosaic/intensity_level_2", Cell(corruption="mosaic", severity=2)), ("fog/intensity_level_2", None),
    ("fog/7", None), ("clean/5", None), ("train/0", None), ("fog/05", None),
])  # fmt: skip
def test_a_folder_names_a_cell_that_a_set_has(folder: str, cell: Cell | None):
    """Any other name is the user's own: no cell that no set has comes of it."""
    assert cell == match_cell(Path(folder))
