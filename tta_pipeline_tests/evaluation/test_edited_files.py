"""Results after edits of a benchmark file: what counts is what the present file asks for, as in a fresh data root."""

import copy
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ManifestError
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.inputs import Inputs, SharedCache
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.run_experiment import run_experiment, update_plan
from tta_pipeline.report.plan_notes import plan_notes
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import ensure_current, publish_metrics
from tta_pipeline_tests.conftest import SMALL, Project
from tta_pipeline_tests.evaluation.conftest import copy_small
from tta_pipeline_tests.result_paths import result_paths

CONTENT = {
    **yaml.safe_load(SMALL),
    "experiments": {
        "tent": {"model": "cnn", "method": "tent", "preset": "cifar", "batch_size": 32, "subset": {"first": 64}},
        "rising": {
            "model": "cnn", "method": "norm", "batch_size": 32, "subset": {"first": 64},
            "protocol": {"shift": "continual", "order": "shuffled"},
        },
    },
}  # fmt: skip
Change = Callable[[dict[str, Any]], None]


def in_experiment(name: str, **fields: object) -> Change:
    """Return the edit that gives *fields* to the experiment *name*."""

    def edit(content: dict[str, Any]) -> None:
        content["experiments"][name] |= copy.deepcopy(fields)

    return edit


def in_protocol(**fields: object) -> Change:
    """Return the edit that gives *fields* to the protocol of the stream."""

    def edit(content: dict[str, Any]) -> None:
        content["experiments"]["rising"]["protocol"] |= fields

    return edit


def in_file(**fields: object) -> Change:
    """Return the edit that gives *fields* to the file."""
    return lambda content: content.update(copy.deepcopy(fields))


def renamed(content: dict[str, Any]) -> None:
    """Give an experiment another name."""
    content["experiments"]["adapted"] = content["experiments"].pop("tent")


EDITS: dict[str, Change] = {
    "corruptions in another order": in_file(corruptions=["contrast", "gaussian_noise"]),
    "a corruption less": in_file(corruptions=["contrast"]),
    "a severity less": in_file(severities=[5]),
    "a severity less in an experiment": in_experiment("rising", severities=[3]),
    "a set of one's own": in_file(
        custom={"names": ["contrast", "gaussian_noise"], "severities": [3, 5], "held_out": ["gaussian_noise"]}
    ),
    "recurring": in_protocol(recurring=2),
    "recurring, then less": in_protocol(recurring=3),
    "mixed": in_protocol(shift="mixed"),
    "gradual": in_protocol(shift="gradual"),
    "by cell": in_protocol(shift="reset_each_shift"),
    "by class": in_protocol(order="by_class"),
    "a few classes a batch": in_protocol(order="by_class", classes_per_batch=2),
    "dynamic": in_protocol(shift="dynamic"),
    "dynamic, more visits": in_protocol(shift="dynamic", visits=5),
    "dirichlet": in_protocol(order="dirichlet", delta=0.1),
    "stored": in_protocol(order="stored"),
    "corruptions by seed": in_protocol(corruption_order="seeded"),
    "back to clean images": in_protocol(clean="at_end"),
    "clean images in between": in_protocol(clean="after_each"),
    "a window": lambda content: (
        in_protocol(sliding_window=4)(content),
        in_experiment("rising", batch_size=1)(content),
    ),
    "predicted after the update": in_experiment(
        "tent", protocol={"shift": "reset_each_shift", "predict_after_update": True}
    ),
    "seeds": in_experiment("rising", seeds=[0, 1]),
    "other seeds": in_experiment("rising", seeds=[1, 2]),
    "another seed": in_experiment("tent", seed=3),
    "another subset": in_experiment("tent", subset={"first": 32}),
    "a random subset": in_experiment("rising", subset={"random": 64}),
    "a long tail": in_experiment("rising", subset={"imbalance_factor": 10}),
    "no subset": in_experiment("tent", subset=None),
    "hyperparameters": in_experiment("tent", hyperparameters={"lr": 0.01}),
    "another preset": in_experiment("tent", preset="imagenet"),
    "another method": in_experiment("tent", method="norm"),
    "a smaller batch": in_experiment("rising", batch_size=16),
    "precision": in_experiment("rising", precision="bf16"),
    "an experiment less": lambda content: content["experiments"].pop("tent"),
    "another name": renamed,
}  # fmt: skip
ROWS_COLUMNS = (
    "experiment", "dataset", "seed", "stream", "position", "visit", "corruption", "severity", "shift_position",
    "counts_in_mean", "subset", "method", "protocol", "num_samples", "error", "ece", "predictions_sha256",
)  # fmt: skip
ROWS = f"SELECT {', '.join(ROWS_COLUMNS)} FROM evaluations WHERE counts ORDER BY ALL"
MEANS = """
SELECT experiment, dataset, subset, method, protocol, num_cells, num_runs,
       round(mean_error, 12), round(mean_error_at_5, 12), round(clean_error, 12), round(mean_ece, 12), num_cells_asked
FROM leaderboard ORDER BY ALL
"""
"""Rounded: the order in which a database adds numbers decides the last digit of a mean."""
Rows = tuple[list[Any], list[Any]]
MACHINE = Machine(device="cpu", decode_threads=1)


class Root:
    """A data root with a benchmark file that is edited, and what has been measured of it."""

    def __init__(self, root: Path, shards: Locations, *, with_results: bool = False) -> None:
        self.locations = copy_small(shards.root, root, with_results=with_results)
        self._num_copied = len(result_paths(root))

    @property
    def num_evaluated(self) -> int:
        """Number of results that were written here so far."""
        return len(result_paths(self.locations.root)) - self._num_copied

    def write(self, content: dict[str, Any]) -> None:
        """Write the benchmark file."""
        self.locations.benchmark_files.mkdir(exist_ok=True)
        (self.locations.benchmark_files / "small.yaml").write_text(yaml.safe_dump(content))

    @property
    def benchmark(self) -> Benchmark:
        """The benchmark as its file is now."""
        loaded = load_all_benchmarks(self.locations)
        assert not loaded.faults, loaded.faults
        return loaded.benchmark("small")

    def evaluate(self, which: Callable[[], bool] = lambda: True) -> Rows:
        """Evaluate the streams of the file for which *which* is true, publish, and return what counts."""
        self.run(which)
        return self.counting()

    def run(self, which: Callable[[], bool] = lambda: True) -> None:
        """Evaluate these streams, and publish nothing."""
        known = SharedCache()
        for results in self.experiments():
            keys = [key for key in results.keys if which()]
            run_experiment(results, keys, machine=MACHINE, run_id="test", tell=lambda _: None, known=known)

    def ask(self) -> Rows:
        """Write the plans of the file as it is now, as `run --dry-run` does, and return what counts by them."""
        known = SharedCache()
        for results in self.experiments():
            update_plan(Inputs(experiment=results, machine=MACHINE, known=known))
        return self.counting()

    def experiments(self) -> Iterator[ExperimentResults]:
        """Yield the experiments of the file."""
        benchmark = load_all_benchmarks(self.locations).benchmarks["small"]
        for name in benchmark.experiments:
            yield ExperimentResults(benchmark=benchmark, experiment_name=name, locations=self.locations)

    def counting(self) -> Rows:
        """Return the evaluations that count by the plans, and their means, as the verb `leaderboard` does."""
        ensure_current(self.locations)
        with open_metrics(self.locations.metrics) as connection:
            return connection.execute(ROWS).fetchall(), connection.execute(MEANS).fetchall()

    def counting_files(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return experiment and file of what counts in the database, and for comparisons, which read the files."""
        with open_metrics(self.locations.metrics) as connection:
            rows = connection.execute("SELECT experiment, file FROM evaluations WHERE counts").fetchall()
        on_disk = [
            (cell.row.labels.experiment, str(cell.path.relative_to(self.locations.results_root)))
            for results in self.experiments()
            for key in results.keys
            for cell in results.counted_cells(key)
        ]
        return sorted((name, file.removeprefix("results/")) for name, file in rows), sorted(on_disk)

    def notes(self) -> str:
        """Return what a reader of the leaderboard is told about plans."""
        with open_metrics(self.locations.metrics) as connection:
            return "\n".join(plan_notes(connection, self.locations))


@pytest.fixture(scope="module")
def shards(sweep: Project) -> Locations:
    """The shards and the model of the small benchmark; not to be changed."""
    return sweep.locations


@pytest.fixture(scope="module")
def fresh(shards: Locations, tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Rows]:
    """Function that returns what counts in a fresh data root in which a file is evaluated once."""
    known: dict[str, Rows] = {}

    def of(content: dict[str, Any]) -> Rows:
        text = yaml.safe_dump(content)
        if text not in known:
            root = Root(tmp_path_factory.mktemp("fresh"), shards)
            root.write(content)
            assert root.benchmark.experiments
            known[text] = root.evaluate()
        return known[text]

    return of


@pytest.fixture(scope="module")
def first(shards: Locations, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A data root with the results of the file as it was at first; not to be changed."""
    found = Root(tmp_path_factory.mktemp("first"), shards)
    found.write(CONTENT)
    found.evaluate()
    return found


@pytest.fixture(scope="module")
def before(first: Root) -> Rows:
    """What counts there."""
    return first.counting()


@pytest.fixture
def root(first: Root, tmp_path: Path) -> Root:
    """A data root of one's own with these results."""
    shutil.copytree(first.locations.root / "benchmarks", tmp_path / "benchmarks")
    shutil.copy(first.locations.metrics, tmp_path)
    return Root(tmp_path, first.locations, with_results=True)


def edited(content: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return *content* after the edits with these names."""
    after = copy.deepcopy(content)
    for name in names:
        EDITS[name](after)
    return after


COMMON: tuple[tuple[str, ...], ...] = (
    ("corruptions in another order", "another name", "a severity less"),
    ("recurring", "seeds", "hyperparameters"), ("a set of one's own", "mixed", "another subset"),
)  # fmt: skip
"""Edits that are tried with every change of the code, of the stream and of the other experiment at once: a stream in
another order beside a name and cells that stay, runs that stay, and a file of which nothing stays."""


@pytest.mark.parametrize(
    "names",
    [*COMMON, *(pytest.param((name,), marks=pytest.mark.slow) for name in EDITS if (name,) not in COMMON)],
    ids=" and ".join,
)
def test_what_counts_after_an_edit_is_what_counts_in_a_fresh_data_root(
    root: Root, before: Rows, fresh: Callable[[dict[str, Any]], Rows], names: tuple[str, ...]
):
    """Whatever is edited: the same cells and means; and after the edit is taken back, nothing is evaluated twice.

    Once the plan is of the edited file, what it still asks for counts before anything is evaluated, under the names of
    the present file. What counts follows from results and plans alone: a rebuild decides as a publication does.
    """
    expected = fresh(edited(CONTENT, *names))
    root.write(edited(CONTENT, *names))

    asked_rows = root.ask()[0]
    assert set(asked_rows) <= set(expected[0])
    asked, stays = unlabelled(asked_rows), unlabelled(before[0]) & unlabelled(expected[0])
    assert asked <= stays
    assert asked == stays or not any("continual" in row for row in asked)  # another stream may predict the same
    assert expected == root.evaluate()
    num_evaluated = root.num_evaluated
    root.run()
    publish_metrics(root.locations, rebuild=True)
    assert expected == root.counting()
    in_database, on_disk = root.counting_files()
    assert in_database == on_disk

    root.write(CONTENT)
    assert before == root.ask()
    root.run()
    assert num_evaluated == root.num_evaluated


def unlabelled(rows: list[Any]) -> set[Any]:
    """Return *rows* without what a file calls them: the names of experiment and set, the place in the set."""
    labels = {ROWS_COLUMNS.index(name) for name in ("experiment", "dataset", "shift_position", "counts_in_mean")}
    return {tuple(value for at, value in enumerate(row) if at not in labels) for row in rows}


def test_an_edit_counts_when_the_plan_is_written_and_is_said_before(root: Root, before: Rows):
    """Until then the leaderboard is of what the last run asked for, and says so."""
    root.write(edited(CONTENT, "a severity less"))

    assert before == root.counting()
    assert "small.yaml of small was edited since the last run" in root.notes()
    assert before[0] != root.ask()[0]
    assert {0, 5} == {row[ROWS_COLUMNS.index("severity")] for row in root.counting()[0]}
    assert "edited" not in root.notes()


@pytest.mark.parametrize(
    ("section", "edit"),
    [
        ("shards", {"resize": 24}),
        ("shards", {"center_crop": 24}),
        ("shards", {"format": "tensor"}),
        ("shards", {"order": "by_class"}),
        ("shards", {"seed": 1}),
        ("images", {"seed": 1}),
        ("images", {"severity_table": "cifar_c"}),
    ],
    ids=str,
)
def test_shards_that_are_not_what_the_file_asks_for_are_not_evaluated(root: Root, section: str, edit: dict[str, Any]):
    """Nothing is called finished: an edit that decides pixels, or their stored order, needs other shards."""
    root.write({**CONTENT, section: {**CONTENT[section], **edit}})
    ((_, asked),) = edit.items()

    with pytest.raises(ManifestError, match=rf"manifest\.json.*\b{asked}\b.*tar_shards"):
        root.evaluate()

    assert 0 == root.num_evaluated


def test_how_many_shards_there_are_decides_no_pixel(root: Root):
    """Such an edit needs no other shards, and cells stay finished."""
    root.write({**CONTENT, "shards": {"samples_per_shard": 30}})

    root.evaluate()

    assert 0 == root.num_evaluated


def test_results_stay_where_the_file_is_gone_or_cannot_be_read(root: Root, before: Rows):
    """The plans are those of the last run; the leaderboard says that the file is another one."""
    root.write({**CONTENT, "image_size": "large"})
    assert before == root.counting()
    assert "small.yaml of small was edited since the last run" in root.notes()
    (root.locations.benchmark_files / "small.yaml").unlink()
    assert before == root.counting()


def test_a_faulty_experiment_keeps_its_plan(root: Root, before: Rows):
    """A run of the others drops no plan of an experiment that the file still names."""
    faulty = edited(CONTENT)
    faulty["experiments"]["tent"]["batch_size"] = -1
    root.write(faulty)

    assert before == root.evaluate()
    assert 0 == root.num_evaluated


def random_edits(seed: int) -> Iterator[tuple[str, ...]]:
    """Yield the edits that make each file of a long history; most files keep some of those before."""
    draw = random.Random(seed)
    names: list[str] = []
    while True:
        for name in draw.sample(list(EDITS), draw.randint(1, 2)):
            names.remove(name) if name in names else names.append(name)
        del names[: max(0, len(names) - 4)]
        yield tuple(names)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_history_of_edits_gives_a_wrong_mean(
    root: Root, before: Rows, fresh: Callable[[dict[str, Any]], Rows], seed: int
):
    """50 edits each, some evaluated in part, and back; a file that cannot be is skipped, as a user would correct it.

    What is finished is never evaluated again: after each edit, and after all of them are taken back.
    """
    draw, num_edits = random.Random(seed), 0
    for names in random_edits(seed):
        try:
            content = edited(CONTENT, *names)
            root.write(content)
            _ = root.benchmark
        except (AssertionError, KeyError):
            continue
        expected = fresh(content)
        assert set(root.ask()[0]) <= set(expected[0]), names
        if draw.random() < 0.3:
            part, _ = root.evaluate(lambda: draw.random() < 0.5)
            assert set(part) <= set(expected[0]), names
        assert expected == root.evaluate(), names
        num_evaluated = root.num_evaluated
        assert expected == root.evaluate(), names
        assert num_evaluated == root.num_evaluated, names
        num_edits += 1
        if num_edits == 50:
            break
    root.write(CONTENT)
    assert before == root.evaluate()
    assert num_evaluated == root.num_evaluated
