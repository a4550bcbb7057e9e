"""What verbs tell while they work, to a person at a terminal, in a log, and to a program."""

import json
import os
import pty
import re
import select
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tta_pipeline.util import progress
from tta_pipeline_tests.conftest import Project, launcher, new_project, write_tree

CELLS = ("fog/1", "fog/5", "contrast/5")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images of three cells, and their shard sets."""
    folder = tmp_path_factory.mktemp("made")
    for cell in CELLS:
        write_tree(folder / "tree" / cell, classes={"n01": 4, "n02": 3})
    finished = new_project(folder).run(
        "tta-pipeline", "shards", "make", f"{folder}/tree", f"{folder}/shards", "--num-shards", "2", "--jobs", "1"
    )
    assert 0 == finished.returncode, finished.stderr
    assert "3 of 3: fog|5: 7 samples in 2 shards" in finished.stdout
    return folder


@pytest.fixture
def shards(made: Path, tmp_path: Path) -> Path:
    """A copy of the images, and of their shard sets, which is returned."""
    shutil.copytree(made / "tree", tmp_path / "tree")
    return shutil.copytree(made / "shards", tmp_path / "shards")


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("verify", ()),
        ("index", ()),
        ("split", ("{tmp}/parts", "--parts", "3")),
        ("make", ("{tmp}/again", "--num-shards", "1", "--jobs", "1")),
    ],
)
def test_a_program_gets_one_array_and_a_quiet_verb_says_nothing(
    project: Project, shards: Path, tmp_path: Path, verb: str, options: tuple[str, ...]
):
    """With --json standard output is the array, whole; with --quiet both outputs are empty."""
    given = [option.replace("{tmp}", str(tmp_path)) for option in options]
    what = {
        "split": [f"{shards}/fog/5"],
        "make": [f"{tmp_path}/tree"],
    }.get(verb, [str(shards)])

    told = project.run("tta-pipeline", "shards", verb, *what, *given, "--json")
    silent = project.run("tta-pipeline", "shards", verb, *what, *given, "--quiet")

    rows = json.loads(told.stdout)
    assert 3 == len(rows)
    assert (7 if verb == "split" else 21) == sum(row["num_samples"] for row in rows)
    assert (0, "", "") == (silent.returncode, silent.stdout, silent.stderr)


def test_what_is_wrong_is_said_all_the_same(project: Project, shards: Path):
    """A flipped bit is on standard error, quiet or not, and the exit status tells it."""
    shard = next((shards / "fog" / "5").glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[700] ^= 1
    shard.write_bytes(data)

    finished = project.run("tta-pipeline", "shards", "verify", "-q", str(shards))

    assert (1, "") == (finished.returncode, finished.stdout)
    assert f"{shard} hashes to" in finished.stderr


def test_a_person_sees_bars(project: Project, shards: Path, tmp_path: Path):
    """On a terminal there are bars for images and shard sets, gone at the end; lines stand above, not behind them."""
    shown = on_terminal(
        project, "shards", "make", str(tmp_path / "tree"), str(tmp_path / "again"), "--num-shards", "1", "--jobs", "1"
    )

    assert "shard sets" in shown
    assert "3/3" in shown
    erased_line = r"\x1b\[2K"
    assert ["1", "2", "3"] == re.findall(rf"{erased_line}(\d) of 3: ", shown)


def test_the_doctor_fits_the_terminal(project: Project):
    """Long findings go on in the next line, after the mark; only a word without a space is longer than a line."""
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(project, "doctor", columns=60)).splitlines()

    assert any(line.startswith(" " * 7) and not line.startswith("       ->") for line in shown)
    assert all(len(line) <= 60 or " " not in line.strip() for line in shown)


def on_terminal(project: Project, *arguments: str, columns: int = 120) -> str:
    """Return what a verb shows on a terminal of its own."""
    terminal, end = pty.openpty()
    environment = {**project.environment, "TERM": "xterm", "COLUMNS": str(columns)}
    shown = b""
    with launcher().start(["tta-pipeline", *arguments], env=environment, stdout=end, stderr=end) as process:
        os.close(end)
        while select.select([terminal], [], [], 60)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the process has closed its end
                break
    os.close(terminal)
    assert 0 == process.returncode, shown
    return shown.decode()


def test_a_megabyte_is_a_million_bytes(monkeypatch: pytest.MonkeyPatch):
    """4,000,000 bytes in two seconds are 2 MB/s, as in the sizes that verbs tell."""
    times_s, lines = iter((0.0, 2.0)), []
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(times_s)))

    progress.Progress(lines.append, what="fog", total=100).advance(50, 4_000_000)

    (line,) = lines
    assert "25 images/s, 2.0 MB/s, 2 s left" in line
