"""A published result: what it says, in whose forms, and that it comes out the same elsewhere."""

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from textwrap import indent

import pytest
import yaml
from click.testing import CliRunner

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.cli import main
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.published import PublishedExperiment, find_experiment
from tta_pipeline.evaluation.run_experiment import run_experiment
from tta_pipeline.methods.catalogue import METHODS, paper_of
from tta_pipeline.results.evaluation_parts import NO_BATCHES
from tta_pipeline.results.result_files import Result, read_result
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import SMALL, Project, copied_results, in_one_line, launcher
from tta_pipeline_tests.extras.reproduction.folders import (
    ask,
    change_plan,
    forge,
    forge_fingerprint,
    result_of,
    with_facts,
)
from tta_pipeline_tests.flat_facts import changed

OF_THEIRS = {
    "link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture", "eps",
    "clean_acc", "reported", "corruptions_acc",
}  # fmt: skip
"""Fields of `model_info/imagenet/corruptions/Standard_R50.json` in RobustBench's repository."""
KEYS = ("gaussian_noise-3", "gaussian_noise-5", "contrast-3", "contrast-5", "clean-0")
NEEDED = ("shards", "source_models", "class_map.json")
"""What another clone has of the benchmark when it has made or copied its data."""


@pytest.fixture(scope="module")
def root(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sweep."""
    return copied_results(sweep, tmp_path_factory.mktemp("results")).locations.root


@pytest.fixture
def there(root: Path, tmp_path: Path) -> Path:
    """A copy of one's own of that."""
    return Path(shutil.copytree(root, tmp_path / "there"))


@pytest.fixture(scope="module")
def published(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its results, as others get them."""
    target = tmp_path_factory.mktemp("published") / "results"
    done = ask(root, "results", "publish", "small", str(target), "--robustbench")
    assert done.exit_code == 0, done.output
    return target


@pytest.fixture
def copied(published: Path, tmp_path: Path) -> Path:
    """A folder of its own with the published results."""
    return Path(shutil.copytree(published, tmp_path / "copied"))


def read(folder: Path, experiment: str) -> PublishedExperiment:
    """Return the published *experiment*."""
    return find_experiment(folder, experiment)


def with_rate(config: str) -> str:
    """Return the settings *config* with a much higher learning rate."""
    settings = json.loads(config)
    return json.dumps({**settings, "hyperparameters": {**settings["hyperparameters"], "lr": 0.5}})


def with_old_torch(result: Result) -> Result:
    """Return *result* as if it came from a library of long ago."""
    return replace(result, versions={**result.versions, "torch": "1.0"})


def test_a_folder_that_is_moved_to_another_clone_has_the_same_hash(root: Path, published: Path, tmp_path: Path):
    """In another process, on another data root with the same shards and weights, every prediction is the same."""
    clone = tmp_path / "clone"
    for name in NEEDED:
        source, target = root / "small" / name, clone / "data" / "small" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    shutil.copytree(published, clone / "moved")
    (clone / "data" / "benchmarks").mkdir()
    shutil.copy(clone / "moved" / "benchmark.yaml", clone / "data" / "benchmarks" / "small.yaml")
    before = sorted((clone / "data").rglob("*"))

    command = ["tta-pipeline", "results", "reproduce", "moved", "tent", "--device", "cpu"]
    environment = {**os.environ, "TTA_DATA_ROOT": str(clone / "data")}
    done = launcher().run(command, environment, timeout_s=600, folder=clone)

    assert done.returncode == 0, done.stderr
    assert "same hash; nothing else differs" in done.stdout
    assert sorted((clone / "data").rglob("*")) == before


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda result: with_facts(result, config=with_rate), "other error, errors differ by up to"),
        (with_old_torch, "torch 1.0 then"),
    ],
    ids=["settings", "versions"],
)
def test_what_differs_is_named(root: Path, copied: Path, change: Callable[[Result], Result], answer: str):
    """A result of other settings or libraries than are here."""
    for key in KEYS:
        forge(result_of(copied, "tent", key), change)

    done = ask(root, "results", "reproduce", str(copied), "tent", "--cell", "contrast|5", "--within", "0.01")

    assert answer in done.stdout, done.output
    assert done.exit_code == (1 if "other error" in answer else 0)


@pytest.mark.parametrize(
    ("part", "value"), [("data", [["contrast|5", "0" * 64]]), ("code", "0" * 64)], ids=["data", "code"]
)
def test_parts_of_the_fingerprint_that_differ_are_named(root: Path, copied: Path, part: str, value: object):
    """Equal predictions of other data or code are equal, and the answer says what they were made of."""
    forge_fingerprint(copied, "tent", "contrast-5", **{part: value})

    done = ask(root, "results", "reproduce", str(copied), "tent", "--cell", "contrast|5")

    assert f"same hash; what differs: {part}" in done.stdout, done.output


def test_a_program_gets_the_answer_as_json(root: Path, published: Path):
    """The cell with the error that was published and the error here."""
    done = ask(root, "results", "reproduce", str(published), "tent", "--cell", "contrast|5", "--json")

    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    (cell,) = answer["cells"]
    assert ("same hash", cell["published_error"]) == (answer["outcome"], cell["error"])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: path.write_bytes(path.read_bytes().replace(b"tent", b"TENT")), "is damaged: it hashes to"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is damaged: it hashes to"),
        (lambda path: forge(path, lambda result: with_facts(result, num_correct=3)), "correct"),
    ],
    ids=["changed", "cut", "forged"],
)
def test_a_result_that_was_changed_by_hand_is_refused(
    root: Path, copied: Path, damage: Callable[[Path], object], expected: str
):
    """Its name has its hash; and if that is right, too, the number that a paper would cite is not."""
    path = result_of(copied, "tent")
    damage(path)

    done = ask(root, "results", "reproduce", str(copied), "tent")

    assert done.exit_code == 1
    assert str(path.parent) in in_one_line(done.stderr)
    assert expected in in_one_line(done.stderr)


def test_a_list_of_samples_travels_with_the_result(root: Path, there: Path, tmp_path: Path):
    """It is in the folder, its hash is that of the evaluation, and the original is not needed elsewhere."""
    names = ShardSet.open(there / "small" / "shards" / "contrast" / "5").index.table["source_name"].to_pylist()
    path = tmp_path / "few.txt"
    path.write_text("\n".join(names[:40]))
    own = {"model": "cnn", "method": "tent", "preset": "cifar", "batch_size": 32, "subset": {"file": str(path)}}
    with (there / "benchmarks" / "small.yaml").open("a") as file:
        file.write(indent(yaml.safe_dump({"own": own}), "  "))
    results = ExperimentResults(
        benchmark=load_benchmark(there / "benchmarks" / "small.yaml"),
        experiment_name="own",
        locations=Locations(root=there),
    )
    (key,) = (key for key in results.keys if key.key == "contrast|5")
    run_experiment(results, (key,), machine=Machine(device="cpu"), run_id="test", tell=print, keeps_predictions=True)

    assert ask(there, "results", "publish", "small", str(tmp_path / "out"), "--experiment", "own").exit_code == 0
    path.write_text("\n".join(names[1:41]))
    another = ask(there, "results", "publish", "small", str(tmp_path / "out2"), "--experiment", "own")
    path.unlink()
    done = ask(root, "results", "reproduce", str(tmp_path / "out"))

    assert f"{path} is not the list of samples that were evaluated" in in_one_line(another.stderr)
    assert not (tmp_path / "out2").exists()
    assert "same hash; nothing else differs" in done.stdout, done.output


def test_a_stream_with_other_cells_here_is_refused(root: Path, copied: Path):
    """Cells that are only in the published stream would not be compared, and those left would be the same."""

    def with_fog(result: Result) -> Result:
        (own,) = result.evaluations
        return replace(result, evaluations=(own, changed(own, corruption="fog", batches=NO_BATCHES)))

    forge(result_of(copied, "tent"), with_fog)

    done = ask(root, "results", "reproduce", str(copied), "tent")

    assert done.exit_code == 1
    assert "stream contrast|5 of small has 1 cell here, but 2 in the published result" in in_one_line(done.stderr)
    assert "fog|5 at position 0" in in_one_line(done.stderr)


def test_only_what_was_published_and_is_here_is_repeated(there: Path, published: Path):
    """A cell that was not published, or that the benchmark here lacks, is named; so is a model that is not here."""
    path = there / "benchmarks" / "small.yaml"

    other = ask(there, "results", "reproduce", str(published), "tent", "--cell", "fog|5")
    path.write_text(SMALL.replace("severities: [3, 5]", "severities: [3]"))
    gone = ask(there, "results", "reproduce", str(published), "tent")
    path.write_text(SMALL.replace("cnn: {kind", "mine: {kind").replace("model: cnn", "model: mine"))
    without = ask(there, "results", "reproduce", str(published), "tent")

    assert [1, 1, 1] == [each.exit_code for each in (other, gone, without)]
    assert "fog|5 was not published; expected any of" in in_one_line(other.stderr)
    assert "small has no contrast|5, gaussian_noise|5 here" in in_one_line(gone.stderr)
    assert "small has no model cnn here" in in_one_line(without.stderr)


def test_a_folder_that_is_there_is_not_written_over(root: Path, tmp_path: Path):
    """Whatever it holds."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()

    done = ask(root, "results", "publish", "small", str(tmp_path / "out"))

    assert 1 == done.exit_code
    assert f"{tmp_path / 'out'} already exists; expected a new folder" in in_one_line(done.stderr)
    assert ["mine"] == [path.name for path in (tmp_path / "out").iterdir()]


def test_shards_of_a_store_and_weights_of_ones_own_are_found(root: Path, published: Path, tmp_path: Path):
    """A group keeps the shards; the model was trained in the data root of the user."""
    own, store = tmp_path / "own", tmp_path / "store"
    for name in NEEDED:
        target = (own if name == "source_models" else store) / "small" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(root / "small" / name)
    (own / "benchmarks").mkdir()
    shutil.copy(published / "benchmark.yaml", own / "benchmarks" / "small.yaml")

    environment = {"TTA_DATA_ROOT": str(own), "TTA_SHARDS_ROOT": str(store)}
    asked = ["results", "reproduce", str(published), "tent", "--cell", "contrast|5"]
    done = CliRunner(env=environment).invoke(main, asked)

    assert done.exit_code == 0, done.output
    assert "same hash" in done.stdout
    assert not (own / "results").exists()


def test_what_is_published_is_what_lies_in_the_data_root(root: Path, published: Path):
    """Byte by byte: results, predictions and plans of all that counts, and the benchmark file."""
    copies = {path.relative_to(published): path for path in (published / "results").rglob("*") if path.is_file()}

    assert {".json", ".parquet"} == {path.suffix for path in copies}
    assert 3 * 5 * 2 + 3 == len(copies)  # a result and predictions of each experiment on each cell, and their plans
    assert all(path.read_bytes() == (root / name).read_bytes() for name, path in copies.items())
    assert (published / "benchmark.yaml").read_bytes() == (root / "benchmarks" / "small.yaml").read_bytes()


def test_weights_that_were_trained_here_travel_with_the_results(
    root: Path, there: Path, published: Path, tmp_path: Path
):
    """Whoever copies them trains nothing; weights of a later training, which no result has, are left out."""
    weights = {path.name: path.read_bytes() for path in (published / "source_models").iterdir()}
    assert weights == {path.name: path.read_bytes() for path in (root / "small" / "source_models").iterdir()}

    next((there / "small" / "source_models").glob("*.safetensors")).write_bytes(b"other")
    assert ask(there, "results", "publish", "small", str(tmp_path / "out")).exit_code == 0
    assert not (tmp_path / "out" / "source_models").exists()


def test_the_page_has_the_mean_errors_of_the_leaderboard(root: Path, published: Path):
    """And the number of cells that they are the mean of."""
    rows = json.loads(ask(root, "query", "--json", "SELECT experiment, mean_error FROM leaderboard").stdout)
    page = (published / "README.md").read_text()

    assert {"source", "norm", "tent"} == {row["experiment"] for row in rows}
    for row in rows:
        assert f"- `{row['experiment']}`: mean error {row['mean_error']:.2%} over 4 cells" in page


def test_a_renamed_experiment_is_published_under_its_present_name(there: Path, tmp_path: Path):
    """The plan names it; the results were made under the name before, and stay as they are."""
    file = there / "benchmarks" / "small.yaml"
    file.write_text(file.read_text().replace("  tent:", "  adapted:"))
    ask(there, "run", "small", "--dry-run")

    done = ask(there, "results", "publish", "small", str(tmp_path / "out"), "--experiment", "adapted")

    assert done.exit_code == 0, done.output
    found = read(tmp_path / "out", "adapted")
    assert {"adapted"} == {row.labels.experiment for row in found.rows}
    assert {"tent"} == {read_result(stored.path).result.evaluations[0].labels.experiment for stored in found.stored}


def test_a_dataset_in_a_file_of_its_own_is_published_beside_the_benchmark(there: Path, tmp_path: Path):
    """Without it, nobody could read the benchmark file."""
    folder = there / "benchmarks"
    (folder / "two.dataset.yaml").write_text("names: [gaussian_noise, contrast]\nseverities: [1, 2, 3, 4, 5]\n")
    file = folder / "small.yaml"
    file.write_text(f"dataset: two\n{file.read_text()}")
    ask(there, "run", "small", "--dry-run")

    done = ask(there, "results", "publish", "small", str(tmp_path / "out"), "--experiment", "tent")

    assert done.exit_code == 0, done.output
    assert (folder / "two.dataset.yaml").read_bytes() == (tmp_path / "out" / "two.dataset.yaml").read_bytes()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((), "contains 3 experiments; expected one name: choose one of norm, source, tent"),
        (("tint",), "no experiment 'tint'"),
    ],
)
def test_who_names_no_experiment_is_told_which_there_are(root: Path, published: Path, asked: tuple, expected: str):
    """A folder has several experiments."""
    done = ask(root, "results", "reproduce", str(published), *asked)

    assert done.exit_code == 1
    assert expected in in_one_line(done.stderr)


def test_robustbench_reads_our_table_and_entry(published: Path):
    """Two lines of corruption and severity, accuracies in [0, 1] and their average; an entry with its fields."""
    corruptions, severities, *lines = csv.reader(io.StringIO((published / "unaggregated_results.csv").read_text()))
    entry = json.loads((published / "model_info" / "small" / "corruptions" / "norm.json").read_text())
    rows = [row for row in read(published, "norm").rows if row.cell.corruption != "clean"]
    (line,) = [line for line in lines if line[0] == "norm"]

    assert ["source", "norm", "tent"] == [line[0] for line in lines]
    assert list(zip(corruptions, severities, strict=True))[1:-1] == [
        (r.cell.corruption, str(r.cell.severity)) for r in rows
    ]
    assert [1 - row.error for row in rows] == pytest.approx([float(value) for value in line[1:-1]])
    assert float(line[-1]) == pytest.approx(fmean(1 - row.error for row in rows))
    assert OF_THEIRS == set(entry)
    assert f"{100 * float(line[-1]):.2f}" == entry["corruptions_acc"]


def test_an_experiment_that_lacks_cells_says_so(there: Path, tmp_path: Path):
    """It is published, and the command and the page say what is missing."""
    result_of(there, "norm").unlink()

    done = ask(there, "results", "publish", "small", str(tmp_path / "out"), "--experiment", "norm", "--json")
    quiet = ask(there, "results", "publish", "small", str(tmp_path / "quiet"), "--experiment", "norm", "--quiet")

    assert (0, "") == (quiet.exit_code, quiet.stdout)
    assert [["norm"]] == [folder["incomplete"] for folder in json.loads(done.stdout)]
    assert "norm is not complete: no result of 1 cell" in in_one_line(done.stderr)
    assert 1 == read(tmp_path / "out", "norm").num_missing
    assert "**not complete**: 1 cell missing" in (tmp_path / "out" / "README.md").read_text()


def test_experiments_without_results_are_named_and_left_out(there: Path, tmp_path: Path):
    """The others are published, and the exit status says that some were not."""
    change_plan(there, "norm", lambda plan: plan.update(streams=[]))

    done = ask(there, "results", "publish", "small", str(tmp_path / "out"))

    assert done.exit_code == 1
    assert "norm has no results" in in_one_line(done.stderr)
    assert {"source", "tent"} == {path.stem for path in (tmp_path / "out/results/small/plans").iterdir()}


def test_predictions_that_were_changed_are_not_published(there: Path, tmp_path: Path):
    """The error names the file, and no folder stays."""
    path = next((there / "results" / "small" / "contrast-5").glob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1] + b"\0")

    done = ask(there, "results", "publish", "small", str(tmp_path / "out"))

    assert done.exit_code == 1
    assert str(path) in in_one_line(done.stderr)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_lacks_the_results_says_what_to_copy(root: Path, copied: Path, tmp_path: Path):
    """Of the experiment that is asked for, or altogether."""
    for path in (copied / "results" / "small").glob("*-*/*.json"):
        path.unlink()
    (tmp_path / "empty").mkdir()

    without = ask(root, "results", "reproduce", str(copied), "tent")
    empty = ask(root, "results", "reproduce", str(tmp_path / "empty"))

    assert 1 == without.exit_code == empty.exit_code
    assert "has a plan for tent, but no results" in in_one_line(without.stderr)
    assert "expected a folder that `tta-pipeline results publish` wrote" in in_one_line(empty.stderr)


def test_a_folder_without_its_benchmark_says_what_to_do(published: Path, tmp_path: Path):
    """The error names the file to copy, and where to."""
    done = ask(tmp_path / "data", "results", "reproduce", str(published), "tent")

    assert done.exit_code == 1
    assert f"copy {published / 'benchmark.yaml'} to {tmp_path / 'data' / 'benchmarks' / 'small.yaml'}" in in_one_line(
        done.stderr
    )


def test_every_method_has_its_paper():
    """But for those that have none: the model as it is, and running batch statistics."""
    papers = {name: paper_of(name) for name in METHODS}
    assert {"source", "zero_shot", "bn_ema"} == {name for name, paper in papers.items() if paper is None}
    for name, paper in papers.items():
        entry = paper.bibtex(name) if paper else f"@inproceedings{{{name},}}"
        assert entry.count("{") == entry.count("}")
        assert entry.startswith(f"@inproceedings{{{name},")
