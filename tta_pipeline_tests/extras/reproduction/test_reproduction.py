"""A published result: what it says, in whose forms, and that it comes out the same elsewhere."""

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path
from statistics import fmean
from textwrap import indent

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

from tta_pipeline.cli import main
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.extras.reproduction.result import ExperimentResult
from tta_pipeline.methods.catalogue import METHODS, paper_of
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import UNPUBLISHED, Project, launcher
from tta_pipeline_tests.evaluation.small import CONTRAST_5, TENT, evaluated, results_of

OF_THEIRS = {
    "link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture", "eps",
    "clean_acc", "reported", "corruptions_acc",
}  # fmt: skip
"""Fields of `model_info/imagenet/corruptions/Standard_R50.json` in RobustBench's repository."""
NEEDED = ("shards", "source_models", "class_map.json")
"""What another clone has of the benchmark when it has made or copied its data."""


@pytest.fixture(scope="module")
def root(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sweep."""
    return Path(shutil.copytree(sweep.locations.root, tmp_path_factory.mktemp("results") / "data", ignore=UNPUBLISHED))


@pytest.fixture(scope="module")
def published(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its results, as others get them."""
    target = tmp_path_factory.mktemp("published") / "results"
    done = ask(root, "results", "publish", "small", str(target), "--robustbench")
    assert done.exit_code == 0, done.output
    return target


@pytest.fixture
def tent(published: Path, tmp_path: Path) -> Path:
    """A folder of its own with the published results of tent."""
    return Path(shutil.copytree(published / "tent", tmp_path / "tent"))


def changed(folder: Path, place: tuple, value: object) -> None:
    """Change one field of the result in *folder*."""
    path = folder / "result.json"
    content = json.loads(path.read_text())
    content["cells"].sort(key=lambda cell: cell["partition"] != "contrast|5")
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))


def ask(root: Path, *arguments: str) -> Result:
    """Run a verb on the data root *root*."""
    return CliRunner(env={"TTA_DATA_ROOT": str(root)}).invoke(main, list(arguments))


def test_a_folder_that_is_moved_to_another_clone_has_the_same_hash(root: Path, published: Path, tmp_path: Path):
    """In another process, on another data root with the same shards and weights, every prediction is the same."""
    clone = tmp_path / "clone"
    for name in NEEDED:
        source, target = root / "small" / name, clone / "data" / "small" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    shutil.copytree(published / "tent", clone / "moved")
    (clone / "data" / "benchmarks").mkdir()
    shutil.copy(clone / "moved" / "benchmark.yaml", clone / "data" / "benchmarks" / "small.yaml")
    before = sorted((clone / "data").rglob("*"))

    command = ["tta-pipeline", "results", "reproduce", "moved", "--device", "cpu"]
    environment = {**os.environ, "TTA_DATA_ROOT": str(clone / "data")}
    done = launcher().run(command, environment, timeout_s=600, folder=clone)

    assert done.returncode == 0, done.stderr
    assert "same hash; nothing else differs" in done.stdout
    assert sorted((clone / "data").rglob("*")) == before


@pytest.mark.parametrize(
    ("place", "value", "answer"),
    [
        (("settings", "hyperparameters", "lr"), 0.5, "other error, errors differ by up to"),
        (("cells", 0, "fingerprint_parts", "data"), [["contrast|5", "0" * 64]], "what differs: data"),
        (("cells", 0, "fingerprint_parts", "code"), "0" * 64, "what differs: code"),
        (("versions", "torch"), "1.0", "torch 1.0 then"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_differs_is_named(root: Path, tent: Path, place: tuple, value: object, answer: str):
    """A result of other settings, data, code or libraries than are here."""
    changed(tent, place, value)

    done = ask(root, "results", "reproduce", str(tent), "--cell", "contrast|5", "--within", "0.01")

    assert answer in done.stdout
    assert done.exit_code == (1 if "other error" in answer else 0)


def test_a_program_gets_the_answer_as_json(root: Path, tent: Path):
    """The cell with the error that was published and the error here."""
    done = ask(root, "results", "reproduce", str(tent), "--cell", "contrast|5", "--json")

    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    (cell,) = answer["cells"]
    assert ("same hash", cell["published"]) == (answer["outcome"], cell["error"])


@pytest.mark.parametrize(
    ("place", "expected"),
    [(("errors", "mean_error"), "as its cells have it"), (("cells", 1, "error"), "are correct")],
    ids=["of the experiment", "of a cell"],
)
def test_an_error_that_was_changed_by_hand_is_refused(root: Path, tent: Path, place: tuple, expected: str):
    """The hashes are right, and the number that a paper would cite is not."""
    changed(tent, place, 0.0123)

    done = ask(root, "results", "reproduce", str(tent))

    assert done.exit_code == 1
    assert f"{tent / 'result.json'}: " in done.stderr
    assert "is 0.0123" in done.stderr or "has error 0.0123" in done.stderr
    assert expected in done.stderr


def test_a_list_of_samples_travels_with_the_result(root: Path, tmp_path: Path):
    """It is in the folder, its hash is that of the evaluation, and the original is not needed elsewhere."""
    there = Path(shutil.copytree(root, tmp_path / "there", ignore=UNPUBLISHED))
    names = ShardSet.open(there / "small" / "shards" / "contrast" / "5").index.table["source_name"].to_pylist()
    path = tmp_path / "few.txt"
    path.write_text("\n".join(names[:40]))
    evaluated(results_of(Locations(root=there), subset={"listed": str(path)}), CONTRAST_5)
    own = yaml.safe_dump({"own": {**TENT, "subset": {"listed": str(path)}}})
    with (there / "benchmarks" / "small.yaml").open("a") as file:
        file.write(indent(own, "  "))

    assert ask(there, "results", "publish", "small", str(tmp_path / "out"), "--experiment", "own").exit_code == 0
    path.write_text("\n".join(names[1:41]))
    another = ask(there, "results", "publish", "small", str(tmp_path / "out2"), "--experiment", "own")
    path.unlink()
    done = ask(root, "results", "reproduce", str(tmp_path / "out" / "own"))

    assert f"{path} is not the list that own was evaluated on" in another.stderr
    assert "same hash; nothing else differs" in done.stdout, done.output


def test_a_stream_with_other_cells_here_is_refused(root: Path, tent: Path):
    """Cells that are only in the published stream would not be compared, and those left would be the same."""
    content = json.loads((tent / "result.json").read_text())
    other = next(cell for cell in content["cells"] if cell["partition"] == "contrast|5")
    changed(tent, ("cells",), [*content["cells"], other | {"position": 1, "corruption": "fog", "in_mean": False}])

    done = ask(root, "results", "reproduce", str(tent))

    assert done.exit_code == 1
    assert "stream contrast|5 of small has 1 cell here, the published one 2" in done.stderr
    assert "fog|5 at position 1" in done.stderr


def test_shards_of_a_store_and_weights_of_ones_own_are_found(root: Path, tent: Path, tmp_path: Path):
    """A group keeps the shards; the model was trained in the data root of the user."""
    own, store = tmp_path / "own", tmp_path / "store"
    for name in NEEDED:
        target = (own if name == "source_models" else store) / "small" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(root / "small" / name)
    (own / "benchmarks").mkdir()
    shutil.copy(tent / "benchmark.yaml", own / "benchmarks" / "small.yaml")

    environment = {"TTA_DATA_ROOT": str(own), "TTA_SHARDS_ROOT": str(store)}
    done = CliRunner(env=environment).invoke(main, ["results", "reproduce", str(tent), "--cell", "contrast|5"])

    assert done.exit_code == 0, done.output
    assert "same hash" in done.stdout
    assert not (own / "small" / "results").exists()


def test_the_result_is_that_of_the_records(root: Path, published: Path):
    """Mean error, hashes and number of cells are those of the newest records; Parquet has a row for each."""
    result = ExperimentResult.read(published / "tent")
    project = ask(root, "metrics", "--json", "--sql", "SELECT mean_error, clean_error FROM leaderboard "
                  "WHERE experiment = 'tent'")  # fmt: skip
    (row,) = json.loads(project.stdout)

    assert (row["mean_error"], row["clean_error"]) == pytest.approx(
        (result.errors.mean_error, result.errors.clean_error)
    )
    assert result.is_complete
    assert len(result.cells) == 5
    table = pq.read_table(published / "tent" / "cells.parquet")
    assert [cell.predictions_sha256 for cell in result.cells] == table["predictions_sha256"].to_pylist()


def test_the_prediction_of_each_sample_is_published_if_it_is_asked_for(root: Path, published: Path, tmp_path: Path):
    """A file for each cell, with the hash that the result names; else there is none."""
    asked = ("--experiment", "tent", "--predictions")
    assert ask(root, "results", "publish", "small", str(tmp_path / "out"), *asked).exit_code == 0

    folder = tmp_path / "out" / "tent"
    for cell in ExperimentResult.read(folder).cells:
        kept = SamplePredictions.read(
            folder / "predictions" / f"{cell.samples_sha256}.parquet", sha256=str(cell.samples_sha256)
        )
        assert kept.sha256 == cell.predictions_sha256
    assert "predictions/" in (folder / "README.md").read_text()
    assert not (published / "tent" / "predictions").exists()


def test_the_folder_above_names_the_published_ones(published: Path):
    """Who names the folder of all experiments is told the folders to name."""
    with pytest.raises(RecordError, match=re.escape(str(published / "norm"))):
        ExperimentResult.read(published)


def test_robustbench_reads_our_table_and_entry(published: Path):
    """Two lines of corruption and severity, accuracies in [0, 1] and their average; an entry with its fields."""
    result = ExperimentResult.read(published / "norm")
    corruptions, severities, line = csv.reader(
        io.StringIO((published / "norm" / "unaggregated_results.csv").read_text())
    )
    entry = json.loads((published / "model_info" / "small" / "corruptions" / "norm.json").read_text())

    shifted = [cell for cell in result.cells if cell.corruption != "clean"]
    assert list(zip(corruptions, severities, strict=True))[1:-1] == [
        (cell.corruption, str(cell.severity)) for cell in shifted
    ]
    assert [1 - cell.error for cell in shifted] == pytest.approx([float(value) for value in line[1:-1]])
    assert float(line[-1]) == pytest.approx(fmean(1 - cell.error for cell in shifted))
    assert OF_THEIRS == set(entry)
    assert f"{100 * float(line[-1]):.2f}" == entry["corruptions_acc"]


def test_an_experiment_that_lacks_cells_says_so(root: Path, tmp_path: Path):
    """It is published under its own name, and the command, the page and the file say what is missing."""
    there = tmp_path / "data"
    shutil.copytree(root, there)
    shutil.rmtree(there / "small" / "results" / "evaluations" / "norm" / "contrast-5")

    done = ask(there, "results", "publish", "small", str(tmp_path / "out"), "--experiment", "norm", "--json")
    quiet = ask(there, "results", "publish", "small", str(tmp_path / "quiet"), "--experiment", "norm", "--quiet")

    assert (0, "") == (quiet.exit_code, quiet.stdout)
    assert 1 == len(json.loads(done.stdout))
    assert "norm is not complete: no result of 1 partition" in done.stderr
    assert ("contrast|5",) == ExperimentResult.read(tmp_path / "out" / "norm").missing
    assert "Not complete" in (tmp_path / "out" / "norm" / "README.md").read_text()


def test_predictions_that_were_changed_are_not_published(root: Path, tmp_path: Path):
    """The error names the file, and no folder stays."""
    there = tmp_path / "data"
    shutil.copytree(root, there)
    benchmark = Locations(root=there)
    path = next(benchmark.predictions("small").glob("tent/contrast-5/*.parquet"))
    path.write_bytes(path.read_bytes()[:-1] + b"\0")

    done = ask(there, "results", "publish", "small", str(tmp_path / "out"))

    assert done.exit_code == 1
    assert str(path) in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_without_its_benchmark_says_what_to_do(published: Path, tmp_path: Path):
    """The error names the file to copy, and where to."""
    done = ask(tmp_path / "data", "results", "reproduce", str(published / "tent"))

    assert done.exit_code == 1
    assert f"copy {published / 'tent' / 'benchmark.yaml'} to {tmp_path / 'data' / 'benchmarks' / 'small.yaml'}" in (
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
