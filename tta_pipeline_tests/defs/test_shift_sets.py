"""Datasets that nobody wrote Python for: shards, evaluations, report and SQL."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torchvision.models import shufflenet_v2_x0_5

from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.cli import main
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.report.pages.report import _read_findings, _write_section, sections
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline_tests.conftest import Project, new_project, write_tree
from tta_pipeline_tests.defs.in_process import execute, what_failed

BAR = """
names: [blue_noise_sample, brownish_noise, caustic_refraction]
severities: [3, 7]
held_out: [caustic_refraction]
"""
FILE = """
title: Three sets, none of them ImageNet-C
image_size: 32
shards: {{num_shards: 2}}
models:
  net: {{kind: checkpoint, architecture: shufflenet_v2_x0_5, path: {weights}, sha256: {sha256}, classes: imagenet,
        mean: [0.5, 0.5, 0.5], std: [0.25, 0.25, 0.25]}}
experiments:
  source: {{model: net, method: source, batch_size: 50}}
  norm: {{model: net, method: norm, batch_size: 50}}
sets:
  bar:
    corruptions: [blue_noise_sample, caustic_refraction]
    images: {{kind: folder, root: {images}/bar, clean: {images}/clean}}
  light: {{custom: {{names: [dusk, dawn]}}, images: {{kind: folder, root: {images}/light}}}}
  imagenet_r: {{subset: true, images: {{kind: folder, root: {images}/imagenet-r}}}}
"""


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A benchmark with three sets and an untrained model of 1,000 classes, all materialized but the reports."""
    folder = tmp_path_factory.mktemp("several")
    project = new_project(folder)
    images = folder / "images"
    some = dict.fromkeys(shipped_classes("imagenet")[:4], 2)
    for shift in ("blue_noise_sample", "caustic_refraction"):
        for severity in (3, 7):
            write_tree(images / "bar" / shift / str(severity), classes=some)
    write_tree(images / "clean", classes=some)
    for shift in ("dusk", "dawn"):
        write_tree(images / "light" / shift, classes=some)
    write_tree(images / "imagenet-r", classes=dict.fromkeys(shipped_classes("imagenet_r"), 1))
    torch.manual_seed(0)
    torch.save(shufflenet_v2_x0_5(weights=None).state_dict(), folder / "net.pth")
    sha256 = hashlib.sha256((folder / "net.pth").read_bytes()).hexdigest()
    project.add_benchmark("several", FILE.format(images=images, weights=folder / "net.pth", sha256=sha256))
    (project.locations.benchmark_files / "bar.dataset.yaml").write_text(BAR)
    of_cells = ("images", "tar_shards", "shard_manifest", "evaluation/source", "evaluation/norm")
    for name, assets, cells in (
        ("light", of_cells, ["dusk|0", "dawn|0"]),
        ("imagenet_r", of_cells, ["imagenet_r|0"]),
        ("bar", of_cells, ["blue_noise_sample|3", "caustic_refraction|7"]),
        ("bar", [f"clean/{each}" for each in of_cells], []),
    ):
        made = execute(project, [f"several/{name}/{each}" for each in assets], cells)
        assert made.success, what_failed(made)
    publish_metrics(project.locations)
    return project


def answer(project: Project, sql: str) -> list[tuple[object, ...]]:
    """Ask the database as a user does."""
    with open_metrics(project.locations.metrics) as connection:
        return connection.execute(sql).fetchall()


def test_each_set_has_its_mean_in_one_leaderboard(several: Project):
    """A shift that is kept for tuning is a cell and enters no mean; no set but ImageNet-C has an mCE."""
    rows = answer(
        several,
        "SELECT dataset, num_cells, mce FROM leaderboard WHERE experiment = 'norm' ORDER BY 1",
    )

    assert [("bar", 2, None), ("imagenet_r", 1, None), ("light", 2, None)] == rows


def test_200_classes_of_1000_are_predicted_by_a_model_of_1000(several: Project):
    """Labels and outputs are those of the 200 classes, of which a network that knows nothing guesses few."""
    (manifest,) = several.locations.root.glob("several/shards/imagenet_r/imagenet_r/0/manifest.json")

    assert list(shipped_classes("imagenet_r")) == json.loads(manifest.read_text())["classes"]
    ((classes, images, error),) = answer(
        several,
        "SELECT len(c.num_samples), e.num_samples, e.error FROM class_results AS c JOIN evaluations AS e "
        "USING (file, corruption, severity) WHERE dataset = 'imagenet_r' AND experiment = 'source'",
    )
    assert (200, 200) == (classes, images)
    assert error > 0.9


def test_sets_lie_beside_each_other(several: Project):
    """Shards and results in a folder for each set, and every pinned class map in its own file."""
    root = several.locations.root / "several"

    assert {"bar", "light", "imagenet_r"} == {path.name for path in (root / "shards").iterdir()}
    results = several.locations.results("several")
    assert {"bar", "light", "imagenet_r"} == {path.name for path in results.iterdir()}
    assert {"bar.json", "light.json", "imagenet_r.json"} == {path.name for path in (root / "class_maps").iterdir()}
    verified = CliRunner().invoke(main, ["shards", "verify", str(root / "shards")])
    assert 0 == verified.exit_code, verified.output


def test_a_report_of_one_of_several_sets_shows_them_all(several: Project, tmp_path: Path):
    """Accuracy on each set against accuracy on clean images; the table has a row for each experiment and set."""
    benchmark = load_all_benchmarks(several.locations).benchmark("several/bar")
    (section,) = [each for each in sections(benchmark) if each.name == "datasets"]
    for folder in ("figures", "tables"):
        (tmp_path / folder).mkdir()
    with open_metrics(several.locations.metrics) as connection:
        found = _read_findings(connection, benchmark)

    _write_section(section, found, tmp_path, tmp_path / "none")

    assert (tmp_path / "figures" / "datasets.svg").exists()
    table = (tmp_path / "tables" / "datasets.csv").read_text().splitlines()
    assert 1 + 6 == len(table)


def test_an_exchanged_set_is_noticed(several: Project, tmp_path: Path):
    """A shard set copied into the folder of another set of the benchmark is refused where it lies."""
    root = several.locations.root / "several" / "shards"
    (tmp_path / "several" / "class_maps").mkdir(parents=True)
    for name in ("bar", "light"):
        class_map = several.locations.class_map(f"several/{name}")
        (tmp_path / "several" / "class_maps" / class_map.name).write_bytes(class_map.read_bytes())
    wrong = tmp_path / "several" / "shards" / "light" / "blue_noise_sample"
    wrong.mkdir(parents=True)
    (wrong / "3").symlink_to(root / "bar" / "blue_noise_sample" / "3")

    found = CliRunner().invoke(main, ["shards", "verify", str(wrong / "3")])

    assert 1 == found.exit_code
    assert "the benchmark is several/bar; expected several/light" in found.output
