"""Into which runs Dagster cuts a backfill, and that these name the asked cells and no others."""

import random

import dagster as dg
import pytest
from dagster._core.definitions.automation_tick_evaluation_context import build_run_requests_with_backfill_policies
from dagster._core.definitions.events import AssetKeyPartitionKey

from tta_pipeline.defs.scope import backfill_policy, cell_partitions
from tta_pipeline.errors import SettingsError
from tta_pipeline_tests.conftest import run_python

GRID = cell_partitions(("fog", "snow", "blur", "noise"), (1, 2, 5))
CELLS = [str(key) for key in GRID.get_partition_keys()]
LOADING = """
from tta_pipeline.definitions import defs
graph = defs.resolve_asset_graph()
policies = {(bool(graph.get(key).partitions_def), graph.get(key).backfill_policy.max_partitions_per_run)
            for key in graph.materializable_asset_keys if key.path[-1] != "loader_benchmark"}
print(sorted(policies))
"""


def runs(asked: list[str], policy: dg.BackfillPolicy) -> list[list[str]]:
    """Return the cells of each run into which Dagster's daemon cuts a backfill, as the run's own tags name them."""

    @dg.asset(partitions_def=GRID, backfill_policy=policy)
    def shards() -> None: ...

    graph = dg.Definitions(assets=[shards]).resolve_asset_graph()
    requests = build_run_requests_with_backfill_policies(
        asset_partitions=[AssetKeyPartitionKey(shards.key, key) for key in asked],
        asset_graph=graph,
        dynamic_partitions_store=None,
    )
    ends = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
    ranges = [dg.PartitionKeyRange(*(request.tags[end] for end in ends)) for request in requests]
    return [[str(key) for key in GRID.get_partition_keys_in_range(each)] for each in ranges]


@pytest.mark.parametrize("cells_per_run", ["", "1", "5", "12"])
def test_runs_name_the_asked_cells_once(monkeypatch: pytest.MonkeyPatch, cells_per_run: str):
    """Whatever is left out of the grid: a range that is cut by list position would name others (dagster#27746)."""
    monkeypatch.setenv("TTA_CELLS_PER_RUN", cells_per_run)
    draw = random.Random(0)
    for asked in (CELLS, *(draw.sample(CELLS, draw.randint(1, len(CELLS))) for _ in range(30))):
        found = runs(asked, backfill_policy())

        assert sorted(asked) == sorted(cell for run in found for cell in run)
        assert all(len(run) <= int(cells_per_run or len(CELLS)) for run in found)


@pytest.mark.parametrize(
    ("said", "expected"), [("", "[(False, None), (True, None)]"), ("5", "[(False, None), (True, 5)]")]
)
def test_definitions_load_with_either_policy(said: str, expected: str, monkeypatch: pytest.MonkeyPatch):
    """Assets without partitions have one run in any case, and so do loaders, which are measured one after the other."""
    monkeypatch.setenv("TTA_CELLS_PER_RUN", said)
    assert expected == run_python(LOADING).stdout.strip()


def test_what_is_no_number_of_cells_is_an_error(monkeypatch: pytest.MonkeyPatch):
    """It names the variable and what it is."""
    monkeypatch.setenv("TTA_CELLS_PER_RUN", "corruption")

    with pytest.raises(SettingsError, match=r"TTA_CELLS_PER_RUN .*'corruption'"):
        backfill_policy()
