"""The quickstart is typed as it stands, except its download and the published weights."""

import os
import re
import shlex
from pathlib import Path

import pytest

from tta_pipeline_tests.conftest import launcher, write_tree
from tta_pipeline_tests.test_printed_commands import split_commands

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
MODEL = re.compile(r"  resnet18: \{.*\}\n")
UNTRAINED = (
    '  resnet18: {kind: python, factory: "torchvision.models:resnet18", weights: none, classes: imagenet, '
    "arguments: {num_classes: 1000}, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}\n"
)
WNIDS = ("n01440764", "n02102040")
"""Tench and English springer, two of the classes of Imagenette."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two drawn images of each class where the download puts photographs, and the file of the page."""
    folder = tmp_path_factory.mktemp("photographs")
    write_tree(folder / "imagenette2-160" / "val", classes=dict.fromkeys(WNIDS, 2), size=180)
    (text,) = re.findall(r"<<'YAML'\n(.*?)\nYAML\n", PAGE, re.DOTALL)
    path = folder / "data" / "benchmarks" / "photos.yaml"
    path.parent.mkdir(parents=True)
    assert MODEL.search(text)
    path.write_text(MODEL.sub(UNTRAINED, text))
    return folder


@pytest.mark.slow
def test_every_command_of_the_page_works(folder: Path):
    """In the order of the page; without a project or DAGSTER_HOME, everything stays in the folder."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    typed = [each for block in blocks for each in split_commands(block) if each.startswith("tta-")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TTA_", "DAGSTER_"))}

    answers = [launcher().run(shlex.split(each), environment, timeout_s=600, folder=folder) for each in typed]

    assert ["doctor", "run", "leaderboard", "compare", "query"] == [each.split()[1] for each in typed]
    assert [0] * 5 == [each.returncode for each in answers], [each.stderr[-2000:] for each in answers]
    assert "6 cells" in answers[0].stdout
    assert "untrained" in answers[2].stdout
    assert {"data", "imagenette2-160"} == {path.name for path in folder.iterdir()}
    assert (folder / "data" / "photos" / "report" / "index.html").exists()
