"""The use of a choice: in hyperparameters, results and fingerprints, and what it is refused for."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tta_pipeline.benchmarks.file_fingerprint import decided_parts
from tta_pipeline.benchmarks.load_files import load_benchmark, load_benchmarks
from tta_pipeline.benchmarks.resolved_experiment import resolve_experiment
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import BenchmarkFileError, EvaluationError, RecordError
from tta_pipeline.extras.tuning.held_out import require_tunable
from tta_pipeline.results.result_files import read_result
from tta_pipeline.results.tuning_record import TuningRun
from tta_pipeline_tests.benchmarks.test_sets import SEVERAL
from tta_pipeline_tests.extras.tuning.tuned import (
    BY_ENTROPY,
    HELD_OUT,
    TUNED,
    benchmark_of,
    choice,
    chosen,
    stored_choice,
    trial,
)
from tta_pipeline_tests.flat_facts import changed
from tta_pipeline_tests.results.database.made import evaluation

OWN_SET = "names: [gaussian_noise, contrast, fog, snow]\nseverities: [3, 5]\nheld_out: [fog, snow]"


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    """An empty data root."""
    return Locations(root=tmp_path / "data")


def test_the_choice_goes_before_the_preset_and_the_file(locations: Locations):
    """What was not searched stays as it is."""
    stored = chosen(locations)
    found = resolve_experiment(benchmark_of(), "tent_tuned", locations)
    facts = json.loads(found.tuning)

    assert (0.02, "adam") == (
        found.experiment.configured_hyperparameters().lr,
        found.experiment.configured_hyperparameters().optimizer,
    )
    assert "tuned (held-out)" == found.origin
    assert ("tent", {"lr": 0.02}, ["spatter|5"]) == (facts["experiment"], facts["values"], facts["cells"])
    assert ({"lr": [0.001, 0.02]}, stored.sha256) == (facts["grid"], facts["sha256"])


def test_a_hand_beside_the_tuning_is_seen(locations: Locations):
    """Only what the tuning chose may differ from a preset."""
    chosen(locations)
    text = TUNED.replace("tuned: tent,", "tuned: tent, hyperparameters: {steps: 3},")

    assert "set by hand" == resolve_experiment(benchmark_of(text), "tent_tuned", locations).origin


def test_without_a_choice_nothing_is_evaluated(locations: Locations):
    """The message is the command."""
    with pytest.raises(EvaluationError, match="tta-pipeline tune small tent"):
        resolve_experiment(benchmark_of(), "tent_tuned", locations)


def test_a_choice_on_a_shift_that_the_benchmark_reports_is_refused(locations: Locations):
    """Also if it was held out when it was chosen on, and the benchmark file was changed after that."""
    chosen(locations, cell="spatter|5")
    text = TUNED.replace("corruptions: [gaussian_noise, contrast]", "corruptions: [gaussian_noise, spatter]")

    with pytest.raises(EvaluationError, match=r"tunings/\w{16}-\w{8}\.json .*\bspatter\b.*\bspeckle_noise\b"):
        resolve_experiment(benchmark_of(text), "tent_tuned", locations)


def test_a_dataset_that_is_changed_after_the_fact_is_noticed(tmp_path: Path, locations: Locations):
    """What was held out when it was chosen on must be so when it is used."""
    (tmp_path / "light.dataset.yaml").write_text(OWN_SET)
    (tmp_path / "small.yaml").write_text(TUNED.replace("title:", "dataset: light\ntitle:"))
    chosen(locations, cell="fog|5", dataset="light", held_out=("fog", "snow"))
    before = resolve_experiment(load_benchmark(tmp_path / "small.yaml"), "tent_tuned", locations)
    (tmp_path / "light.dataset.yaml").write_text(OWN_SET.replace("[fog, snow]", "[snow]"))

    assert "tuned (held-out)" == before.origin
    with pytest.raises(EvaluationError, match=r"tunings/\w{16}-\w{8}\.json .*\bfog\b.*\bsnow\b"):
        resolve_experiment(load_benchmark(tmp_path / "small.yaml"), "tent_tuned", locations)


def test_a_choice_by_another_criterion_than_the_files_is_refused(locations: Locations):
    """The criterion is in the fingerprint of what it decides; the default is in none."""
    chosen(locations)
    with pytest.raises(EvaluationError, match=r"\blabels\b.*\bentropy\b.*tta-pipeline tune small tent"):
        resolve_experiment(benchmark_of(BY_ENTROPY), "tent_tuned", locations)
    by_labels = resolve_experiment(benchmark_of(), "tent_tuned", locations)
    scored = replace(trial('{"lr": 0.02}', {"spatter|5": 0.25}), mean_entropy=1.0)
    stored_choice(locations, choice(scored, criterion="entropy"))
    by_entropy = resolve_experiment(benchmark_of(BY_ENTROPY), "tent_tuned", locations)
    parts = [
        decided_parts(each.experiment, seed=0, image_size=32, criterion=each.criterion)["method"]
        for each in (by_labels, by_entropy)
    ]

    assert "criterion" not in json.loads(by_labels.tuning)
    assert "entropy" == json.loads(by_entropy.tuning)["criterion"]
    assert {**parts[0], "chosen_by": "entropy"} == parts[1]


def test_a_choice_for_another_method_is_refused(locations: Locations):
    """The experiment had another method when it was tuned."""
    chosen(locations, method="eata")

    with pytest.raises(EvaluationError, match=r"\beata\b.*\btent\b"):
        resolve_experiment(benchmark_of(), "tent_tuned", locations)


def test_no_result_of_a_tuning_has_reported_cells(locations: Locations):
    """Neither one that is written nor one that is read."""
    with pytest.raises(RecordError, match=r"\bcells\b.*\bcontrast\b"):
        chosen(locations, cell="contrast|5")
    path = chosen(locations).path
    content = path.read_bytes().replace(b"spatter|5", b"contrast|5")
    forged = path.with_name(f"{path.name[:16]}-{hashlib.sha256(content).hexdigest()[:8]}.json")
    forged.write_bytes(content)

    with pytest.raises(RecordError, match=rf"{forged.name} .*\bcells\b.*\bcontrast\b"):
        read_result(forged)


def test_the_choice_is_the_lowest_error():
    """Of equals, the first; a record that says otherwise is refused."""
    trials = [
        trial(f'{{"lr": {lr}}}', {"spatter|3": error, "spatter|5": 0.5}) for lr, error in ((1, 0.4), (2, 0.2), (3, 0.2))
    ]
    run = choice(*trials)

    assert ({"lr": 2}, 0.35, ("spatter|3", "spatter|5")) == (run.values, run.error, run.cells)
    assert run.choice == '{"lr": 2}, error 35.0% on spatter, as {"lr": 3} has: the first of the grid is chosen'
    assert choice(*trials[:2]).choice == '{"lr": 2}, error 35.0% on spatter'
    with pytest.raises(RecordError, match=re.escape('{"lr": 2}')):
        replace(run, chosen='{"lr": 3}').require_consistent()


def test_a_choice_by_one_image_at_the_edge_of_the_grid_is_said():
    """How many trials these images cannot tell from the best, and beyond which value nothing was tried."""
    lrs = (0.001, 0.01, 0.1)
    trials = [
        trial(f'{{"lr": {lr}}}', {"spatter|5": error}) for lr, error in zip(lrs, (0.26, 0.265, 0.27), strict=True)
    ]
    run = choice(*trials, grid='{"lr": [0.001, 0.01, 0.1]}')
    inside = of_many_images(choice(*trials[1:], grid='{"lr": [0.001, 0.01, 0.1]}'))

    told_apart, edge = run.cautions()
    assert all(value in told_apart for value in ("200 images", "the other 2 trials", "26.0%", "27.0%"))
    assert "lr 0.001 is the least value" in edge
    assert (edge,) == of_many_images(run).cautions()
    assert () == inside.cautions()
    other = [trial(f'{{"lr": {lr}}}', {"spatter|5": error}) for lr, error in zip(lrs, (0.5, 0.27, 0.26), strict=True)]
    told_apart, edge = choice(*other, grid='{"lr": [0.001, 0.01, 0.1]}').cautions()
    assert "1 of the other 2 trials: errors of 26.0% to 27.0%" in told_apart
    assert "lr 0.1 is the largest value" in edge


def of_many_images(run: TuningRun) -> TuningRun:
    """Return *run* as if its errors were of a million images."""
    return replace(run, trials=tuple(replace(each, num_samples=1_000_000) for each in run.trials))


def test_no_result_was_tuned_on_its_own_shift():
    """The record of an evaluation is refused where its tuning has its corruption, at any severity."""
    row = changed(evaluation(), hyperparameters_origin="tuned (held-out)")
    tuning = {"cells": ["spatter|5"], "values": {"lr": 1}}

    changed(row, tuning=json.dumps(tuning)).require_consistent()
    for other in (None, "{}", json.dumps({"cells": ["spatter|5", "fog|1"]})):
        with pytest.raises(RecordError, match=rf"{re.escape(repr(other))}.*\bfog\b"):
            changed(row, tuning=other).require_consistent()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "corruptions: [gaussian_noise, contrast]",
            "custom: {names: [gaussian_noise, contrast], severities: [3, 5]}",
            r"experiments\.tent_tuned\.tuned .*\bheld_out\b",
        ),
        (
            "corruptions: [gaussian_noise, contrast]",
            "corruptions: [contrast, speckle_noise, gaussian_blur, spatter, saturate]",
            "imagenet_c .*speckle_noise, gaussian_blur, spatter, saturate",
        ),
        ("severities: [5], subset: {first: 64}", "corruptions: [contrast]", r"tuning\.tent: .*\bcorruptions\b"),
        ("severities: [5], subset: {first: 64}", "severities: [4]", r"tuning\.tent\.severities .*\[4\]"),
        ("lr: [0.001, 0.5]", "lr: [0.001, -1]", r"tuning\.tent\.grid: .*\blr .*-1\b"),
        ("lr: [0.001, 0.5]", "corruption: [contrast]", r"tuning\.tent\.grid: .*\bcorruption\b"),
        ("lr: [0.001, 0.5]", "lr: []", r"tuning\.tent\.grid: .*\blr .*\[\]"),
        ("tuned: tent,", "tuned: norm,", r"experiments\.tent_tuned\.tuned .*'norm'.*\btent\b"),
        ("tuned: tent,", "tuned: true,", r"experiments\.tent_tuned\.tuned .*\bTrue\b.*\btent\b"),
        (
            "method: tent, preset: cifar, batch_size: 32, tuned",
            "method: rpl, tuned",
            r"experiments\.tent_tuned\.tuned .*\btent\b.*\brpl\b",
        ),
    ],
)
def test_what_a_benchmark_file_says_of_tuning_is_compared(tmp_path: Path, before: str, after: str, message: str):
    """A set without held-out shifts is refused by name, and so is what would look at reported cells."""
    assert before in TUNED
    (tmp_path / "small.yaml").write_text(TUNED.replace(before, after))

    with pytest.raises(BenchmarkFileError, match=message):
        load_benchmark(tmp_path / "small.yaml")


def test_of_several_sets_those_that_hold_shifts_out_are_tuned(tmp_path: Path):
    """In the others, experiments that use the choice are left out with the reason, and nothing else is."""
    tuned = "  tent: {model: r18, method: tent}\n  tent_tuned: {model: r18, method: tent, tuned: tent}\n"
    text = (
        f"{SEVERAL.replace('sets:', f'{tuned}sets:', 1)}tuning: {{tent: {{grid: {{lr: [0.001]}}, severities: [5]}}}}\n"
    )
    (tmp_path / "mine.yaml").write_text(text)

    loaded = load_benchmarks(tmp_path)

    (fault,) = loaded.faults
    assert ("mine/renditions", "tent_tuned") == (fault.benchmark, fault.experiment)
    assert "held_out" in fault.sentence
    assert HELD_OUT == loaded.benchmarks["mine/imagenet_c"].held_out
    with pytest.raises(BenchmarkFileError, match=r"mine/renditions .*\bheld_out\b"):
        require_tunable(loaded.benchmarks["mine/renditions"], "tent")


def test_a_file_without_tuning_is_told_to_have_a_section():
    """Without the section there is no experiment to choose from."""
    untuned = benchmark_of().model_copy(update={"tuning": {}})

    with pytest.raises(BenchmarkFileError, match=r"\btent\b.*\bsmall\b.*tuning: \{tent: \{grid: "):
        require_tunable(untuned, "tent")
