"""The sensor of new cells, over real folders and archives."""

import shutil
import tarfile
from pathlib import Path

import dagster as dg

from tta_pipeline.benchmarks.cell_ranges import cell_ranges
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.domain.cells import Cell
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import Project, write_tree
from tta_pipeline_tests.defs.in_process import code_location
from tta_pipeline_tests.defs.test_sources import CELLS, REST

START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


class Looks:
    """A sensor that looks again and again."""

    def __init__(self, project: Project) -> None:
        self.definitions = code_location(project.locations)
        self._repository = self.definitions.get_repository_def()
        self._cursor: str | None = None

    def again(self) -> list[dg.RunRequest]:
        """Look once more, and return what is requested."""
        resources = {"store": self.definitions.resources["store"]}
        context = dg.build_sensor_context(cursor=self._cursor, repository_def=self._repository, resources=resources)
        data = self._repository.get_sensor_def("any__new_cells").evaluate_tick(context)
        self._cursor = data.cursor
        return list(data.run_requests or ())

    def ranges(self) -> list[tuple[str, str]]:
        """Look once more, and return first and last cell of the runs that are requested."""
        return [(request.tags[START], request.tags[END]) for request in self.again() if START in request.tags]


def test_new_folders_are_observed_and_sharded_when_they_are_complete(project: Project, tmp_path: Path):
    """A folder that has its shards is nothing new; a new one is requested once, when it no longer changes."""
    root = tmp_path / "tree"
    write_tree(root / "fog/1", classes={"n01": 2, "n02": 2})
    project.locations.shards("any", CELLS[0]).mkdir(parents=True)
    project.add_benchmark("any", REST + f"{{kind: folder, root: {root}}}")
    looks = Looks(project)
    assert [[], []] == [looks.again() for _ in range(2)]

    write_tree(root / "fog/5", classes={"n01": 2})
    assert [] == looks.again()
    write_tree(root / "fog/5", classes={"n02": 2})
    assert [] == looks.again()
    observation, shards = looks.again()

    assert [dg.AssetKey(["any", "images"])] == observation.asset_selection
    assert ("fog|5", "fog|5") == (shards.tags[START], shards.tags[END])
    assert [] == looks.again()
    job = looks.definitions.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        for request in (observation, shards):
            finished = job.execute_in_process(
                instance=instance, asset_selection=list(request.asset_selection), tags=dict(request.tags)
            )
            assert finished.success
    assert 4 == ShardSet.open(project.locations.shards("any", CELLS[1])).manifest.num_samples


def test_what_was_there_before_the_sensor_is_sharded_too(project: Project, tmp_path: Path):
    """Only cells that have their shards are left alone."""
    write_tree(tmp_path / "tree/fog/1", classes={"n01": 1})
    write_tree(tmp_path / "tree/fog/5", classes={"n01": 1})
    project.locations.shards("any", CELLS[0]).mkdir(parents=True)
    project.add_benchmark("any", REST + f"{{kind: folder, root: {tmp_path / 'tree'}}}")
    looks = Looks(project)

    assert [[], [("fog|5", "fog|5")]] == [looks.ranges() for _ in range(2)]


def test_a_new_or_another_archive_brings_all_that_it_may_hold(project: Project, tmp_path: Path):
    """Half a download brings nothing; the whole one brings every cell in one run, and so does another one later."""
    for cell in CELLS:
        write_tree(tmp_path / "tree" / cell.path, classes={"n01": 1})
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        tar.add(tmp_path / "tree", "tree")
    data = (tmp_path / "all.tar").read_bytes()
    arriving = tmp_path / "arriving.tar"
    project.add_benchmark("any", REST + f"{{kind: archive, archives: [{arriving}]}}")
    looks = Looks(project)

    assert [] == looks.ranges()
    for part in (data[:3000], data):
        arriving.write_bytes(part)
        assert [] == looks.ranges()
    assert [("fog|1", "contrast|5")] == looks.ranges()
    assert [] == looks.ranges()
    shutil.copy(tmp_path / "all.tar", arriving)
    assert [[], [("fog|1", "contrast|5")]] == [looks.ranges() for _ in range(2)]


def test_few_ranges_hold_exactly_the_cells(tmp_path: Path):
    """Neighbouring corruptions with the same severities are one range, and a gap divides."""
    (tmp_path / "any.yaml").write_text(
        REST.replace("[fog, contrast]", "[snow, fog, contrast]").replace("[1, 5]", "[1, 2, 3, 5]")
        + "{kind: folder, root: /x}"
    )
    benchmark = load_benchmark(tmp_path / "any.yaml")
    wanted = {"snow": (1, 2, 5), "fog": (1, 2, 5), "contrast": (3, 5)}
    cells = [Cell(corruption=name, severity=severity) for name, numbers in wanted.items() for severity in numbers]

    found = cell_ranges(benchmark, cells)

    assert [("snow|1", "fog|2"), ("snow|5", "fog|5"), ("contrast|3", "contrast|5")] == [
        (together[0].key, together[-1].key) for together in found
    ]
    assert set(cells) == {cell for together in found for cell in together}
    apart = cell_ranges(benchmark, cells, are_joined=lambda *_: False)
    assert 5 == len(apart)  # one for each stretch of severities of a corruption
