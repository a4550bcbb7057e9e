"""Kept predictions are a table in Python."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

import tta_pipeline as tta
from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.sample_predictions import prediction_problems
from tta_pipeline.loading.dataset import open_shards
from tta_pipeline.results.plans import read_plan
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import Project, copied_results
from tta_pipeline_tests.evaluation.small import CONTRAST_5
from tta_pipeline_tests.flat_facts import changed


def test_the_predictions_of_a_cell_are_those_of_its_result(sweep: Project):
    """A row for each sample, with its key and label; their error is the error of the record."""
    table = tta.predictions("small", "tent", "contrast|5", data_root=sweep.locations.root)
    where = "counts AND experiment = 'tent' AND corruption = 'contrast' AND severity = 5"
    (row,) = tta.query(f"SELECT error FROM evaluations WHERE {where}", data_root=sweep.locations.root).to_pylist()

    assert ["key", "label", "prediction", "confidence", "correct"] == table.column_names
    frame = table.to_pandas()
    assert 1 - frame.correct.mean() == pytest.approx(row["error"])
    assert (frame.correct == (frame.label == frame.prediction)).all()
    index = open_shards(sweep.locations.root / "small/shards/contrast/5").shard_set.index
    assert dict(zip(index.keys, index.labels.tolist(), strict=True)) == dict(zip(frame.key, frame.label, strict=True))


def test_an_evaluation_of_ones_own_keeps_the_same_table(sweep: Project):
    """The method of the benchmark on the same shards predicts the same; the record has no more facts for it."""
    small = sweep.locations.root / "small"
    model = tta.load_model(str(small / "source_models/cnn.safetensors"))
    method = tta.build("norm", model, num_classes=10)

    result = tta.evaluate(method, small / "shards/contrast/5", batch_size=32, keep=True)

    kept = tta.predictions("small", "norm", "contrast|5", data_root=sweep.locations.root)
    assert kept.schema == result.predictions.schema
    assert kept.drop_columns(["confidence"]) == result.predictions.drop_columns(["confidence"])
    assert "predictions" not in result.facts()


def test_predictions_that_do_not_add_up_to_their_result_are_a_problem(sweep: Project):
    """By the labels of the shards; what was not kept is one, too."""
    benchmark = load_all_benchmarks(sweep.locations).benchmark("small")
    results = ExperimentResults(benchmark=benchmark, experiment_name="tent", locations=sweep.locations)
    (counted,) = results.counted_cells(CONTRAST_5)
    shard_set, num_correct = ShardSet.open(results.folder(CONTRAST_5)), counted.row.scores.num_correct
    other = replace(counted, row=changed(counted.row, num_correct=num_correct + 1))
    without = replace(counted, row=changed(counted.row, samples_sha256=None))

    assert [] == [*prediction_problems(counted, shard_set)]
    (problem,) = prediction_problems(other, shard_set)
    assert re.search(rf"\.parquet has 150 predictions, {num_correct} .* 150 and {num_correct + 1} ", problem)
    (problem,) = prediction_problems(without, shard_set)
    assert "tent at contrast|5 has no predictions" in problem


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (("small", "tent", "fog|5"), r"\btent\b.*\bsmall\b.*fog\|5.*contrast\|5"),
        (("small", "tnt", "contrast|5"), r"\bsmall\b.*'tnt'.*\bsource, norm, tent\b"),
        (("tiny", "tent", "contrast|5"), r"'tiny' .*\bdigits_c, small\b"),
    ],
)
def test_what_was_not_evaluated_is_named(sweep: Project, asked: tuple[str, str, str], found: str):
    """With what there is."""
    with pytest.raises(tta.PipelineError, match=found):
        tta.predictions(*asked, data_root=sweep.locations.root)
    with pytest.raises(tta.PipelineError, match=r"contrast\|5.* 7\b.* 0\b"):
        tta.predictions("small", "tent", "contrast|5", seed=7, data_root=sweep.locations.root)


def test_predictions_that_were_changed_are_refused(sweep: Project, tmp_path: Path):
    """The result says what their hash is."""
    locations = copied_results(sweep, tmp_path).locations
    plan = read_plan(locations, "small", "tent")
    (asked,) = next(each.segments for each in plan.streams if each.key == "contrast|5")
    (path,) = (locations.results("small") / "contrast-5").glob(f"{asked.fingerprint[:16]}-*.parquet")
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(tta.PipelineError, match=hashlib.sha256(path.read_bytes()).hexdigest()):
        tta.predictions("small", "tent", "contrast|5", data_root=locations.root)
