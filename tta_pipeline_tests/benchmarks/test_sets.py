"""Datasets in benchmark files: one that comes with the project, one of the user's own, and several in one file."""

from pathlib import Path

import pytest

from tta_pipeline.benchmarks.load_files import load_all_benchmarks, load_benchmark, load_benchmarks
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.results.plans import drop_other_plans

REST = """
title: Mine
image_size: 32
shards: {num_shards: 2}
models: {r18: {kind: torchvision, architecture: resnet18}}
experiments:
  source: {model: r18, method: source}
  at_5: {model: r18, method: norm, severities: [5]}
"""
MADE = "images: {kind: generated, clean: /c, severity_table: cifar_c}"
FOLDER = "images: {kind: folder, root: /images}"


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    """Write a file and return its path."""
    (folder / name).write_text(text)
    return folder / name


def test_a_file_without_a_set_is_of_imagenet_c(tmp_path: Path):
    """Its 15 corruptions at five severities; the four for tuning are named if they are wanted."""
    found = load_benchmark(written(tmp_path, f"{REST}{FOLDER}"))

    assert ("imagenet_c", 75) == (found.dataset.name, len(found.cells))


@pytest.mark.parametrize(("text", "num_images"), [
    (FOLDER, 50_000), (f"{FOLDER}\nsubset: true", None), (MADE, None), (f"{FOLDER}\ndataset: cifar_10_c", 10_000),
    (f"{FOLDER}\ncustom: {{names: [fog], severities: [5]}}", None),
])  # fmt: skip
def test_cells_of_a_published_set_have_as_many_images_as_it(tmp_path: Path, text: str, num_images: int | None):
    """Unless they are said to be some of them, or are made here; clean images may be any."""
    found = load_benchmark(written(tmp_path, f"{REST}{text}"))

    assert num_images == found.num_published(Cell(corruption="fog", severity=5))
    assert found.num_published(CLEAN) is None


def test_a_set_of_ones_own_lies_beside_the_benchmark_file(tmp_path: Path):
    """It is no benchmark itself, and needs no Python."""
    written(tmp_path, "names: [dusk, dawn]\nseverities: [5, 7]\nheld_out: [dawn]", "light.dataset.yaml")
    written(tmp_path, f"{REST}dataset: light\n{FOLDER}")

    loaded = load_benchmarks(tmp_path)

    assert (["mine"], ()) == (list(loaded.benchmarks), loaded.faults)
    assert [Cell(corruption="dusk", severity=5), Cell(corruption="dusk", severity=7)] == [
        *loaded.benchmarks["mine"].cells
    ]


def test_a_set_without_severities_has_cells_of_severity_0(tmp_path: Path):
    """Written in the benchmark file itself, it has the benchmark's name."""
    text = REST.replace("  at_5: {model: r18, method: norm, severities: [5]}\n", "")

    found = load_benchmark(written(tmp_path, f"{text}custom: {{names: [sketch]}}\n{FOLDER}"))

    assert ("mine", (Cell(corruption="sketch", severity=0),)) == (found.dataset.name, found.cells)


def test_a_set_of_ones_own_is_custom(tmp_path: Path):
    """Beside the other fields, and in one of several sets."""
    alone = load_benchmark(written(tmp_path, f"{REST}custom: {{names: [sketch], severities: [5]}}\n{FOLDER}"))
    several = load_benchmarks(written(tmp_path, SEVERAL).parent)

    assert ("sketch",) == alone.dataset.names
    assert ("art",) == several.benchmarks["mine/renditions"].dataset.names


SEVERAL = f"""{REST}
sets:
  imagenet_c: {{images: {{kind: folder, root: /c}}, severities: [5]}}
  renditions: {{images: {{kind: folder, root: /r}}, custom: {{names: [art]}}}}
"""


def test_each_of_several_sets_is_a_benchmark_of_its_own(tmp_path: Path):
    """A set without severities is evaluated whole, whatever severities an experiment names."""
    loaded = load_benchmarks(written(tmp_path, SEVERAL).parent)

    assert (["mine/imagenet_c", "mine/renditions"], ()) == (list(loaded.benchmarks), loaded.faults)
    renditions = loaded.benchmarks["mine/renditions"]
    assert ("mine", "renditions") == (renditions.file, renditions.dataset.name)
    assert [Cell(corruption="art", severity=0)] == [*renditions.cells_of("at_5")]


@pytest.mark.parametrize(("now", "before", "name"), [
    (SEVERAL, "mine", "mine/imagenet_c"),
    (f"{REST}{FOLDER}", "mine/imagenet_c", "mine"),
])  # fmt: skip
def test_plans_of_another_form_of_the_file_ask_for_nothing(tmp_path: Path, now: str, before: str, name: str):
    """A file that had one set and has several now, or the other way round, counts its results once."""
    locations = Locations(root=tmp_path)
    (tmp_path / "benchmarks").mkdir()
    written(tmp_path / "benchmarks", now)
    benchmark = load_all_benchmarks(locations).benchmarks[name]
    kept, old = (locations.results(each) / "plans" / "at_5.json" for each in (name, before))
    for path in (kept, old):
        path.parent.mkdir(parents=True)
        path.write_text("{}")

    drop_other_plans(locations, name, tuple(benchmark.experiments))

    assert (True, False) == (kept.exists(), old.exists())


def test_a_faulty_set_leaves_the_others(tmp_path: Path):
    """Its fault names file, set and field."""
    loaded = load_benchmarks(written(tmp_path, SEVERAL.replace("root: /r", "roof: /r")).parent)

    assert ["mine/imagenet_c"] == list(loaded.benchmarks)
    (fault,) = loaded.faults
    assert "mine/renditions" == fault.benchmark
    assert all(part in fault.sentence for part in ("mine.yaml, set renditions", "roof", "root"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"{REST}dataset: fog\n{FOLDER}", ["no dataset named 'fog'", "docs/guides/datasets.md", "fog.dataset.yaml"]),
        (f"{REST}dataset: imagenet_c\ncustom: {{names: [a]}}\n{FOLDER}", ["dataset and custom", "one of them"]),
        (f"{REST}custom: {{names: [clean]}}\n{FOLDER}", ["clean", "other than clean and train"]),
        (f"{REST}custom: {{names: [a], severities: [2, 1]}}\n{FOLDER}", ["[2, 1]", "ascending"]),
        (f"{REST}custom: {{names: [../a]}}\n{FOLDER}", ["../a"]),
        (f"{REST}custom: {{names: [a], folders: {{a: ../b}}}}\n{FOLDER}", ["'../b'", "inside the root"]),
        (f"{REST}custom: {{names: [a], folders: {{b: c}}}}\n{FOLDER}", ["folders lists b", "any of a"]),
        (f"{REST}custom: {{names: [a], class_folders: numbers}}\n{FOLDER}", ["class_folders", "`classes`"]),
        (f"{REST}custom: {{names: [a, b], split: s.json}}\n{FOLDER}", ["split is s.json", "2 names"]),
        (f"{REST}custom: {{names: [a], split_classes: c.txt}}\n{FOLDER}", ["split_classes is c.txt", "add split"]),
        (f"{REST}custom: {{names: [a], templates: [photo]}}\n{FOLDER}", ["['photo']", "{}"]),
        (f"{REST}custom: {{names: [a, A]}}\n{FOLDER}", ["'A'", "every file system"]),
        (f"{REST}custom: {{names: [Clean]}}\n{FOLDER}", ["Clean", "other than clean and train"]),
        (
            f"{REST}custom: {{names: [dusk], severities: [7]}}\n{MADE}",
            ["dusk", "has no function", "19 names"],
        ),
        (
            f"{REST}custom: {{names: [fog], severities: [7]}}\n{MADE}",
            ["severities has 7", "cifar_c"],
        ),
        (f"{REST}custom: {{name: fog, names: [a]}}\n{FOLDER}", ["`custom` is not a section", "has a name"]),
        (
            f"{SEVERAL}  imagenet_r: {{custom: {{names: [a]}}, images: {{kind: folder, root: /r}}}}\n",
            ["imagenet_r", "like a published one"],
        ),
        (f"{REST}custom: 3\n{FOLDER}", ["`custom` is not a section", "names"]),
        (f"{SEVERAL}{FOLDER}", ["images", "section of sets"]),
        (f"{SEVERAL}  a__b: {{images: {{}}}}\n", ["'a__b'", "single _"]),
        (f"{SEVERAL}  dusk: {{models: {{}}}}\n", ["sets.dusk", "models", "class_map"]),
        (f"{REST}sets: [a]", ["sets is ['a']", "section"]),
    ],
)
def test_what_is_wrong_with_a_set_is_said(tmp_path: Path, text: str, named: list[str]):
    """With the file, what was found and what is expected."""
    path = written(tmp_path, text)

    with pytest.raises(BenchmarkFileError) as caught:
        load_benchmark(path)

    assert all(part in str(caught.value) for part in [str(path), *named]), caught.value


def test_plans_of_a_faulty_experiment_stay_under_each_of_its_protocols(tmp_path: Path):
    """Its results count again when the fault is mended; a plan whose experiment is gone goes."""
    plans = {name: tmp_path / f"results/mine/plans/{name}.json" for name in ("norm", "tent_reset", "tent_once", "old")}
    for path in plans.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")

    drop_other_plans(Locations(root=tmp_path), "mine", ("norm",), unreadable=("tent",))

    assert {"norm", "tent_reset", "tent_once"} == {name for name, path in plans.items() if path.exists()}
