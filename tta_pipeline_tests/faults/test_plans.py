"""What must hold when plans are damaged, exchanged or copied: no number changes, and what is put back counts."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.results.database.changes import is_current
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.plans import plan_path
from tta_pipeline_tests.conftest import Project, copied_results

TABLE = "SELECT experiment, num_cells, num_cells_asked, mean_error FROM leaderboard ORDER BY ALL"


@pytest.fixture
def locations(sweep: Project, tmp_path: Path) -> Locations:
    """A copy of the small benchmark with its results."""
    return copied_results(sweep, tmp_path).locations


def published(locations: Locations) -> tuple[list[tuple[object, ...]], tuple[str, ...]]:
    """Publish; return the leaderboard, and what is set aside. Another publication would change nothing."""
    set_aside = publish_metrics(locations).set_aside
    assert is_current(locations)
    with open_metrics(locations.metrics) as connection:
        return connection.execute(TABLE).fetchall(), set_aside


def test_a_copied_folder_of_results_is_named_in_one_line_and_changes_nothing(locations: Locations):
    """Its plans ask for nothing, neither while it is there nor when it is gone again."""
    before, none = published(locations)
    assert () == none
    copy = shutil.copytree(locations.results("small"), locations.results("small_backup"))

    while_there, (said,) = published(locations)
    shutil.rmtree(copy)

    assert before == while_there
    assert "belongs to small; expected the folder results/small" in said
    assert (before, ()) == published(locations)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:100],
    "empty": lambda _: b"",
    "another experiment": lambda data: data.replace(b'"experiment":"tent"', b'"experiment":"norm"'),
    "another benchmark": lambda data: data.replace(b'"benchmark":"small"', b'"benchmark":"large"'),
    "another version": lambda data: data.replace(b'"format":1', b'"format":0'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_plan_is_named_and_counts_again_once_it_is_back(locations: Locations, damage: str):
    """Meanwhile its experiment is in no table, and the others are as they were."""
    before, _ = published(locations)
    path = plan_path(locations, "small", "tent")
    good = path.read_bytes()
    path.write_bytes(DAMAGES[damage](good))
    assert good != path.read_bytes()

    meanwhile, (said,) = published(locations)
    rebuilt = publish_metrics(locations, rebuild=True).set_aside
    path.write_bytes(good)

    assert [row for row in before if row[0] != "tent"] == meanwhile
    assert said.startswith(str(path))
    assert (said,) == rebuilt
    assert (before, ()) == published(locations)


def test_exchanged_plans_exchange_no_results(locations: Locations):
    """Neither in the database nor where results are read from their files."""
    before, _ = published(locations)
    one, other = (plan_path(locations, "small", name) for name in ("norm", "tent"))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)

    meanwhile, set_aside = published(locations)

    assert [row for row in before if row[0] == "source"] == meanwhile
    assert 2 == len(set_aside)
    benchmark = load_benchmark(locations.benchmark_files / "small.yaml")
    for name in ("norm", "tent"):
        results = ExperimentResults(benchmark=benchmark, experiment_name=name, locations=locations)
        assert not results.all_counted_cells()


def test_a_copied_plan_counts_nothing_twice(locations: Locations):
    """Under the name of another experiment it is named, and taking it away takes nothing else."""
    before, _ = published(locations)
    copy = Path(shutil.copy(plan_path(locations, "small", "tent"), plan_path(locations, "small", "tent_copy")))

    while_there, (said,) = published(locations)
    copy.unlink()

    assert before == while_there
    assert said.startswith(str(copy))
    assert (before, ()) == published(locations)
