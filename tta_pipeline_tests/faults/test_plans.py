"""What must hold when plans are damaged, exchanged or copied: no number changes, and what is put back counts."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.results.database.changes import open_if_current
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.plans import plan_path
from tta_pipeline_tests.conftest import Project, copied_results
from tta_pipeline_tests.results.database.made import record

TABLE = "SELECT experiment, num_cells, num_cells_asked, mean_error FROM leaderboard ORDER BY ALL"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root whose database has one evaluation of each of three experiments; not to be changed."""
    locations = Locations(root=tmp_path_factory.mktemp("three"))
    for number, name in enumerate(("norm", "source", "tent")):
        record(locations, benchmark="small", experiment=name, error=0.25 * (1 + number))
    publish_metrics(locations)
    return locations.root


@pytest.fixture
def locations(three: Path, tmp_path: Path) -> Locations:
    """A copy of it."""
    return Locations(root=shutil.copytree(three, tmp_path / "data"))


def published(locations: Locations) -> tuple[list[tuple[object, ...]], tuple[str, ...]]:
    """Publish; return the leaderboard, and what is set aside. Another publication would change nothing."""
    set_aside = publish_metrics(locations).set_aside
    with open_if_current(locations) as connection:
        assert connection
        return connection.execute(TABLE).fetchall(), set_aside


def test_copies_of_results_and_of_a_plan_are_named_in_a_line_each_and_change_nothing(locations: Locations):
    """A folder under another name, a plan under that of another experiment: they ask for nothing, there or gone."""
    before, none = published(locations)
    assert () == none
    folder = shutil.copytree(locations.results("small"), locations.results("small_backup"))
    plan = Path(shutil.copy(plan_path(locations, "small", "tent"), plan_path(locations, "small", "tent_copy")))

    while_there, said = published(locations)
    shutil.rmtree(folder)
    plan.unlink()

    assert before == while_there
    (of_folder,) = [line for line in said if not line.startswith(str(plan))]
    assert 2 == len(said)
    assert "belongs to small; expected the folder results/small" in of_folder
    assert (before, ()) == published(locations)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:100],
    "empty": lambda _: b"",
    "another_experiment": lambda data: data.replace(b'"experiment":"another_experiment"', b'"experiment":"tent"'),
    "another_benchmark": lambda data: data.replace(b'"benchmark":"another_benchmark"', b'"benchmark":"small"'),
    "another_version": lambda data: data.replace(b'"format":1', b'"format":0'),
}
"""What is done to the plan of the experiment of this name, in a benchmark of this name: each has a line of its own."""


@dataclass(frozen=True)
class Answers:
    """What the publications before, during and after the damages gave: rows by experiment, and what is set aside."""

    before: dict[object, tuple[object, ...]]
    meanwhile: dict[object, tuple[object, ...]]
    after: dict[object, tuple[object, ...]]
    paths: dict[str, Path]
    said: tuple[str, ...]
    rebuilt: tuple[str, ...]
    said_after: tuple[str, ...]


@pytest.fixture(scope="module")
def answers(three: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Of a data root where one plan is damaged in each way, and the others not."""
    locations = Locations(root=shutil.copytree(three, tmp_path_factory.mktemp("damaged") / "data"))
    for name in DAMAGES:
        record(locations, benchmark=name, experiment=name)
    before, _ = published(locations)
    paths = {name: plan_path(locations, name, name) for name in DAMAGES}
    good = {name: path.read_bytes() for name, path in paths.items()}
    for name, path in paths.items():
        path.write_bytes(DAMAGES[name](good[name]))
        assert good[name] != path.read_bytes()
    meanwhile, said = published(locations)
    rebuilt = publish_metrics(locations, rebuild=True).set_aside
    for name, content in good.items():
        paths[name].write_bytes(content)
    after, said_after = published(locations)
    by_name = ({row[0]: row for row in table} for table in (before, meanwhile, after))
    return Answers(*by_name, paths=paths, said=said, rebuilt=rebuilt, said_after=said_after)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_plan_is_named_and_counts_again_once_it_is_back(answers: Answers, damage: str):
    """Meanwhile its experiment is in no table."""
    assert damage in answers.before
    assert damage not in answers.meanwhile
    assert 1 == sum(line.startswith(str(answers.paths[damage])) for line in answers.said)
    assert answers.before[damage] == answers.after[damage]


def test_damaged_plans_change_no_other_experiment(answers: Answers):
    """A whole rebuild names the same plans, and nothing is named when they are back."""
    assert {name: row for name, row in answers.before.items() if name not in DAMAGES} == answers.meanwhile
    assert len(DAMAGES) == len(answers.said)
    assert sorted(answers.said) == sorted(answers.rebuilt)
    assert answers.before == answers.after
    assert () == answers.said_after


def test_exchanged_plans_exchange_no_results(sweep: Project, tmp_path: Path):
    """Neither in the database nor where results are read from their files."""
    locations = copied_results(sweep, tmp_path).locations
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
