"""What goes on by itself once it is turned on, decided by Dagster's own evaluation of the conditions."""

from collections.abc import Iterator

import dagster as dg
import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.conftest import SMALL, SMALL_CELLS, Project
from tta_pipeline_tests.defs.in_process import code_location

CELLS = {cell.key for cell in SMALL_CELLS}
SHARDS, MANIFEST, TENT = (
    dg.AssetKey(["small", *path]) for path in (["tar_shards"], ["shard_manifest"], ["evaluation", "tent"])
)
NEW = dg.AssetKey(["small", "evaluation", "new"])
NEW_EXPERIMENT = "  new: {model: cnn, method: norm}\n"


class Days:
    """A Dagster instance on which things happen, and the conditions that are looked at in between."""

    def __init__(self, instance: dg.DagsterInstance, locations: Locations) -> None:
        self.instance = instance
        self._locations = locations
        self._cursor = None

    def made(self, key: dg.AssetKey, version: str, cells: set[str | None]) -> None:
        """Report that *cells* of *key* were made, with this data version."""
        for cell in sorted(cells, key=str):
            tags = {"dagster/data_version": version, "dagster/data_version_is_user_provided": "true"}
            event = dg.AssetMaterialization(asset_key=key, partition=cell, tags=tags)
            self.instance.report_runless_asset_event(event)

    def requested(self) -> dict[dg.AssetKey, set[str | None]]:
        """Look at the conditions and return which cells of which assets are to be made."""
        defs = code_location(self._locations)
        small = dg.AssetSelection.key_prefixes("small")
        result = dg.evaluate_automation_conditions(
            defs=defs, instance=self.instance, asset_selection=small, cursor=self._cursor
        )
        self._cursor = result.cursor
        keys = small.resolve(defs.resolve_asset_graph())
        found = {key: set(result.get_requested_partitions(key)) for key in keys}
        return {key: cells for key, cells in found.items() if cells}


@pytest.fixture
def days(project: Project) -> Iterator[Days]:
    """The small benchmark, all of it made."""
    project.add_benchmark("small", SMALL)
    with dg.DagsterInstance.ephemeral() as instance:
        days = Days(instance, project.locations)
        for key in code_location(project.locations).resolve_asset_graph().materializable_asset_keys:
            if key.path[0] == "small":
                is_of_cells = not {"clean", "train", "source_model", "robustness_report"} & set(key.path)
                days.made(key, "1", CELLS if is_of_cells else {None})
        yield days


def test_what_is_made_is_not_made_again(days: Days):
    """Look after look, nothing is requested."""
    assert [{}, {}, {}] == [days.requested() for _ in range(3)]


def test_a_new_experiment_is_requested_once(days: Days, project: Project):
    """All its cells and the clean images, and never again, even if the run fails: it would fail for ever."""
    days.requested()
    project.add_benchmark("small", SMALL + NEW_EXPERIMENT)

    assert {NEW: CELLS, dg.AssetKey(["small", "clean", "evaluation", "new"]): {None}} == days.requested()
    assert [{}, {}] == [days.requested() for _ in range(2)]


def test_changed_shards_are_read_back_and_evaluated_anew(days: Days):
    """Of one cell: first its manifest, then every experiment on it, and that is all."""
    days.requested()
    days.made(SHARDS, "2", {"contrast|5"})

    assert {MANIFEST: {"contrast|5"}} == days.requested()
    days.made(MANIFEST, "2", {"contrast|5"})
    requested = days.requested()

    assert {"source", "norm", "tent"} == {key.path[-1] for key in requested}
    assert all(cells == {"contrast|5"} for cells in requested.values())
    for key in requested:
        days.made(key, "2", {"contrast|5"})
    assert {} == days.requested()


def test_shards_that_were_made_again_and_are_the_same_change_nothing(days: Days):
    """A manifest with the data version that it had starts no evaluation."""
    days.requested()
    days.made(MANIFEST, "1", CELLS)

    assert {} == days.requested()


def test_cells_without_shards_wait(project: Project):
    """Of a benchmark of which nothing is there, nothing is requested: somebody shards it first."""
    project.add_benchmark("small", SMALL)
    with dg.DagsterInstance.ephemeral() as instance:
        days = Days(instance, project.locations)
        assert {} == days.requested()
        days.made(SHARDS, "1", {"contrast|5"})
        assert {MANIFEST: {"contrast|5"}} == days.requested()


def test_nothing_goes_on_by_itself_until_it_is_turned_on(project: Project):
    """Every sensor is stopped at first, and what is due at one moment is one backfill."""
    sensors = code_location(project.locations).get_repository_def().sensor_defs
    running = [sensor.name for sensor in sensors if sensor.default_status == dg.DefaultSensorStatus.RUNNING]

    assert [] == running
    (automation,) = [each for each in sensors if isinstance(each, dg.AutomationConditionSensorDefinition)]
    assert automation.emit_backfills
