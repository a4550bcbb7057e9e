"""Every command of the README and of the pages in docs is run as it is printed, or a comment above it says why not.

The comment is `<!-- not run by the tests: REASON -->` for a whole block, and has the beginning of one command in
quotes otherwise. `test_photographs.py` runs the quickstart, without published weights.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import torch

from tta_pipeline.extras.new_project import create_project
from tta_pipeline_tests.conftest import launcher, write_tree
from tta_pipeline_tests.test_new_benchmark import NETWORK

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if "```sh\n" in path.read_text()),
)
RUN_PAGES = [page for page in PAGES if page != "docs/quickstart.md"]
BLOCK = re.compile(r"((?:^<!-- not run by the tests: [^\n]*-->\n)*)^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXCEPTION = re.compile(r'<!-- not run by the tests: (?:"([^"]+)", )?(.+) -->')
PLACES = {
    "/path/to/tta_pipeline": str(ROOT),
    "/path/to/root": "photos",
    "/shared": "$WORLD/shared",
    "/larger": "$WORLD/larger",
    "/local": "$WORLD/local",
    "imagenet_c": "small_c",
}
"""Places and datasets of a reader, and what stands for them in the world of the test."""
MINE = """
title: Few digits
images: {kind: digits, num_test: 40, severity_table: imagenet_c}
corruptions: [gaussian_noise, fog, jpeg_compression]
severities: [1, 2, 3, 4, 5]
image_size: 32
shards: {samples_per_shard: 20, seed: 0}
models:
  cnn: {kind: trained, epochs: 2, width: 8}
experiments:
  norm: {model: cnn, method: norm, batch_size: 20}
  tent: {model: cnn, method: tent, preset: cifar, batch_size: 20}
"""
TUNED = """
  tent_tuned: {model: cnn, method: tent, preset: cifar, batch_size: 20, tuned: tent}
  norm_seeds: &seeds {model: cnn, method: norm, batch_size: 20, seeds: [0, 1, 2], severities: [5]}
  tent_seeds: &tent {<<: *seeds, method: tent, preset: cifar}
  source_dynamic: {model: cnn, method: source, protocol: dynamic, severities: [5]}
  tent_dynamic: {<<: *tent, seeds: null, protocol: dynamic}
  tent_few: {<<: *tent, seeds: null, protocol: {shift: continual, order: by_class, classes_per_batch: 3}}
  tent_tail: {<<: *tent, seeds: null, subset: {imbalance_factor: 20}}
tuning:
  tent: {grid: {lr: [0.001, 0.1]}, severities: [5]}
"""
IMAGENET_C = """tta-pipeline new-benchmark imagenet_c noise.tar blur.tar weather.tar digital.tar \\
  --model my_model:MyNet --weights w.pth
sed -i "s|# clean: .*|clean: $PWD/val|" data/benchmarks/imagenet_c.yaml"""
"""Our file of ImageNet-C, with a small model and clean images."""
ARCHIVES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
WNIDS = ("n01440764", "n01443537")
METHOD, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/own-method.md").read_text(), re.DOTALL)
OWN_METHOD = f"""cat > own_method.py <<'PYTHON'
{METHOD}PYTHON"""
BEFORE = {
    "docs/guides/baselines.md": OWN_METHOD,
    "docs/guides/storage.md": f"{IMAGENET_C}\ntta-pipeline run imagenet_c --corruption fog --severity 5",
    "docs/guides/own-images.md": "rm data/benchmarks/mine.yaml",
    "docs/guides/own-method.md": f"""{OWN_METHOD}
cat >> data/benchmarks/mine.yaml <<'YAML'
  pseudo_label: {{model: cnn, method: "own_method:PSEUDO_LABEL", preset: cifar, batch_size: 20}}
YAML""",
    "docs/guides/streams.md": f"cat >> data/benchmarks/mine.yaml <<'YAML'{TUNED}YAML",
    "docs/guides/tuning.md": f"""cat >> data/benchmarks/mine.yaml <<'YAML'{TUNED}YAML
dg launch --assets mine/held_out/images --partition-range 'speckle_noise|1...saturate|5'""",
}
"""What the reader of a page has done before: the benchmark is not there yet, tunes and has drawn its digits, or has one
cell of ImageNet-C."""
AFTER = {
    "docs/tutorial.md": {
        "tta-pipeline new-benchmark": f"rm data/benchmarks/imagenet_c.yaml\n{IMAGENET_C}",
    },
}
"""What the reader of a page does after a command because the text says so: edits the file, makes the other shards."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of commands, and the reasons why some of them are not run."""

    commands: tuple[str, ...]
    exceptions: tuple[tuple[str, str], ...]
    """Beginning of a command, and the reason; an empty beginning stands for the whole block."""

    def is_run(self, command: str) -> bool:
        """Return whether no exception is made for *command*."""
        return not any(command.startswith(start) for start, _ in self.exceptions)


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the blocks of commands of *page*."""
    for comments, text in BLOCK.findall((ROOT / page).read_text()):
        yield Block(commands=tuple(split_commands(text)), exceptions=tuple(EXCEPTION.findall(comments)))


def split_commands(text: str) -> Iterator[str]:
    """Yield each command of *text* with the lines on which it goes on, without comments."""
    command = ""
    for line in text.splitlines():
        command += f"{line.partition('  #')[0].rstrip()}\n"
        if command.strip() and not line.endswith("\\") and command.count('"') % 2 == command.count("'") % 2 == 0:
            yield command.strip()
            command = ""


@pytest.mark.parametrize("page", PAGES)
def test_each_exception_is_of_a_command(page: str):
    """A comment that no command needs would say what is not true."""
    for block in blocks_of(page):
        for start, reason in block.exceptions:
            assert reason
            assert any(command.startswith(start) for command in block.commands), start


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the benchmark of the pages, evaluated, and a cell of the embedded one."""
    folder = tmp_path_factory.mktemp("printed") / "project"
    create_project(folder)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "cluster").symlink_to(ROOT / "cluster")
    (folder / "my_model.py").write_text(NETWORK)
    namespace: dict[str, type[torch.nn.Module]] = {}
    exec(NETWORK, namespace)
    torch.save(namespace["MyNet"](2).state_dict(), folder / "w.pth")
    write_tree(folder / "photos/fog/5", classes=dict.fromkeys(WNIDS, 1))
    write_tree(folder / "val", classes=dict.fromkeys(WNIDS, 8))
    write_tree(folder / "ImageNet-C/fog/5", classes=dict.fromkeys(WNIDS, 8))
    for name, shifts in ARCHIVES.items():
        for shift, severity in product(shifts, range(1, 6)):
            write_tree(folder / name / shift / str(severity), classes=dict.fromkeys(WNIDS, 2))
        shutil.make_archive(str(folder / name), "tar", folder / name)
    (folder / "data/benchmarks/mine.yaml").write_text(MINE)
    for command in ("mine --experiment norm --experiment tent", "digits_c --severity 5"):
        done = launcher().run(
            ["tta-pipeline", "run", *command.split()], environment_of(folder), timeout_s=900, folder=folder
        )
        assert done.returncode == 0, done.stderr[-3000:]
    shutil.copytree(folder / "data/mine/shards", folder / "shards")
    shutil.copytree(folder / "data", folder / "shared/lab/tta")
    (folder / "larger/disk").mkdir(parents=True)
    return folder


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment of a shell in *folder* before a page is read."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TTA_", "DAGSTER_"))}
    path = f"{Path(sys.prefix) / 'bin'}:{own['PATH']}"
    return {**own, "PATH": path, "WORLD": str(folder), "TMPDIR": "/tmp", "PYTHONWARNINGS": "ignore"}


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_PAGES)
def test_every_printed_command_works(project: Path, tmp_path: Path, page: str):
    """In the order of the page, each block in a shell of its own; what is said not to be run is left out."""
    folder = Path(shutil.copytree(project, tmp_path / "project", symlinks=True))
    printed = ("\n".join(_typed(page, block)) for block in blocks_of(page))
    for script in (BEFORE.get(page, ""), *printed):
        here = re.sub("|".join(PLACES), lambda found: PLACES[found[0]], script)

        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"export DAGSTER_HOME=$PWD\n{here}"], cwd=folder,
            env=environment_of(folder), capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip

        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


def _typed(page: str, block: Block) -> Iterator[str]:
    """Yield each command of *block* that is run, and what the text of *page* says to do after it."""
    for command in filter(block.is_run, block.commands):
        yield command
        yield from (script for start, script in AFTER.get(page, {}).items() if command.startswith(start))
