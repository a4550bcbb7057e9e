"""The experiments that pages of the reference print are experiments."""

import re
from pathlib import Path

import pytest
import yaml

from tta_pipeline.benchmarks.experiment_specs import Experiment

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
ROOT_IMAGE = re.compile(r"!\[\]\((.*?)\)")
BLOCKS = [
    (page, text)
    for page in ("methods.md", "protocols.md")
    for text in re.findall(r"```yaml\n(.*?)```", (FOLDER / page).read_text(), re.DOTALL)
]


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=[page for page, _ in BLOCKS])
def test_each_experiment_is_one(page: str, text: str):
    """Fields, protocols, subsets and hyperparameters exist; `protocols` stands for one experiment each."""
    experiments = yaml.safe_load(text)["experiments"]

    for settings in experiments.values():
        protocols = settings.pop("protocols", [settings.pop("protocol", "reset_each_shift")])
        for protocol in protocols:
            Experiment.model_validate({**settings, "protocol": protocol}).configured_hyperparameters()
    assert experiments, page


def test_each_picture_of_the_protocols_is_there():
    """Drawn by `bench.streams`."""
    pictures = ROOT_IMAGE.findall((FOLDER / "protocols.md").read_text())

    assert sorted((FOLDER / "../images/protocols").resolve().glob("*.png")) == sorted(
        (FOLDER / picture).resolve() for picture in pictures
    )
