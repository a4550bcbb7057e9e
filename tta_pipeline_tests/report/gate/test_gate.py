"""The gate of a CI: limits, an earlier result, and what is wrong with either."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from tta_pipeline.benchmarks.gate_settings import LIMITED, OF_CELL, OF_EXPERIMENT
from tta_pipeline.cli import main
from tta_pipeline.report.gate.baseline import judge_against
from tta_pipeline.report.gate.finding import Finding
from tta_pipeline.report.gate.judged_results import JudgedResult, Unit
from tta_pipeline.report.gate.summaries import as_junit, as_markdown
from tta_pipeline.report.significance import paired_tests
from tta_pipeline.report.significance.pairwise import WrongSamples
from tta_pipeline.results.database.database import ensure_current, open_metrics
from tta_pipeline.util.locations import Locations
from tta_pipeline_tests.conftest import SMALL, Project, copied_results


@pytest.fixture(scope="module")
def root(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sweep, without loose images."""
    return copied_results(sweep, tmp_path_factory.mktemp("gate")).locations.root


@pytest.fixture(scope="module")
def published(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its results, as a release has them, with the prediction of each sample."""
    target = tmp_path_factory.mktemp("published") / "release"
    assert ask(root, "results", "publish", "small", str(target), "--predictions").exit_code == 0
    return target


def ask(root: Path, *arguments: str) -> Result:
    """Run a verb on the data root *root*."""
    return CliRunner(env={"TTA_DATA_ROOT": str(root)}).invoke(main, list(arguments))


def gate(root: Path, *arguments: str, experiment: str = "norm") -> tuple[int, list[dict]]:
    """Return the exit status of the gate for one experiment, and its findings."""
    done = ask(root, "gate", "small", "--experiment", experiment, "--json", "--device", "cpu", *arguments)
    return done.exit_code, json.loads(done.stdout)


def test_limits_decide_the_exit_status_and_are_shown_by_a_ci(root: Path, tmp_path: Path):
    """A limit of the leaderboard is one demand, a limit of the evaluations one for each cell; failures are named."""
    junit, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    options = ("--max", "mean_error=1", "--max", "ece=0.0001", "--min", "mean_confidence=0")

    done = ask(root, "gate", "small", "--experiment", "norm", *options, "--junit", str(junit), "--markdown",
               str(markdown), "--device", "cpu")  # fmt: skip

    assert done.exit_code == 1, done.output
    assert "failed: norm at contrast|5: found ece " in done.stdout
    suites = ET.parse(junit).getroot()
    assert (suites.get("tests"), suites.get("failures")) == ("12", "5")
    failed = [case.get("name") for case in suites.iter("testcase") if case.find("failure") is not None]
    assert "contrast|5: ece at most 0.0001" in failed
    summary = markdown.read_text()
    assert summary.startswith("## Gate of small: failed")
    assert "| norm | contrast\\|5 | ece at most 0.0001 | ece " in summary
    assert "| norm | all cells | mean_error at most 1 | mean_error " in summary


def test_kept_limits_have_intervals(root: Path):
    """The mean error over images, and the error of a cell by Clopper and Pearson."""
    status, found = gate(root, "--max", "mean_error=1", "--max", "error=1")

    assert status == 0
    assert all(each["low"] < each["value"] < each["high"] for each in found if each["column"])


def test_every_limit_is_a_column(root: Path):
    """Of the leaderboard, or of the evaluations with their estimated errors."""
    ensure_current(Locations(root=root))
    with open_metrics(Locations(root=root).metrics) as connection:
        columns = [
            {name for name, *_ in connection.execute(f"DESCRIBE FROM {view}").fetchall()}
            for view in ("leaderboard", "latest_evaluations", "estimated_errors")
        ]

    assert set(OF_EXPERIMENT) <= columns[0]
    assert set(OF_CELL) <= columns[1] | columns[2]
    assert len(LIMITED) == len(OF_EXPERIMENT) + len(OF_CELL)


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (["--max", "mean_eror=0.4"], "did you mean mean_error"),
        (["--max", "auroc=0.4"], "expected min"),
        (["--max", "mean_error"], "expected COLUMN=NUMBER"),
        (["--max", "mean_error=nan"], "finite"),
        ([], "found no demand"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_demand_that_means_nothing_is_refused(root: Path, options: Sequence[str], answer: str):
    """Before anything is judged, with the nearest name."""
    done = ask(root, "gate", "small", *options)

    assert done.exit_code == 2
    assert answer in done.stderr


def test_a_value_that_is_not_known_fails(root: Path):
    """Images that are made here have no mCE, and the gate does not pass in silence."""
    status, found = gate(root, "--max", "mce=90")

    assert (status, found[-1]["is_kept"], found[-1]["reason"][:8]) == (1, False, "no value")


def test_the_same_evaluation_is_no_worse(root: Path, published: Path):
    """However few the images: nothing that decides a prediction differs."""
    status, found = gate(root, "--no-worse-than", str(published))

    assert (status, found[-1]["value"]) == (0, 0)
    assert "the same evaluation" in found[-1]["test"]


def test_no_worse_is_a_paired_test_with_a_margin(root: Path, published: Path):
    """The same figures pass with one margin and fail with a smaller one; an experiment is judged as its folder is."""
    of_folder, of_experiment = (
        [gate(root, "--no-worse-than", of, "--margin", margin, experiment="source") for margin in ("0.001", "0.9")]
        for of in (str(published / "norm"), "norm")
    )

    assert [status for status, _ in of_folder] == [1, 0]
    last = of_folder[0][1][-1]
    assert last["low"] <= last["value"] <= last["high"]
    assert last["test"].startswith("paired")
    assert [{**each[1][-1], "demand": ""} for each in of_folder] == [
        {**each[1][-1], "demand": ""} for each in of_experiment
    ]


def test_without_predictions_of_each_sample_the_test_is_unpaired(root: Path, tmp_path: Path):
    """It says so, and its interval is wider."""
    assert ask(root, "results", "publish", "small", str(tmp_path / "bare"), "--experiment", "source").exit_code == 0

    _, found = gate(root, "--no-worse-than", str(tmp_path / "bare" / "source"))
    _, paired = gate(root, "--no-worse-than", "source")

    assert found[-1]["test"].startswith("unpaired, from counts")
    assert found[-1]["value"] == pytest.approx(paired[-1]["value"])
    assert found[-1]["high"] > paired[-1]["high"]


def edit(folder: Path, field: str) -> None:
    """Change a hash of the first cell of the published result in *folder*."""
    path = folder / "result.json"
    content = json.loads(path.read_text())
    content["cells"][0][field] = "0" * 64
    path.write_text(json.dumps(content))


def test_a_missing_or_stale_baseline_fails(root: Path, published: Path, tmp_path: Path):
    """With what is wrong: no result of the experiment, a result of other shards, predictions of another result."""
    folder = Path(shutil.copytree(published, tmp_path / "release"))
    shutil.rmtree(folder / "source")
    edit(folder / "norm", "manifest_sha256")
    edit(folder / "tent", "predictions_sha256")

    done = ask(root, "gate", "small", "--no-worse-than", str(folder), "--json", "--device", "cpu")
    reasons = {each["experiment"]: each["reason"] for each in json.loads(done.stdout) if not each["is_kept"]}

    assert done.exit_code == 1
    assert "cannot be read" in reasons["source"]
    assert "stale" in reasons["norm"]
    assert "publish the results again" in reasons["tent"]
    assert "found no folder nowhere" in gate(root, "--no-worse-than", "nowhere")[1][-1]["reason"]


def test_unfinished_and_stale_cells_fail(root: Path, tmp_path: Path):
    """A cell without a record is missing; after a change of settings each cell is stale; neither is judged further."""
    there = Path(shutil.copytree(root, tmp_path / "data"))
    shutil.rmtree(there / "small" / "results" / "evaluations" / "norm" / "contrast-5")
    _, found = gate(there, "--max", "mean_error=1")
    assert [(each["cell"], each["reason"]) for each in found] == [("contrast|5", "no result: evaluate it")]
    assert "no present result" in gate(there, "--no-worse-than", "norm", experiment="tent")[1][-1]["reason"]

    (there / "benchmarks" / "small.yaml").write_text(SMALL.replace("tent, preset: cifar, batch_size: 32", "tent"))
    status, found = gate(there, "--max", "mean_error=1", experiment="tent")
    assert (status, len(found)) == (1, 5)
    assert all("stale" in each["reason"] and "tta-pipeline why small tent" in each["reason"] for each in found)


def test_the_section_of_the_file_is_the_gate(root: Path, tmp_path: Path):
    """It decides no result, and an option replaces its field."""
    there = Path(shutil.copytree(root, tmp_path / "data"))
    section = {"max": {"mean_error": 0.0}, "no_worse_than": "source", "margin": 0.9, "experiments": ["norm"]}
    with (there / "benchmarks" / "small.yaml").open("a") as file:
        file.write("gate:\n" + indent(yaml.safe_dump(section), "  "))

    kept = [ask(there, "gate", "small", "--device", "cpu", *more) for more in ((), ("--max", "mean_error=1"))]

    assert [done.exit_code for done in kept] == [1, 0]
    assert kept[1].stdout.splitlines()[-1] == "small: passed: 3 of 3 demands are kept"


def results(*, shares: Sequence[float], seed: int, size: int = 200) -> dict[Unit, JudgedResult]:
    """Return results of cells with the same images, each wrong with one of *shares*."""
    generator = np.random.default_rng(seed)
    found = {}
    for number, share in enumerate(shares):
        is_wrong = generator.random(size) < share
        found[f"fog|{number}", 0, 0, f"fog|{number}"] = JudgedResult(
            in_mean=True, num_samples=size, num_correct=int((~is_wrong).sum()), manifest_sha256="m", subset_sha256=None,
            decided_by=str(seed), predictions_sha256=str(seed),
            wrong=WrongSamples(samples="s", images="i", in_mean=True, is_wrong=is_wrong),
        )  # fmt: skip
    return found


def judged(own: dict[Unit, JudgedResult], baseline: dict[Unit, JudgedResult], margin: float) -> Finding:
    """Return what the gate says of *own*."""
    return judge_against("own", own, baseline, named="other", margin=margin)


@pytest.mark.parametrize("is_paired", [True, False])
def test_a_result_that_is_worse_by_the_margin_passes_seldom(monkeypatch: pytest.MonkeyPatch, *, is_paired: bool):
    """In at most 2.5 % of cases, beyond chance in 60 repeats; a result that is as good passes nearly always."""
    monkeypatch.setattr(paired_tests, "NUM_DRAWS", 1_000)  # enough for 60 repeats
    cases = [(results(shares=[0.3, 0.2], seed=2 * n), results(shares=[0.2, 0.1], seed=2 * n + 1)) for n in range(60)]
    if not is_paired:
        cases = [tuple({u: replace(r, wrong=None) for u, r in each.items()} for each in case) for case in cases]

    assert sum(judged(own, baseline, 0.1).is_kept for own, baseline in cases) <= 6
    assert sum(judged(own, baseline, 0.25).is_kept for own, baseline in cases) >= 57


def test_a_baseline_without_the_cells_or_the_samples_fails():
    """The cells that it has decide nothing about the others."""
    own, baseline = results(shares=[0.1, 0.1], seed=0), results(shares=[0.1, 0.1], seed=1)
    few = results(shares=[0.1, 0.1], seed=1, size=100)

    assert "no result of fog|1" in judged(own, dict(list(baseline.items())[:1]), 0.9).reason
    assert "100 samples of fog|0, and the experiment 200" in judged(own, few, 0.9).reason


def test_without_findings_nothing_is_passed_and_odd_text_is_shown():
    """A sentence may hold what XML and a table of Markdown cannot."""
    odd = Finding(experiment="a", cell="fog|5", demand="x < 1 & more", is_kept=False, test="t", reason="a\x01|\nb")

    assert ET.fromstring(as_junit("small", [odd])).find(".//failure") is not None
    assert "a\x01\\| b" in as_markdown("small", [odd])
    assert "failed" in as_markdown("small", [])
