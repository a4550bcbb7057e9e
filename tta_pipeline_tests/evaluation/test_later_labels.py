"""Images without classes: they are sharded and evaluated, and labels that come later give what labels would have."""

import csv
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.cli import main
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.loading.staging import Stage
from tta_pipeline.report.kept_predictions import predictions
from tta_pipeline.report.pages.report import write_report
from tta_pipeline.results.database.database import open_metrics, publish_metrics
from tta_pipeline.results.evaluation_record import LABEL_FREE, Evaluation
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import benchmark_conversion, convert
from tta_pipeline.shards.replacing import require_replaceable
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.partitions import Cell
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests import own_network
from tta_pipeline_tests.conftest import jpeg
from tta_pipeline_tests.evaluation.small import runner_of
from tta_pipeline_tests.shards.cell import QUIET

FOG = Cell(corruption="fog", severity=5)
CLASSES = ("apple", "bread", "cloud")
BY_LABEL = ("num_correct", "error", "ece", "max_calibration_error", "rms_calibration_error", "adaptive_ece", "aurc",
            "class_counts", "num_classes_found")  # fmt: skip
NOT_KEPT = ("num_correct_top5", "top5_error", "nll", "brier", "class_wise_ece")
COSTS = ("wall_s", "images_per_s", "_s", "peak_", "load_average", "batches")


def image_name(number: int) -> str:
    """Return the file name of an image, which tells its class only to the tests."""
    return f"photo_{number:02d}.jpg"


def class_of(number: int) -> str:
    """Return the class of an image."""
    return CLASSES[number * 7 % 3]


LABELS = {image_name(number): class_of(number) for number in range(40)}


@pytest.fixture(scope="module")
def evaluated_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with 40 images, once in class folders and once without classes, sharded and evaluated."""
    folder = tmp_path_factory.mktemp("unlabelled")
    for number in range(40):
        for path in (f"labelled/fog/5/{class_of(number)}", "open/fog/5"):
            (folder / path).mkdir(parents=True, exist_ok=True)
            (folder / path / image_name(number)).write_bytes(jpeg(number))
    (folder / "classes.json").write_text(str(list(CLASSES)).replace("'", '"'))
    root = folder / "data"
    (root / "benchmarks").mkdir(parents=True)
    for name, more in (("labelled", {}), ("open", {"labels": "none"})):
        (root / "benchmarks" / f"{name}.yaml").write_text(yaml.safe_dump(content_of(folder, name, more)))
        make_shards(root, name)
        for experiment in ("source", "norm"):
            evaluate(root, name, experiment)
    publish_metrics(Locations(root=root))
    return root


def content_of(folder: Path, name: str, more: Mapping[str, str]) -> dict:
    """Return a benchmark file of one cell."""
    return {
        "title": "Photographs", "source": {"kind": "folder", "root": str(folder / name), **more},
        "corruptions": ["fog"], "severities": [5], "image_size": 32, "classes": str(folder / "classes.json"),
        "shards": {"samples_per_shard": 15},
        "models": {"net": {"kind": "python", "factory": f"{own_network.__name__}:make_network", "weights": "none"}},
        "experiments": {
            "source": {"model": "net", "method": "source", "batch_size": 16},
            "norm": {"model": "net", "method": "norm", "batch_size": 16},
        },
    }  # fmt: skip


def benchmark_of(root: Path, name: str) -> Benchmark:
    """Return a benchmark of the data root."""
    return load_all_benchmarks(Locations(root=root)).benchmark(name)


def make_shards(root: Path, name: str) -> None:
    """Write and verify the shards of a benchmark."""
    conversion = benchmark_conversion(benchmark_of(root, name), Locations(root=root), quiet_reporter)
    with conversion.session([FOG]) as session:
        convert(session.task(FOG), quiet_reporter)
    publish_shard_set(conversion.folder(FOG), conversion.class_map, QUIET)


def results_of(root: Path, name: str, experiment: str) -> ExperimentResults:
    """Return an experiment of the data root."""
    return ExperimentResults(
        benchmark=benchmark_of(root, name), experiment_name=experiment, locations=Locations(root=root)
    )


def evaluate(root: Path, name: str, experiment: str, *, anew: bool = False) -> None:
    """Evaluate an experiment."""
    with runner_of(results_of(root, name, experiment), anew=anew) as runner:
        runner.plan(FOG)
        runner.evaluate(FOG)


def row_of(root: Path, name: str, experiment: str) -> Evaluation:
    """Return the present result of an experiment."""
    (row,) = results_of(root, name, experiment).rows(FOG)
    return row


@pytest.fixture
def root(evaluated_root: Path, tmp_path: Path) -> Path:
    """A copy of the data root."""
    return Path(shutil.copytree(evaluated_root, tmp_path / "data"))


def write_list(path: Path, rows: Sequence[tuple[str, str]], header: tuple[str, str] = ("key", "class")) -> Path:
    """Write a list of labels."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def label(root: Path, path: Path, *more: str) -> Result:
    """Add the labels of a list."""
    return CliRunner(env={"TTA_DATA_ROOT": str(root)}).invoke(main, ["results", "label", "open", str(path), *more])


@pytest.mark.parametrize("experiment", ["source", "norm"])
def test_without_labels_every_other_score_is_there(evaluated_root: Path, experiment: str):
    """What needs a label is NULL, in the record and in the database; predictions are those of the labelled images."""
    found, labelled = row_of(evaluated_root, "open", experiment), row_of(evaluated_root, "labelled", experiment)

    assert all(
        getattr(found, name) is None for name in (*BY_LABEL, *NOT_KEPT) if name not in ("calibration", "diverged")
    )
    assert found.calibration.correct_counts is None
    assert all(getattr(found, name) is not None for name in LABEL_FREE if name != "source_agreement")
    assert found.num_samples == sum(found.calibration.counts) == 40
    with open_metrics(Locations(root=evaluated_root).metrics) as connection:
        asked = "SELECT mean_error, mean_ece, num_cells FROM leaderboard WHERE benchmark = 'open' AND experiment = ?"
        assert connection.execute(asked, [experiment]).fetchall() == [(None, None, 1)]
        asked = "SELECT estimated_error, error FROM estimated_errors WHERE benchmark = 'open' AND experiment = ?"
        ((estimate, error),) = connection.execute(asked, [experiment]).fetchall()
    assert (estimate, error) == (pytest.approx(1 - found.mean_confidence), None)
    assert labelled.error is not None


def test_labels_that_come_later_give_the_record_that_labels_would_have_given(root: Path, tmp_path: Path):
    """Without another pass: equal hash of predictions, equal error; so does an evaluation after the labels came."""
    before = row_of(root, "open", "norm")

    done = label(root, write_list(tmp_path / "labels.csv", list(LABELS.items())), "--cell", "fog|5", "--quiet")
    later = row_of(root, "open", "norm")
    evaluate(root, "open", "norm", anew=True)
    there = row_of(root, "open", "norm")

    assert done.exit_code == 0, done.output
    assert later.predictions_sha256 == before.predictions_sha256 == there.predictions_sha256
    assert later.error == there.error is not None
    assert later.batches.num_correct == there.batches.num_correct
    assert later.copied_from
    assert there.copied_from is None
    assert all(getattr(later, name) is None for name in NOT_KEPT)
    assert all(getattr(there, name) is not None for name in NOT_KEPT)
    facts = [dict(row.facts()) for row in (later, there)]
    differing = {name for name in facts[0] if facts[0][name] != facts[1][name]}
    assert {name for name in differing if not name.endswith(COSTS) and not name.startswith(COSTS)} <= {
        "copied_from", *NOT_KEPT,
    }  # fmt: skip


def test_labels_in_the_shards_and_later_ones_give_the_same_error(root: Path, tmp_path: Path):
    """By a method that does not depend on the order, which names with a class folder change."""
    rows = [(name.removesuffix(".jpg"), LABELS[name]) for name in LABELS]

    done = label(root, write_list(tmp_path / "labels.csv", rows), "--json")
    later, labelled = row_of(root, "open", "source"), row_of(root, "labelled", "source")

    assert done.exit_code == 0, done.output
    assert later.num_correct == labelled.num_correct
    assert later.class_counts == labelled.class_counts
    assert later.ece == pytest.approx(labelled.ece)
    kept = predictions("open", "source", "fog|5", data_root=root)
    assert sum(kept["correct"].to_pylist()) == later.num_correct


def test_predictions_without_labels_have_nulls(evaluated_root: Path):
    """Nothing is called wrong where nothing is known."""
    kept = predictions("open", "source", "fog|5", data_root=evaluated_root)

    assert (kept["label"].null_count, kept["correct"].null_count, kept.num_rows) == (40, 40, 40)


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda rows: [*rows, ("photo_99.jpg", "apple")], "keys of no sample, such as photo_99.jpg"),
        (lambda rows: [(rows[0][0], "aple"), *rows[1:]], "did you mean apple"),
        (lambda rows: rows[3:], "has no line for 3 of 40 samples"),
        (lambda rows: [*rows, rows[0]], "has a line already"),
        (lambda rows: [*rows, ("photo_00", "apple")], "has two lines for no-class/photo_00"),
        (lambda rows: [(rows[0][0], ""), *rows[1:]], "expected both"),
        (lambda _: [], "has no line"),
    ],
    ids=["unknown key", "unknown class", "missing", "repeated", "repeated by another name", "empty", "nothing"],
)
def test_a_wrong_list_is_refused_whole(evaluated_root: Path, tmp_path: Path, change: object, answer: str):
    """Nothing is written beside the shards or into records."""
    path = write_list(tmp_path / "labels.csv", change(list(LABELS.items())))  # type: ignore[operator]
    before = sorted(evaluated_root.rglob("*"))

    done = label(evaluated_root, path)

    assert done.exit_code == 1
    assert answer in done.stderr
    assert [each for each in sorted(evaluated_root.rglob("*")) if each not in before] == []


def test_a_corrected_list_replaces_the_labels(root: Path, tmp_path: Path):
    """The same list again changes nothing; a file that was edited by hand is refused."""
    path = write_list(tmp_path / "labels.csv", list(LABELS.items()))
    label(root, path)
    first = results_of(root, "open", "source").newest_record(results_of(root, "open", "source").places(FOG)[0])
    assert "0 records completed" in label(root, path).stdout
    write_list(path, [(name, "apple") for name in LABELS])
    assert "1 records completed" in label(root, path).stdout
    assert first is not None
    assert row_of(root, "open", "source").class_counts.num_samples == (40, 0, 0)
    assert row_of(root, "open", "source").predictions_sha256 == first.evaluation.predictions_sha256

    kept = root / "open" / "shards" / "fog" / "5" / "labels.json"
    kept.write_text(kept.read_text().replace("0, 0]", "0, 1]"))
    assert "add the labels again" in label(root, path).stderr


def test_a_corrected_list_leaves_no_number_by_the_labels_before(root: Path, tmp_path: Path):
    """An evaluation that had the first labels has columns that need all probabilities; they are NULL afterwards."""
    path = write_list(tmp_path / "labels.csv", list(LABELS.items()))
    label(root, path)
    evaluate(root, "open", "norm", anew=True)
    assert all(getattr(row_of(root, "open", "norm"), name) is not None for name in NOT_KEPT)

    label(root, write_list(path, [(name, "apple") for name in LABELS]))

    assert all(getattr(row_of(root, "open", "norm"), name) is None for name in NOT_KEPT)


def test_a_staged_copy_gets_the_labels_that_have_come_since(root: Path, tmp_path: Path):
    """And loses them with the original; shards made anew begin without."""
    folder = root / "open" / "shards" / "fog" / "5"
    stage = Stage(root=tmp_path / "stage", limit_bytes=10**8, tell=lambda _: None)

    def is_labelled() -> bool:
        with stage.shard_set(str(folder)) as staged:
            assert staged.folder != folder
            return staged.index.is_labelled

    found = [is_labelled()]
    label(root, write_list(tmp_path / "labels.csv", list(LABELS.items())))
    found.append(is_labelled())
    require_replaceable(folder)
    (folder / "labels.json").unlink()
    assert [*found, is_labelled()] == [False, True, False]


def test_the_gate_passes_nothing_without_labels(evaluated_root: Path):
    """A limit of what needs labels fails, and a limit of what needs none is judged."""
    env = {"TTA_DATA_ROOT": str(evaluated_root)}
    asked = ["gate", "open", "--experiment", "norm", "--device", "cpu", "--max"]

    of_error, of_estimate = (
        CliRunner(env=env).invoke(main, [*asked, limit]) for limit in ("mean_error=1", "estimated_error=1")
    )

    assert (of_error.exit_code, of_estimate.exit_code) == (1, 0), of_estimate.output
    assert "found no labels of fog|5" in of_error.stdout


def test_what_needs_classes_is_refused_without_them(evaluated_root: Path):
    """An order by class, labels in the shards, and a file that names no classes."""
    content = yaml.safe_load((evaluated_root / "benchmarks" / "open.yaml").read_text())
    by_class = {"source": {**content["experiments"]["source"], "protocol": {"order": "by_class"}}}
    for change, answer in (
        ({"experiments": by_class}, "order that needs no classes"),
        ({"shards": {"samples_per_shard": 15, "labels": True}}, "expected shards without labels"),
        ({"classes": "folders"}, "expected the list of classes"),
    ):
        with pytest.raises((ValueError, BenchmarkFileError), match=answer):
            Benchmark.model_validate({**content, "name": "open", **change})


def test_the_manifest_says_nothing_of_classes_that_are_not_known(evaluated_root: Path):
    """The labels are open, and the classes are those that a model predicts."""
    shard_set = ShardSet.open(evaluated_root / "open" / "shards" / "fog" / "5")

    assert set(shard_set.index.labels.tolist()) == {-1}
    assert shard_set.manifest.classes == CLASSES
    assert not shard_set.has_own_labels


def test_the_report_says_that_there_are_no_labels(evaluated_root: Path):
    """In place of errors; the pages of the cells have what needs no label."""
    locations = Locations(root=evaluated_root)
    report = write_report(locations, benchmark_of(evaluated_root, "open"), reporter=quiet_reporter)

    assert "2 experiments on 1 cells without labels" in report.path.read_text()
    assert "no labels</a>" in report.path.read_text()
    assert (report.path.parent / "cells" / "fog-5.html").exists()
