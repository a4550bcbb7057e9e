"""A person asks why a cell is finished or not, and what nothing refers to any more."""

import fcntl
import hashlib
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
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.cli import main
from tta_pipeline.cli.why import fit_rows
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.explanation import COLUMNS
from tta_pipeline.evaluation.inputs import Inputs, SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import run_experiment, update_plan
from tta_pipeline.extras.cleanup import find_unreferenced
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.report.formats import as_terminal
from tta_pipeline.report.tables import Table
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.names import find_results
from tta_pipeline.results.plans import plan_path, read_plan, write_plan
from tta_pipeline.results.result_files import (
    StoredResult,
    predictions_path,
    read_result,
    store_result,
    void_result,
)
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.software_versions import software_versions
from tta_pipeline_tests.conftest import SMALL, SMALL_CELLS, Project, copied_results, in_one_line, launcher
from tta_pipeline_tests.evaluation.small import killed_after
from tta_pipeline_tests.flat_facts import changed


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
    assert "tent: contrast|5: finished: nothing that determines its predictions has changed" in in_one_line(
        short.output
    )
    assert "differs" not in whole.output
    for part in ("model.mean", "model.weights_sha256", "method.hyperparameters.lr", "code", "arithmetic.cudnn_conv"):
        assert part in in_one_line(whole.output)


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
    assert "not finished: changed since: method.hyperparameters.lr was 0.001, is 0.125" in in_one_line(answer.output)
    assert 0.125 == facts[0]["present"]["method"]["hyperparameters"]["lr"]
    assert 0.001 == facts[0]["stored"]["method"]["hyperparameters"]["lr"]


def test_why_shows_a_part_once_and_libraries_whose_version_differs(project: Locations, monkeypatch: pytest.MonkeyPatch):
    """Another version alone makes nothing out of date, and versions that are the same are not shown."""
    change(project, "method: tent,", "method: tent, hyperparameters: {lr: 0.125},")
    present = {**software_versions(), "torch": "99.9"}
    monkeypatch.setattr("tta_pipeline.evaluation.explanation.software_versions", lambda: present)

    rows = [line.split() for line in asked("why", "small", "tent", "contrast|5", "--all").output.splitlines()]

    assert [["0.001", "0.125", "differs"]] == [row[1:] for row in rows if row[:1] == ["method.hyperparameters.lr"]]
    (version,) = (row[2:] for row in rows if row[:2] == ["version", "of"])
    assert ["torch", "99.9", "outdates", "nothing"] == [version[0], *version[2:]]


def test_why_answers_for_a_cell_without_shards(project: Locations):
    """It is not finished, and the line to type makes its shards."""
    shutil.rmtree(project.shards("small", CLEAN))
    shutil.rmtree(project.shards("small", Cell(corruption="contrast", severity=5)))

    answer, clean = asked("why", "small", "tent", "contrast|5"), asked("why", "small", "source", "clean|0")
    (facts,) = json.loads(asked("why", "small", "tent", "contrast|5", "--json").stdout)

    assert 1 == answer.exit_code == clean.exit_code
    assert "tent/contrast|5: not finished: no shards yet" in in_one_line(answer.output)
    assert "tta-pipeline run small --cell 'contrast|5' --experiment tent" in in_one_line(answer.output)
    assert "source/clean|0: not finished: clean images were added" in in_one_line(clean.output)
    assert (False, None, None) == (facts["is_finished"], facts["stored"], facts["present"])


def test_what_needs_shards_says_whose_are_missing_and_what_makes_them(project: Locations):
    """Not that a path cannot be read."""
    shutil.rmtree(project.shards("small", CLEAN))

    checked = asked("models", "check", "small", "cnn")

    assert 1 == checked.exit_code
    assert "clean|0" in in_one_line(checked.output)
    assert "tta-pipeline run small --cell 'clean|0'" in in_one_line(checked.output)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing", "tent", "fog|5"), "no benchmark 'nothing'"),
        (("small", "nothing", "fog|5"), "no experiment 'nothing'"),
        (("small", "tent", "fog|5"), "partition key 'fog|5' does not exist"),
    ],
)
def test_why_names_what_there_is(project: Locations, arguments: tuple[str, ...], said: str):
    """A name that is none is one line with the choices."""
    answer = asked("why", *arguments)

    assert 1 == answer.exit_code
    assert said in in_one_line(answer.output)
    assert 1 == len(in_one_line(answer.output).splitlines())


def plan_anew(locations: Locations) -> None:
    """Write what the benchmark file asks for now into the plans, as a run does before it evaluates."""
    benchmark = load_all_benchmarks(locations).benchmark("small")
    for name in benchmark.experiments:
        own = ExperimentResults(benchmark=benchmark, experiment_name=name, locations=locations)
        update_plan(Inputs(experiment=own, machine=Machine(device="cpu"), known=SharedCache()))


def ask_for_another_rate(locations: Locations) -> None:
    """Let Tent's plan ask for another learning rate than its results have."""
    change(locations, "method: tent,", "method: tent, hyperparameters: {lr: 0.125},")
    plan_anew(locations)


def result_of(locations: Locations, experiment: str, key: str = "contrast-5") -> StoredResult:
    """Return the result of *experiment* at *key*."""
    stored = map(read_result, find_results(locations.results("small") / key))
    (found,) = [each for each in stored if each.result.evaluations[0].labels.experiment == experiment]
    return found


def predictions_of(stored: StoredResult) -> Path:
    """Return the file with the predictions of *stored*."""
    path = predictions_path(stored.path.parent, stored.result.evaluations[0])
    assert path is not None
    return path


def store_like(locations: Locations, stored: StoredResult, *, code: str) -> StoredResult:
    """Store the result, with its predictions, that other *code* would have given without a change of predictions."""
    row = stored.result.evaluations[0]
    parts = json.dumps(json.loads(row.setup.fingerprint_parts) | {"code": code})
    fingerprint = hashlib.sha256(parts.encode()).hexdigest()
    row = changed(row, fingerprint=fingerprint, fingerprint_parts=parts)
    result = replace(stored.result, fingerprint=fingerprint, evaluations=(row,))
    other = store_result(locations.results("small"), result)
    shutil.copy(predictions_of(stored), predictions_of(other))
    return other


def unreferenced(*kinds: str) -> dict[str, set[Path]]:
    """Return the files that `prune` lists, by kind."""
    found: dict[str, set[Path]] = {}
    for each in json.loads(asked("prune", *kinds, "--dry-run", "--json").stdout):
        found.setdefault(each["kind"], set()).add(Path(each["path"]))
    return found


def old(path: Path) -> Path:
    """Let a file be so old that no run can be about to name it."""
    os.utime(path, (0, 0))
    return path


def test_prune_finds_results_that_no_plan_asks_for(project: Locations):
    """Of earlier settings, with their predictions; and none once the edit is undone."""
    tent = [result_of(project, "tent", f"{cell.corruption}-{cell.severity}") for cell in SMALL_CELLS]
    assert asked("prune", "--dry-run").output.endswith("0 files to which nothing refers, 0.0 MB\n")

    ask_for_another_rate(project)
    edited = unreferenced()
    (project.benchmark_files / "small.yaml").write_text(SMALL)
    plan_anew(project)

    expected = {each.path for each in tent} | {predictions_of(each) for each in tent}
    assert expected <= edited.pop("superseded")
    assert {} == edited == unreferenced()


def test_prune_finds_results_of_an_experiment_that_is_gone_once_plans_say_so(project: Locations):
    """Not while another experiment still asks for its fingerprint: a rename loses nothing."""
    norm = result_of(project, "norm")
    change(project, "  norm: {", "  renamed: {")
    plan_anew(project)
    assert {} == unreferenced()

    change(project, "  norm: {model: cnn, method: norm, batch_size: 32}\n", "")
    plan_anew(project)
    assert norm.path in unreferenced()["superseded"]


def test_prune_leaves_what_a_plan_cannot_tell_of(project: Locations):
    """Without shards or without a plan it is not known what an experiment asks for."""
    contrast, noise = result_of(project, "tent"), result_of(project, "tent", "gaussian_noise-5")
    shutil.rmtree(project.shards("small", Cell(corruption="contrast", severity=5)))
    ask_for_another_rate(project)

    without_shards = unreferenced()["superseded"]
    plan_path(project, "small", "tent").unlink()

    assert noise.path in without_shards
    assert contrast.path not in without_shards
    assert {} == unreferenced()


def test_prune_reads_every_plan_or_removes_nothing(project: Locations):
    """A damaged plan is one line with its path, since it may ask for any result."""
    path = plan_path(project, "small", "tent")
    path.write_text("{")

    answer = asked("prune", "--dry-run")

    assert 1 == answer.exit_code
    assert f"{path} is not a plan" in in_one_line(answer.output)
    assert 1 == len(in_one_line(answer.output).splitlines())


def test_prune_leaves_timings_of_what_counts_and_predictions_that_two_results_share(project: Locations):
    """Results of earlier code often have the same predictions, byte for byte; each result has a file of its own."""
    counting = result_of(project, "tent")
    again = store_result(project.results("small"), replace(counting.result, run_id="again"))
    others = [store_like(project, counting, code=f"commit {number}") for number in range(4)]

    assert {"superseded"} == set(unreferenced())
    assert 0 == asked("prune", "--yes").exit_code

    for gone in others:
        assert not gone.path.exists()
        assert not predictions_of(gone).exists()
    for kept in (counting.path, again.path, predictions_of(counting)):
        assert kept.exists()


def test_a_note_that_voids_a_result_goes_with_its_result_only(project: Locations):
    """The note of a result that a plan asks for stays, so that the result does not count again."""
    counting = result_of(project, "tent")
    earlier = store_like(project, counting, code="earlier")
    notes = [void_result(each.path, "the fan was broken") for each in (counting, earlier)]

    assert {"superseded": {earlier.path, predictions_of(earlier), notes[1]}} == unreferenced()


def test_predictions_that_no_result_names_are_found_when_no_run_can_be_about_to_name_them(project: Locations):
    """A run writes predictions before the result that names them."""
    folder = project.results("small") / "contrast-5"
    stale, young = (folder / f"{'0' * 16}-{number * 8}.parquet" for number in "12")
    for path in (stale, young):
        path.touch()
    old(stale)

    assert {"predictions": {stale}} == unreferenced()


def test_prune_finds_all_of_a_dataset_that_the_file_no_longer_names(project: Locations):
    """Its results, whatever they count for by its plan, and the plan; nothing while the file has a fault."""
    counting, plan = result_of(project, "tent"), read_plan(project, "small", "tent")
    assert plan is not None
    other = project.results("small/old")
    moved = store_result(other, replace(counting.result, benchmark="small/old"))
    shutil.copy(predictions_of(counting), predictions_of(moved))
    write_plan(project, replace(plan, benchmark="small/old"))

    found = unreferenced()
    change(project, "method: norm", "method: nrm")

    assert {"gone": {moved.path, predictions_of(moved), plan_path(project, "small/old", "tent")}} == found
    assert {} == unreferenced()


def test_prune_finds_trainings_that_another_replaces_and_those_of_models_that_are_gone(project: Locations):
    """The training whose weights are evaluated stays."""
    trainings = project.results("small") / "trainings"
    (present,) = map(read_result, find_results(trainings))
    training = present.result.training
    assert training is not None
    other, earlier = (
        store_result(
            project.results("small"),
            replace(present.result, training=replace(training, model=model, weights_sha256="0" * 64)),
        )
        for model in ("other", "cnn")
    )

    assert {"superseded": {earlier.path}, "gone": {other.path}} == unreferenced()


def test_prune_removes_weights_and_checkpoints_of_models_that_are_gone(project: Locations):
    """A model that the file names keeps its own; files of somebody else stay."""
    kept = set(project.source_model("small", "cnn").parent.iterdir())
    checkpoint = "newest.checkpoint"
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

    assert 0 == asked("prune", "gone", "--yes").exit_code

    assert kept == {path for path in stale | kept if path.exists()}


def test_prune_leaves_weights_that_another_benchmark_names(project: Locations):
    """A model that was trained for one benchmark may be evaluated on another; whose file is faulty, may be too."""
    weights = project.source_model("small", "old")
    for path in (weights, weights.with_suffix(".json")):
        path.touch()
    assert weights.name in asked("prune", "gone", "--dry-run", "--json").output
    facts = f"sha256: {'0' * 64}, mean: [0, 0, 0], std: [1, 1, 1]"
    own = f"\n  old: {{kind: checkpoint, architecture: resnet18, path: {weights}, {facts}}}\nexperiments:"
    other = (project.benchmark_files / "small.yaml").read_text().replace("\nexperiments:", own)
    for text in (other, "title: 1"):
        (project.benchmark_files / "other.yaml").write_text(text)
        assert weights.name not in asked("prune", "gone", "--dry-run", "--json").stdout


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


def test_prune_removes_what_it_listed_and_nothing_else(project: Locations):
    """Of the kinds that are named, after a yes; the database follows."""
    change(project, "  norm: {model: cnn, method: norm, batch_size: 32}\n", "")
    plan_anew(project)
    mine = project.results("small") / "contrast-5" / "my notes.txt"
    mine.write_text("not ours")
    before = {path for path in project.root.rglob("*") if path.is_file()}
    superseded = unreferenced("superseded")["superseded"]

    unasked, answer = asked("prune", "superseded"), asked("prune", "superseded", "--yes")

    assert 2 == unasked.exit_code
    assert "expected --yes" in in_one_line(unasked.output)
    assert 0 == answer.exit_code, answer.output
    after = {path for path in project.root.rglob("*") if path.is_file()}
    assert superseded == before - after
    assert mine.exists()
    with open_metrics(project.metrics) as connection:
        left = connection.execute("SELECT DISTINCT experiment FROM evaluations ORDER BY 1").fetchall()
    assert [("source",), ("tent",)] == left


def test_prune_takes_nothing_of_a_file_with_a_fault_for_gone(project: Locations):
    """An experiment that is left out for a mistake in it has its results all the same."""
    change(project, "  norm: {model: cnn, method: norm, batch_size: 32}\n", "  norm: {model: cnn, method: nrm}\n")

    answer = asked("prune", "--dry-run")

    assert "no file of small counts as gone" in in_one_line(answer.output)
    assert "0 files" in in_one_line(answer.output)


def test_prune_removes_decoded_cells_of_shards_that_are_no_more(project: Locations, tmp_path: Path):
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

    assert 0 == asked("prune", "decoded", "--decoded", str(cells.folder), "--yes").exit_code

    assert {present.name, "holiday.pixels"} == {path.name for path in cells.own_folder.glob("*.pixels")}


def make_states(*paths: Path) -> set[Path]:
    """Write files in place of states that no run can be about to use, and return their paths."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a state")
        old(path)
    return set(paths)


def test_prune_finds_states_that_no_stream_goes_on_from(project: Locations):
    """Those of streams that are finished or that no plan asks for, and of passes whose results are gone."""
    tent, norm = result_of(project, "tent"), result_of(project, "norm")
    for path in (tent.path, predictions_of(tent)):
        path.unlink()
    folder = project.states("small") / "contrast-5"
    unfinished, finished, gone = (
        folder / str(name)[:16] for name in (tent.result.fingerprint, norm.result.fingerprint, "1" * 64)
    )
    inside = f"{tent.result.fingerprint}-{'0' * 8}"
    useful = make_states(*(unfinished / f"{inside}-{n:06d}.{kind}" for n in (1, 2) for kind in ("state", "part")))
    trial = project.states("small") / "held_out" / "fog-5" / ("2" * 16) / f"{'2' * 64}-{'0' * 8}-000001.state"
    useful |= make_states(trial)
    useless = make_states(
        unfinished / f"{tent.sha256}.state", unfinished / f"{'1' * 64}-{'0' * 8}-000001.part",
        finished / f"{norm.result.fingerprint}-{'0' * 8}-000001.state", gone / f"{'3' * 64}.state",
        folder / f"{gone.name}.lock",
    )  # fmt: skip

    found = unreferenced("states")
    asked("prune", "states", "--yes")

    assert {"states": useless} == found
    assert not [path for path in useless if path.exists()]
    assert not [path for path in useful if not path.exists()]
    assert not gone.exists()


def test_a_killed_stream_goes_on_after_prune(project: Locations):
    """The state after its last result stays, so that nothing is evaluated twice."""
    change(project, "method: tent,", "method: tent, protocol: {shift: continual},")
    benchmark = load_all_benchmarks(project).benchmark("small")
    own = ExperimentResults(benchmark=benchmark, experiment_name="tent", locations=project)
    (key, *_), told = own.keys, list[str]()

    def evaluate() -> None:
        run_experiment(replace(own), [key], machine=Machine(device="cpu"), run_id="test", tell=told.append)

    with killed_after(1):
        evaluate()
    (first,) = replace(own).counted(own.plans(key)[0])
    (state,) = project.states("small").rglob("*.state")
    useless = make_states(old(state).with_name(f"{'3' * 64}.state"))

    found = unreferenced("states")
    assert 0 == asked("prune", "states", "--yes").exit_code
    evaluate()

    assert {"states": useless} == found
    assert first.sha256 == state.stem
    assert f"stream {key.key} continues at position 1 of 2" in told


def test_states_of_a_stream_that_a_run_holds_stay(project: Locations):
    """However old they are: a long segment may take hours."""
    folder = project.states("small") / "contrast-5"
    lock = folder / f"{'1' * 16}.lock"
    make_states(folder / ("1" * 16) / f"{'3' * 64}.state", lock)

    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        while_held = unreferenced("states")

    assert {} == while_held
    assert 2 == len(unreferenced("states")["states"])


def test_states_stay_where_no_plan_tells_what_is_asked_for(project: Locations):
    """Without the shards of a cell its streams may continue once the shards are made again."""
    state = project.states("small") / "contrast-5" / ("1" * 16) / f"{'3' * 64}.state"
    make_states(state)
    assert {state} == unreferenced("states")["states"]

    shutil.rmtree(project.shards("small", Cell(corruption="contrast", severity=5)))
    plan_anew(project)

    assert {} == unreferenced("states")


def killed(begun: Callable[[], list[Path]], *command: str) -> Path:
    """Start *command*, kill it once *begun* finds something, and return that; `prune` leaves it alone before."""
    with launcher().start(list(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not (found := begun()):
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.01)
            time.sleep(0.05)
            process.send_signal(signal.SIGSTOP)  # so that it lives however fast it is, and does not refresh the time
            old(found[0])
            assert [] == json.loads(asked("prune", "unfinished", "--dry-run", "--json").stdout)
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
        ("tta-pipeline", "results", "reproduce", "of", "tent"),
    ),
    "a run": ("data/small/shards/fog/.unpublished-*-9", ("python", "-c", RUN, "data/small/shards/fog/9")),
}
"""Where each command begins a folder, and the command."""


@pytest.mark.parametrize("which", COMMANDS)
def test_prune_finds_what_killed_processes_left(project: Locations, tmp_path: Path, which: str):
    """In the data root and on node-local disk, but nothing that a living process holds, and nothing of others."""
    pattern, command = COMMANDS[which]
    if which == "reproduce":
        assert asked("results", "publish", "small", "of", "--experiment", "tent").exit_code == 0
    others = [old_folder(project.root / name) for name in (".unpublished-mine", "small/.unpublished-notes-of-mine")]

    left = killed(lambda: list(tmp_path.glob(pattern)), *command)
    old(left)
    (found,) = json.loads(asked("prune", "--dry-run", "--json").stdout)
    done = asked("prune", "--yes")

    assert ("unfinished", str(left)) == (found["kind"], found["path"])
    assert done.exit_code == 0
    assert not left.exists()
    assert not [path for path in others if not path.exists()]


def test_prune_looks_beside_where_it_is_told_to(project: Locations, tmp_path: Path):
    """What was left beside an output that is in none of our folders."""
    (tmp_path / "elsewhere").mkdir()
    left = old_folder(tmp_path / "elsewhere" / f".unpublished-{'0' * 32}-set")

    assert [] == json.loads(asked("prune", "unfinished", "--dry-run", "--json").stdout)
    (found,) = json.loads(asked("prune", "unfinished", "--dry-run", "--json", "--beside", str(left.parent)).stdout)
    assert str(left) == found["path"]


def old_folder(path: Path) -> Path:
    """Return a folder at *path* that nobody has touched for long."""
    path.mkdir()
    return old(path)
