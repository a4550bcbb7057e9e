"""A person asks why a cell is finished or not, and what nothing refers to any more."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.cli import main
from tta_pipeline.cli.why import fit_rows
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.explanation import COLUMNS
from tta_pipeline.extras.cleanup import find_unreferenced
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.report.formats import as_terminal
from tta_pipeline.report.tables import Table
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.records import latest_record, publish_record
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import SMALL, SMALL_CELLS, Project, copied_results, launcher
from tta_pipeline_tests.results.database.trained import record_training, training_run


@pytest.fixture
def project(sweep: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locations:
    """A copy of the small benchmark with all its results, without loose images."""
    project = copied_results(sweep, tmp_path)
    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))  # what other tests leave is not looked at
    monkeypatch.setenv("TMPDIR", str(tmp_path / "node"))
    return project.locations


def asked(*arguments: str) -> Result:
    """Return what the program answers."""
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def change(locations: Locations, before: str, after: str) -> None:
    """Edit the benchmark file."""
    assert before in SMALL
    (locations.benchmark_files / "small.yaml").write_text(SMALL.replace(before, after))


def test_why_says_that_a_finished_cell_is_finished(project: Locations):
    """Nothing differs, and the exit status is 0; with --all every part is shown."""
    short, whole = asked("why", "small", "tent", "contrast|5"), asked("why", "small", "tent", "contrast|5", "--all")

    assert 0 == short.exit_code == whole.exit_code, short.output
    assert "tent/contrast-5: finished: nothing that determines its predictions has changed" in short.output
    assert "differs" not in whole.output
    for part in ("model.mean", "model.weights_sha256", "method.hyperparameters.lr", "code", "arithmetic.cudnn_conv"):
        assert part in whole.output


def test_why_fits_the_terminal():
    """Long values are shortened to 80 columns, short ones stay whole."""
    rows = [("code", '"a264"', '"b1"', "differs"), ("model.weights_sha256", "a" * 60, "the same", "")]

    shown = as_terminal(Table(columns=COLUMNS, rows=fit_rows(rows, 80)))

    assert 80 == max(map(len, shown.splitlines()))
    assert '"a264"' in shown
    assert '"b1"' in shown
    assert re.search(r"a{20,}…  the same", shown)


def test_why_names_the_part_that_differs(project: Locations):
    """Another learning rate: what is stored, what is present, and exit status 1."""
    change(project, "method: tent,", "method: tent, hyperparameters: {lr: 0.125},")

    answer = asked("why", "small", "tent", "contrast|5")
    facts = json.loads(asked("why", "small", "tent", "contrast|5", "--json").stdout)

    assert 1 == answer.exit_code
    assert "not finished: changed since: method.hyperparameters.lr was 0.001, is 0.125" in answer.output
    assert 0.125 == facts[0]["present"]["method"]["hyperparameters"]["lr"]
    assert 0.001 == facts[0]["stored"]["method"]["hyperparameters"]["lr"]


def test_why_answers_for_a_cell_without_shards(project: Locations):
    """It is not finished, and the line to type makes its shards."""
    shutil.rmtree(project.shards("small", CLEAN))
    shutil.rmtree(project.shards("small", Cell(corruption="contrast", severity=5)))

    answer, clean = asked("why", "small", "tent", "contrast|5"), asked("why", "small", "source", "clean|0")

    assert 1 == answer.exit_code == clean.exit_code
    assert "tent/contrast|5: not finished: no shards yet" in answer.output
    assert "tta-pipeline run small --cell 'contrast|5' --experiment tent" in answer.output
    assert "source/clean|0: not finished: clean images were added" in clean.output


def test_what_needs_shards_says_whose_are_missing_and_what_makes_them(project: Locations):
    """Not that a path cannot be read."""
    shutil.rmtree(project.shards("small", CLEAN))

    checked = asked("models", "check", "small", "cnn")

    assert 1 == checked.exit_code
    assert "clean|0" in checked.output
    assert "tta-pipeline run small --cell 'clean|0'" in checked.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing", "tent", "fog|5"), "no benchmark 'nothing'"),
        (("small", "nothing", "fog|5"), "no experiment 'nothing'"),
        (("small", "tent", "fog|5"), "found partition key 'fog|5'"),
    ],
)
def test_why_names_what_there_is(project: Locations, arguments: tuple[str, ...], said: str):
    """A name that is none is one line with the choices."""
    answer = asked("why", *arguments)

    assert 1 == answer.exit_code
    assert said in answer.output
    assert 1 == len(answer.output.splitlines())


def measured_again(locations: Locations) -> None:
    """Put a newer record beside one."""
    record = latest_record(locations.results("small"), kind="evaluations", name="tent/contrast-5")
    publish_record(
        locations.results("small"), kind="evaluations", name="tent/contrast-5", run_id="again",
        started_at=record.started_at, facts=record.evaluation,
    )  # fmt: skip


def old(path: Path) -> Path:
    """Let a file be so old that no run can be about to name it."""
    os.utime(path, (0, 0))
    return path


def test_clean_finds_what_nothing_refers_to(project: Locations):
    """Superseded records, records and predictions of an experiment that is gone, states that no record goes on from."""
    assert asked("clean", "--dry-run").output.endswith("0 files to which nothing refers, 0.0 MB\n")
    measured_again(project)
    change(project, "  norm: {model: cnn, method: norm, batch_size: 32}\n", "")
    states = project.states("small") / "tent" / "all-seed-0"
    states.mkdir(parents=True)
    (states / f"{'0' * 64}.state").write_bytes(b"a state")
    stale = old(states / f"{'0' * 64}.state")
    kept = sorted(project.predictions("small").glob("norm/**/*.parquet"))
    for path in kept:
        old(path)

    found = json.loads(asked("clean", "--dry-run", "--json").stdout)
    of_kind = groupby(sorted(found, key=itemgetter("kind")), key=itemgetter("kind"))
    kinds = {kind: [each["path"] for each in some] for kind, some in of_kind}

    assert 5 == len(kept) == len(kinds["gone"])
    assert [str(stale)] == kinds["states"]
    assert [str(project.results("small") / "evaluations/tent/contrast-5/000001.json")] == kinds["superseded"]
    assert {str(path) for path in kept} == set(kinds["predictions"])


def test_clean_finds_trainings_that_another_replaces_and_those_of_models_that_are_gone(project: Locations):
    """The newest training of a model of the file stays."""
    for model in ("cnn", "cnn", "other"):
        record_training(project, training_run(benchmark="small", model=model))

    found = json.loads(asked("clean", "--dry-run", "--json").stdout)

    trainings = project.results("small") / "trainings"
    assert {("superseded", "cnn"), ("gone", "other")} == {
        (each["kind"], Path(each["path"]).parent.name) for each in found if str(trainings) in each["path"]
    }


def test_clean_removes_weights_and_checkpoints_of_models_that_are_gone(project: Locations):
    """A model that the file names keeps its own; files of somebody else stay."""
    kept = set(project.source_model("small", "cnn").parent.iterdir())
    checkpoint = f"{'0' * 64}-12.checkpoint"
    stale = {project.source_model("small", "other"), project.source_model("small", "other").with_suffix(".json")}
    stale |= {
        project.training("small", "other") / name for name in (checkpoint, "best.safetensors", "last.safetensors")
    }
    kept |= {project.training("small", "cnn") / checkpoint, project.training("small", "other") / "curves.png"}
    kept.add(project.source_model("small", "of_somebody"))
    for path in stale | kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        old(path)

    assert 0 == asked("clean", "gone", "--yes").exit_code

    assert kept == {path for path in stale | kept if path.exists()}


def test_clean_leaves_weights_that_another_benchmark_names(project: Locations):
    """A model that was trained for one benchmark may be evaluated on another; whose file is faulty, may be too."""
    weights = project.source_model("small", "old")
    for path in (weights, weights.with_suffix(".json")):
        path.touch()
    assert weights.name in asked("clean", "gone", "--dry-run", "--json").output
    facts = f"sha256: {'0' * 64}, mean: [0, 0, 0], std: [1, 1, 1]"
    own = f"\n  old: {{kind: checkpoint, architecture: resnet18, path: {weights}, {facts}}}\nexperiments:"
    other = (project.benchmark_files / "small.yaml").read_text().replace("\nexperiments:", own)
    for text in (other, "title: 1"):
        (project.benchmark_files / "other.yaml").write_text(text)
        assert weights.name not in asked("clean", "gone", "--dry-run", "--json").stdout


def test_decoded_cells_of_a_benchmark_behind_a_link_stay(project: Locations, tmp_path: Path):
    """Its shards may lie on another disk."""
    cells = DecodedCache(folder=tmp_path / "decoded", limit_bytes=2**30)
    shard_set = ShardSet.open(project.shards("small", SMALL_CELLS[0]))
    with ExitStack() as stack:
        pixels = cells.open_pixels(shard_set, 32)
        pixels.open(stack)
        pixels.fill(np.arange(150), np.empty((150, 32, 32, 3), np.uint8))
        pixels.require_unchanged()
    (project.root / "small").rename(tmp_path / "elsewhere")
    (project.root / "small").symlink_to(tmp_path / "elsewhere")

    found = find_unreferenced(load_all_benchmarks(project), project, decoded=[cells.folder])

    assert not [each for each in found if each.kind == "decoded"]


def test_clean_removes_what_it_listed_and_nothing_else(project: Locations):
    """Of the kinds that are named, after a yes; the database follows."""
    measured_again(project)
    change(project, "  norm: {model: cnn, method: norm, batch_size: 32}\n", "")
    mine = project.results("small") / "evaluations" / "norm" / "my notes.txt"
    mine.write_text("not ours")
    before = {path for path in project.root.rglob("*") if path.is_file()}
    gone = {each["path"] for each in json.loads(asked("clean", "gone", "--dry-run", "--json").stdout)}

    unasked, answer = asked("clean", "gone"), asked("clean", "gone", "--yes")

    assert 2 == unasked.exit_code
    assert "expected --yes" in unasked.output
    assert 0 == answer.exit_code, answer.output
    after = {path for path in project.root.rglob("*") if path.is_file()}
    assert gone == {str(path) for path in before - after}
    assert mine.exists()
    with open_metrics(project.metrics) as connection:
        left = connection.execute("SELECT DISTINCT experiment FROM evaluations ORDER BY 1").fetchall()
    assert [("source",), ("tent",)] == left


def test_clean_takes_nothing_of_a_file_with_a_fault_for_gone(project: Locations):
    """An experiment that is left out for a mistake in it has its results all the same."""
    change(project, "  norm: {model: cnn, method: norm, batch_size: 32}\n", "  norm: {model: cnn, method: nrm}\n")

    answer = asked("clean", "--dry-run")

    assert "no file of small counts as gone" in answer.output
    assert "0 files" in answer.output


def test_clean_removes_decoded_cells_of_shards_that_are_no_more(project: Locations, tmp_path: Path):
    """Those of shards that are there stay, and so does a file of somebody else's."""
    cells = DecodedCache(folder=tmp_path / "decoded", limit_bytes=2**30)
    shard_set = ShardSet.open(project.shards("small", SMALL_CELLS[0]))
    stream = Stream(
        shard_set=shard_set,
        order=stored_order(shard_set.index),
        batch_size=64,
        image_size=32,
        open_pixels=cells.open_pixels,
    )
    assert 150 == sum(len(batch.indices) for batch in stream)
    (present,) = cells.own_folder.glob("*.pixels")
    for path in (cells.own_folder / f"{'0' * 64}-32.pixels", cells.own_folder / "holiday.pixels"):
        path.write_bytes(b"pixels")

    assert 0 == asked("clean", "decoded", "--decoded", str(cells.folder), "--yes").exit_code

    assert {present.name, "holiday.pixels"} == {path.name for path in cells.own_folder.glob("*.pixels")}


def test_clean_finds_states_inside_segments_that_no_stream_goes_on_from(project: Locations):
    """Those of a recorded segment, of an older attempt and of a stream that is gone; those to go on from stay."""
    record = latest_record(project.results("small"), kind="evaluations", name="tent/contrast-5")
    stream, gone = (project.states("small") / name for name in ("tent/contrast|5-seed-0", "tent_before/all-seed-0"))
    useless = [stream / f"{record.evaluation.fingerprint}-000002.state", stream / f"{'1' * 64}-000001.part",
               gone / f"{'3' * 64}-000001.state", gone / f"{'3' * 64}-000001.part"]  # fmt: skip
    useful = [stream / f"{'2' * 64}-{number:06d}.{kind}" for number in (1, 2) for kind in ("state", "part")]
    for number, path in enumerate([*useless, *useful]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a state")
        os.utime(path, (number, number))

    found = json.loads(asked("clean", "states", "--dry-run", "--json").stdout)
    asked("clean", "states", "--yes")

    assert {str(path) for path in useless} == {each["path"] for each in found}
    assert not [path for path in useless if path.exists()]
    assert not [path for path in useful if not path.exists()]


def killed(begun: Callable[[], list[Path]], *command: str) -> Path:
    """Start *command*, kill it once *begun* finds something, and return that; `clean` leaves it alone before."""
    with launcher().start(list(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not (found := begun()):
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.01)
            time.sleep(0.05)
            process.send_signal(signal.SIGSTOP)  # so that it lives however fast it is, and does not refresh the time
            old(found[0])
            assert [] == json.loads(asked("clean", "unfinished", "--dry-run", "--json").stdout)
        finally:
            process.kill()
    return found[0]


RUN = """
import sys, time
from pathlib import Path
from tta_pipeline.util.files import published_folder

with published_folder(Path(sys.argv[1])) as folder:
    (folder / "fog-000000.tar").write_bytes(b"half")
    time.sleep(60)
"""
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "reproduce": (
        f"node/tta_pipeline-{os.getuid()}/.unpublished-*-reproduce",
        ("tta-pipeline", "results", "reproduce", "of/tent"),
    ),
    "elsewhere": ("elsewhere/.unpublished-*-set", ("python", "-c", RUN, "elsewhere/set")),
    "a run": ("data/small/shards/fog/.unpublished-*-9", ("python", "-c", RUN, "data/small/shards/fog/9")),
}
"""Where each command begins a folder, and the command."""


@pytest.mark.parametrize("which", COMMANDS)
def test_clean_finds_what_killed_processes_left(project: Locations, tmp_path: Path, which: str):
    """Beside any output and on node-local disk, but nothing that a living process holds, and nothing of others."""
    pattern, command = COMMANDS[which]
    if which == "reproduce":
        assert asked("results", "publish", "small", "of", "--experiment", "tent").exit_code == 0
    others = [old_folder(project.root / name) for name in (".unpublished-mine", "small/.unpublished-notes-of-mine")]

    left = killed(lambda: list(tmp_path.glob(pattern)), *command)
    old(left)
    (found,) = json.loads(asked("clean", "--dry-run", "--json").stdout)
    done = asked("clean", "--yes")

    assert ("unfinished", str(left)) == (found["kind"], found["path"])
    assert done.exit_code == 0
    assert not left.exists()
    assert not [path for path in others if not path.exists()]


def test_clean_looks_beside_where_it_is_told_to(project: Locations, tmp_path: Path):
    """What was left where no note says so, as on another machine."""
    (tmp_path / "elsewhere").mkdir()
    left = old_folder(tmp_path / "elsewhere" / f".unpublished-{'0' * 32}-set")

    assert [] == json.loads(asked("clean", "unfinished", "--dry-run", "--json").stdout)
    (found,) = json.loads(asked("clean", "unfinished", "--dry-run", "--json", "--beside", str(left.parent)).stdout)
    assert str(left) == found["path"]


def old_folder(path: Path) -> Path:
    """Return a folder at *path* that nobody has touched for long."""
    path.mkdir()
    return old(path)
