"""`<benchmark>/tuning/<experiment>`: hyperparameters chosen on held-out shifts, which the benchmark never reports."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
from pydantic import Field

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.cell_ranges import cell_ranges
from tta_pipeline.benchmarks.tuning_settings import MOST_TRIALS
from tta_pipeline.defs.history import open_history
from tta_pipeline.defs.images import images
from tta_pipeline.defs.in_process import materialize_in_process, range_tags, run_config
from tta_pipeline.defs.reporting import picture
from tta_pipeline.defs.resources import Compute, MetricsStore, ShardStore
from tta_pipeline.defs.scope import CellScope, Scopes, SetScope, asset_key, cell_partitions
from tta_pipeline.defs.shard_manifest import shard_manifest
from tta_pipeline.defs.tar_shards import tar_shards
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.work.planned_runs import assets_of_shards
from tta_pipeline.results.tuning_criteria import CriterionName
from tta_pipeline.util.files import write_atomically
from tta_pipeline.util.short_lists import abbreviate_list

if TYPE_CHECKING:
    from tta_pipeline.results.result_files import StoredResult


_LOOKED_FOR: Mapping[CriterionName, str] = {
    "labels": "lowest error", "entropy": "lowest mean entropy", "consistency": "most consistent predictions",
    "snd": "highest soft neighbourhood density", "source_agreement": "highest agreement with the source model",
}  # fmt: skip


class TuningConfig(dg.Config):
    """Options of one run; the cells are not an option."""

    grid: list[str] = Field(
        default=[],
        description="Values to try for each hyperparameter, such as lr=1e-4,2.5e-4,1e-3; empty: the file's",
    )
    budget: int = Field(default=0, ge=0, le=MOST_TRIALS, description="Maximum number of trials; 0: the file's")
    compare: bool = Field(
        default=False,
        description="Whether to evaluate the trials on the reported cells too, and record how far each criterion's "
        "choice is from the oracle's; experiments use the choice on held-out shifts all the same",
    )


@dataclass(frozen=True, kw_only=True)
class HeldOutScope(CellScope):
    """The cells on which hyperparameters are chosen, none of which is a cell of `CellScope`."""

    @classmethod
    def of(cls, benchmark: Benchmark, resource_prefix: str = "") -> Self:
        """Return the scope of *benchmark*, with the held-out cells added so that its source can open them."""
        everything = (*benchmark.corruptions, *benchmark.held_out)
        return cls(
            benchmark=benchmark.model_copy(update={"corruptions": everything}),
            shifts=benchmark.held_out,
            resource_prefix=resource_prefix,
        )

    shifts: tuple[str, ...]
    """Held-out shifts."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every held-out cell."""
        return tuple(cell for cell in self.benchmark.cells if cell.corruption in self.shifts)

    @property
    def partitions(self) -> dg.MultiPartitionsDefinition:
        """The grid of held-out cells."""
        return cell_partitions(self.shifts, self.benchmark.severities)

    def key(self, *parts: str) -> dg.AssetKey:
        """Return the asset key `<benchmark>/held_out/<parts>`."""
        return asset_key(self.benchmark, "held_out", *parts)

    def group(self) -> str:
        """Return the group `<benchmark>_held_out`: a run over a range of cells cannot have other partitions."""
        return f"{self.benchmark.dagster_name}_held_out"


def tuning(scopes: Scopes) -> Iterator[dg.AssetsDefinition | dg.SourceAsset]:
    """Yield the assets of the hyperparameters chosen for each experiment, and of the shards used to choose them."""
    benchmark = scopes.benchmark
    if not (benchmark.tuning and benchmark.held_out):
        return
    held_out = replace(scopes, shard_sets=(HeldOutScope.of(benchmark, scopes.cells.resource_prefix),))
    for shards in (images, tar_shards, shard_manifest):
        yield from shards(held_out)
    yield from (_asset(scopes.cells, name) for name in benchmark.tuning if name in benchmark.experiments)


def _asset(scope: CellScope, experiment_name: str) -> dg.AssetsDefinition:
    benchmark, criterion = scope.benchmark, scope.benchmark.tuning[experiment_name].criterion

    @scope.asset(
        "tuning",
        experiment_name,
        is_whole=True,
        group_name=f"{benchmark.dagster_name}_tuning",
        deps=_dependencies(benchmark, experiment_name),
        kinds={"pytorch"},
        code_version="1",
        description=f"Hyperparameters chosen on held-out shifts. Those of {experiment_name} with the "
        f"{_LOOKED_FOR[criterion]} on {', '.join(benchmark.held_out)}, which the benchmark does not report. A finished "
        "trial is not evaluated again.",
    )
    def asset(
        context: dg.AssetExecutionContext,
        config: TuningConfig,
        store: ShardStore,
        metrics: MetricsStore,
        compute: Compute,
    ) -> dg.MaterializeResult[Any]:
        from tta_pipeline.extras.tuning.grid import parse_grid
        from tta_pipeline.extras.tuning.search import Search

        search = Search(
            benchmark=benchmark,
            experiment_name=experiment_name,
            locations=store.locations,
            grid=parse_grid(config.grid),
            budget=config.budget or None,
            compare=config.compare,
        )
        with metrics.publishing(context.log):
            stored = search.run(machine=compute.machine(), run_id=context.run.run_id, tell=context.log.info)
        return _result(context, stored, path=store.locations.tuning(benchmark.name) / f"{experiment_name}.png")

    return asset


def materialize_tuning(
    definitions: dg.Definitions,
    benchmark: Benchmark,
    experiment_name: str,
    locations: Locations,
    *,
    grid: Sequence[str],
    budget: int | None,
    compare: bool = False,
    device: str,
) -> bool:
    """Materialize the asset in this process, and return whether it succeeded; Dagster's history lists the run."""
    key = asset_key(benchmark, "tuning", experiment_name)
    config = TuningConfig(grid=list(grid), budget=budget or 0, compare=compare)
    with open_history(locations) as instance:
        result = materialize_in_process(
            definitions,
            [key],
            instance=instance,
            run_config={
                "ops": {key.to_python_identifier(): {"config": config.model_dump()}},
                "resources": {"compute": {"config": {"device": device}}},
                "loggers": {"console": {}},
            },
        )
    return result.success


def materialize_missing_shards(
    definitions: dg.Definitions,
    benchmark: Benchmark,
    cells: Collection[Cell],
    locations: Locations,
    *,
    tell: Callable[[str], None],
) -> bool:
    """Materialize the shards of *cells*, reported or held out, in this process; return whether all runs succeeded."""
    with open_history(locations) as instance:
        for scope in (CellScope(benchmark=benchmark), HeldOutScope.of(benchmark)):
            own = {cell for cell in cells if cell in scope.cells}
            for some in cell_ranges(scope.benchmark, own):
                names = [cell.key for cell in some]
                tell(f"shards of {abbreviate_list(names)} are made first")
                result = materialize_in_process(
                    definitions,
                    [scope.key(name) for name in assets_of_shards(benchmark)],
                    instance=instance,
                    run_config=run_config({}, publishes=False),
                    tags=range_tags(names),
                )
                if not result.success:
                    return False
    return True


def _result(context: dg.AssetExecutionContext, stored: "StoredResult", *, path: Path) -> dg.MaterializeResult[Any]:
    """Draw the error over the grid into *path*, and return the result that the web UI shows."""
    from tta_pipeline.report.figure_style import as_png
    from tta_pipeline.report.tables import as_markdown
    from tta_pipeline.report.tuning_figures import error_over_grid
    from tta_pipeline.report.tuning_table import criteria_table

    run = stored.result.tuning
    assert run is not None, "the search returns a tuning"
    png = as_png(error_over_grid(run))
    write_atomically(path, png)
    context.log.info(f"chosen: {run.choice}; picture: {path}")
    return dg.MaterializeResult(
        metadata={
            "chosen": dg.MetadataValue.json(dict(run.values)),
            "criterion": run.criterion,
            "criteria": dg.MetadataValue.md(as_markdown(criteria_table(run))),
            "error": run.error,
            "num_trials": run.num_trials,
            "num_combinations": run.num_combinations,
            "cells": ", ".join(run.cells),
            "grid": dg.MetadataValue.json(run.grid_values),
            "error_over_grid": picture("error over the grid", png),
            "picture": dg.MetadataValue.path(path),
            "record": dg.MetadataValue.path(stored.path),
        },
        data_version=dg.DataVersion(stored.sha256),
    )


def _dependencies(benchmark: Benchmark, experiment_name: str) -> list[dg.AssetKey]:
    spec, held_out = benchmark.experiments[experiment_name], HeldOutScope.of(benchmark)
    found = [held_out.key("shard_manifest")]
    if spec.model in benchmark.trained_models:
        found.append(asset_key(benchmark, benchmark.source_model_asset(spec.model)))
    if benchmark.uses_clean_images(experiment_name):
        found.append(SetScope(benchmark=benchmark, cell=CLEAN).key("shard_manifest"))
    return found
