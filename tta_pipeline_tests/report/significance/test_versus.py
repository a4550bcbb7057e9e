"""Two experiments are compared on what was kept of both, sample by sample."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.cli import main
from tta_pipeline.cli.compare import say_seeds
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.published import read_experiment
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.report.significance.estimates import LEAST_P, bootstrap_means, percentile_interval
from tta_pipeline.report.significance.versus import CommonCells
from tta_pipeline.results.names import PLANS
from tta_pipeline.results.result_files import StoredResult
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.conftest import SMALL, SMALL_CELLS, Project, copied_results, in_one_line

Ask = Callable[..., Result]


@pytest.fixture
def ask(sweep: Project) -> Ask:
    """Return a function that compares two experiments of the small benchmark."""

    def ask(*arguments: str) -> Result:
        environment = {"TTA_DATA_ROOT": str(sweep.locations.root)}
        return CliRunner().invoke(main, ["compare", *arguments], env=environment)

    return ask


def wrong_of(project: Project, name: str, number: int) -> dict[str, bool]:
    """Return, by key, whether each sample of a cell was predicted wrongly, read from the files alone."""
    benchmark = load_all_benchmarks(project.locations).benchmark("small")
    results = ExperimentResults(benchmark=benchmark, experiment_name=name, locations=project.locations)
    cell = SMALL_CELLS[number]
    (counted,) = (each for each in results.all_counted_cells().values() if each.cell == cell)
    path = counted.predictions_path
    kept = SamplePredictions.read(path, sha256=hash_file(path), cell=cell.key)
    index = ShardSet.open(results.folder(cell)).index
    return {
        index.keys[at]: bool(index.labels[at] != prediction)
        for at, prediction in zip(kept.positions, kept.predictions, strict=True)
    }


def test_each_cell_counts_who_alone_is_wrong(sweep: Project, ask: Ask):
    """And the mean is over the images, each with all its corruptions."""
    finished = ask("norm", "source", "--cells", "--json")
    mean, *cells = json.loads(finished.stdout)

    for number, cell in enumerate(cells[: len(SMALL_CELLS)]):
        norm, source = (wrong_of(sweep, name, number) for name in ("norm", "source"))
        assert sum(norm[key] and not source[key] for key in norm) == cell["only_a_wrong"]
        assert sum(source[key] and not norm[key] for key in norm) == cell["only_b_wrong"]
        assert np.mean(list(source.values())) - np.mean(list(norm.values())) == pytest.approx(cell["error_change"])
    assert "mean" == mean["corruption"]
    assert ("norm", mean["p_value"] == LEAST_P) == (mean["better"], mean["p_is_bound"])
    assert mean["error_change_low"] < mean["error_change"] < mean["error_change_high"]


def test_the_other_way_round_is_the_same_with_another_sign(ask: Ask):
    """Which of the two is named first decides no verdict."""
    one, other = (
        json.loads(ask(*names, "--cells", "--json").stdout) for names in (("norm", "source"), ("source", "norm"))
    )

    assert [(row["better"], row["p_holm"], -row["error_change"]) for row in one[1:]] == [
        (row["better"], row["p_holm"], row["error_change"]) for row in other[1:]
    ]
    assert one[0]["better"] == other[0]["better"]


def test_the_answer_is_about_the_one_that_was_named_first(ask: Ask):
    """`compare A B` asks about A."""
    said = [" ".join(ask(*names).stdout.split()) for names in (("norm", "source"), ("source", "norm"))]

    assert ["norm", "source"] == [text.split()[0] for text in said]
    assert ["better", "worse"] == [text.split(" than ")[0].split()[-1] for text in said]
    assert ["batch sizes (32, 64)", "batch sizes (64, 32)"] == [
        re.findall(r"batch sizes \(.*?\)", each)[0] for each in said
    ]


def test_an_experiment_is_not_better_than_itself(ask: Ask):
    """No sample tells one from the other."""
    rows = json.loads(ask("tent", "tent", "--cells", "--json").stdout)
    said = " ".join(ask("tent", "tent").stdout.split())

    assert said.startswith("All 600 predictions of tent and tent over their common cells are the same (mean error ")
    assert "interval" not in said
    assert {True} == {0.005 < row["min_detectable_diff"] < 0.2 for row in rows}
    assert {(0.0, 1.0, None)} == {
        (row["error_change_low"] + row["error_change_high"], row["p_holm"], row["better"]) for row in rows
    }


def test_the_answer_is_a_sentence_and_a_table_that_fits_80_columns(ask: Ask):
    """Who is better, by how much, and whether that is more than chance; programs get the numbers alone."""
    mean, *corruptions = json.loads(ask("norm", "source", "--json").stdout)
    shown = ask("norm", "source").stdout

    assert shown.startswith(
        f"norm is better than source by {100 * mean['error_change']:.1f} points, more than chance: "
    )
    assert ["gaussian_noise", "contrast", "clean"] == [row["corruption"] for row in corruptions]
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"^corruption +error +error +gain +better +\(Holm\) +from$", shown, re.MULTILINE)
    assert "error_change_low" in ask("norm", "source", "--format", "csv").stdout
    assert "only_a_wrong" in ask("norm", "source", "--wide", "--format", "markdown").stdout
    assert "% norm is better" in ask("norm", "source", "--format", "latex").stdout


def test_the_severities_of_a_corruption_are_one_test_over_its_photographs(sweep: Project, ask: Ask):
    """A photograph has one value, its mean over the severities, so 300 samples are 150 images."""
    (pooled,) = json.loads(ask("norm", "source", "--corruption", "contrast", "--json").stdout)
    numbers = [number for number, cell in enumerate(SMALL_CELLS) if cell.corruption == "contrast"]
    norm, source = ([wrong_of(sweep, name, number) for number in numbers] for name in ("norm", "source"))
    means = [np.mean([s[key] - n[key] for n, s in zip(norm, source, strict=True)]) for key in sorted(norm[0])]

    assert (2, 150, 300) == (pooled["num_cells"], pooled["num_images"], pooled["num_samples"])
    assert pooled["error_change"] == pytest.approx(np.mean(means))
    interval = bootstrap_means(np.array(means), np.random.default_rng(0))
    assert percentile_interval(interval) == pytest.approx((pooled["error_change_low"], pooled["error_change_high"]))
    assert pooled["p_value"] == pooled["p_holm"]
    assert " on contrast" in ask("norm", "source", "--corruption", "contrast").stdout
    assert "(gaussian_noise, contrast, clean)" in " ".join(ask("norm", "source", "--corruption", "frog").output.split())


def test_what_each_class_loses_adds_up_to_what_all_lose(ask: Ask):
    """Each sample has one class; the largest change comes first."""
    asked = ("norm", "source", "--corruption", "contrast")
    pooled, *classes = json.loads(ask(*asked, "--classes", "--json").stdout)
    _, *cells = json.loads(ask(*asked, "--cells", "--json").stdout)

    assert set("0123456789") == {row["class_name"] for row in classes}
    for name in ("num_samples", "only_a_wrong", "only_b_wrong"):
        assert pooled[name] == sum(row[name] for row in classes) == sum(row[name] for row in cells)
    changes = [abs(row["error_change"]) for row in classes]
    assert sorted(changes, reverse=True) == changes
    heading, first = ask(*asked, "--classes").stdout.splitlines()[-12:-10]
    assert ["class", "all"] == [heading.split()[0], first.split()[0]]


def found_over(project: Project, tent_seeds: tuple[int, ...], other: str) -> CommonCells:
    """Return the common cells of tent, as if each seed had shuffled it, and of another experiment in stored order."""
    locations = project.locations
    benchmark = load_all_benchmarks(locations).benchmark("small")
    tent = read_experiment(locations.root, locations.results("small") / PLANS / "tent.json")
    shuffled = [of_seed(stored, seed) for seed in tent_seeds for stored in tent.stored]
    b = ExperimentResults(benchmark=benchmark, experiment_name=other, locations=locations)
    return CommonCells.find(replace(tent, stored=tuple(shuffled)), b, benchmark, locations)


def of_seed(stored: StoredResult, seed: int) -> StoredResult:
    """Return *stored* as the result of an order that *seed* shuffled."""
    cells = [
        replace(row.cell, seed=seed, stream_order="shuffled", order_hash=f"{seed}" * 64)
        for row in stored.result.evaluations
    ]
    rows = [replace(row, cell=cell) for row, cell in zip(stored.result.evaluations, cells, strict=True)]
    return replace(stored, result=replace(stored.result, evaluations=tuple(rows)))


def test_who_compares_on_some_of_the_seeds_is_told(sweep: Project, capsys: pytest.CaptureFixture[str]):
    """The mean of all seeds, in the leaderboard, is another one; and the stored order is that of no seed."""
    say_seeds(found_over(sweep, (0,), "norm"))
    say_seeds(found_over(sweep, (0, 1), "norm"))

    said = "compared seed 0 of tent (of its seeds 0, 1) with the stored order of norm\n"
    assert said == capsys.readouterr().err


def test_the_source_model_is_compared_on_every_seed(sweep: Project, capsys: pytest.CaptureFixture[str]):
    """It predicts the same in every order, so that its one run serves for all."""
    found = found_over(sweep, (1, 2), "source")
    answer = found.pair(quiet_reporter).pooled()
    say_seeds(found)

    assert (2, 1200, True, 0) == (answer.num_seeds, answer.num_samples, answer.same_order, found.num_unfinished)
    assert "compared on seeds 1, 2: source predicts the same on every seed\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "points", "passes"),
    [
        (("source", "norm"), "0", True),  # the second is better, more than chance
        (("norm", "source"), "1", False),
        (("norm", "source"), "above", True),
        (("norm", "source"), "below", False),
        (("tent", "tent"), "0", False),  # equal predictions do not show that other images would have equal ones
    ],
)
def test_a_ci_fails_unless_the_second_is_shown_to_be_no_worse(ask: Ask, names: tuple, points: str, *, passes: bool):
    """The upper bound decides, and a line says so; the answer is as it is without the option."""
    asked = (*names, "--benchmark", "small", "--json")
    plain = ask(*asked)
    high = 100 * json.loads(plain.stdout)[0]["error_change_bound"]
    points = {"above": f"{high + 0.01}", "below": f"{high - 0.01}"}.get(points, points)

    done = ask(*asked, "--fail-if-worse", points)

    assert (0, 0 if passes else 1) == (plain.exit_code, done.exit_code)
    assert plain.stdout == done.stdout
    verdict = done.stderr.splitlines()[-1]
    assert verdict.startswith("passed" if passes else "failed")
    assert verdict.endswith(f"{high:+.2f}")


def test_a_ci_can_ask_about_one_corruption(ask: Ask):
    """Whose severities are one test, with an interval of their own."""
    asked = ("norm", "source", "--benchmark", "small", "--corruption", "contrast")
    (pooled,) = json.loads(ask(*asked, "--json").stdout)

    found = [ask(*asked, "--fail-if-worse", f"{100 * pooled['error_change_bound'] + more}") for more in (-0.01, 0.01)]

    assert [1, 0] == [each.exit_code for each in found]
    assert all(" on contrast " in each.stderr for each in found)


@pytest.mark.parametrize("named", [(), ("--benchmark", "small")], ids=["no benchmark", "a benchmark"])
def test_a_ci_is_not_answered_by_what_happens_to_be_there(sweep: Project, tmp_path: Path, named: tuple[str, ...]):
    """Where other files are faulty, or have experiments of these names, the benchmark must be named."""
    project = copied_results(sweep, tmp_path)
    project.add_benchmark("other", SMALL.replace("title:", "titel:"))
    asked = ["compare", "source", "norm", "--fail-if-worse", "1", *named]

    found = CliRunner().invoke(main, asked, env=project.environment)

    assert (0 if named else 2) == found.exit_code


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cells", "--classes"), "--cells and --classes"),
        (("--runs", "--cells"), "expected these options only with experiments"),
        (("--runs", "--fail-if-worse", "1"), "experiments"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(ask: Ask, options: tuple[str, ...], said: str):
    """By name."""
    refused = ask("norm", "source", *options)

    assert 2 == refused.exit_code
    assert said in in_one_line(refused.output)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("tent", "tent_continual"), "tent has no results by its current code, data and settings"),
        (("tnt", "norm"), "no experiment tnt; expected one of"),
        (("tent", "norm", "--benchmark", "smal"), "no benchmark 'smal'"),
        (("tent", "tent_mixed", "--benchmark", "small"), "no experiment tent_mixed; expected one of"),
    ],
)
def test_experiments_without_common_results_are_refused(ask: Ask, names: tuple[str, ...], said: str):
    """By name, and a name that no benchmark has, or not the one that is asked for, with the nearest ones."""
    refused = ask(*names)

    assert refused.exit_code
    assert said in in_one_line(refused.output)
