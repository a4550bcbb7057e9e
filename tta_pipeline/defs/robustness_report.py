"""`<benchmark>/robustness_report`: the whole benchmark as pages on disk."""

from collections.abc import Iterator

import dagster as dg

from tta_pipeline.defs.resources import MetricsStore, ShardStore
from tta_pipeline.defs.scope import Scopes


def robustness_report(scopes: Scopes) -> Iterator[dg.AssetsDefinition]:
    """Yield the asset of the report.

    It is in a separate group, so that a run over a few cells does not write the whole report again.
    """
    benchmark = scopes.benchmark

    @scopes.cells.asset(
        "robustness_report",
        is_whole=True,
        group_name=f"{benchmark.dagster_name}_report",
        deps=[scope.key("evaluation", name) for scope, name in scopes.experiments],
        kinds={"html"},
        code_version="2",
        description="Report of the benchmark in HTML. Which method wins, where, at what cost, and whether by more than "
        "chance; a page for each cell; figures and tables as files.",
    )
    def asset(
        context: dg.AssetExecutionContext, store: ShardStore, metrics: MetricsStore
    ) -> dg.MaterializeResult[None]:
        from tta_pipeline.report.pages.report import write_report
        from tta_pipeline.util.progress import log_reporter

        set_aside = metrics.publish_now(context.log)  # the report reads the database, so all results must be in it
        report = write_report(store.locations, benchmark, reporter=log_reporter(context.log.info), set_aside=set_aside)
        context.log.info(f"report in {report.path}")
        if set_aside:
            raise dg.Failure(
                description=f"the report is written, but results are missing from it: {'; '.join(set_aside)}",
                metadata={"report": dg.MetadataValue.path(report.path), "set_aside": list(set_aside)},
                allow_retries=False,
            )
        return dg.MaterializeResult(
            metadata={
                "report": dg.MetadataValue.path(report.path),
                "leaderboard": dg.MetadataValue.md(report.leaderboard_markdown),
                "heat_map": dg.MetadataValue.md(f"![error by corruption and severity]({report.heat_map_uri})"),
                "num_experiments": report.num_experiments,
                "num_cells": report.num_cells,
            }
        )

    yield asset
