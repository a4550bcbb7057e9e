"""`<benchmark>/shift_alarm`: a test, without labels, of whether each cell differs from the clean images."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.watch_settings import STREAM
from tta_pipeline.defs.reporting import picture
from tta_pipeline.defs.resources import MetricsStore, ShardStore
from tta_pipeline.defs.scope import CellScope, SetScope, asset_key
from tta_pipeline.util.partitions import CLEAN

if TYPE_CHECKING:
    from tta_pipeline.results.alarm_record import WatchedCell
    from tta_pipeline.results.records import Record

NO_ALARM, NO_FALSE_ALARM = "no_alarm", "no_false_alarm"
_NOT_YET = "the clean images were not evaluated yet: there is nothing to compare with"


def shift_alarm(scope: CellScope) -> dg.AssetsDefinition:
    """Return the asset of the alarm over every evaluated cell."""
    name = scope.benchmark.watched_experiment
    clean = SetScope(benchmark=scope.benchmark, cell=CLEAN)

    @scope.asset(
        "shift_alarm",
        is_whole=True,
        group_name=f"{scope.benchmark.dagster_name}_report",
        deps=[*(each.key("evaluation", name) for each in (scope, clean)), *_arrivals(scope.benchmark)],
        code_version="1",
        description=f"When the confidences of `{name}` on each cell differ from those on clean images by more than "
        "chance, without labels, and with a false-alarm rate that holds however long one looks.",
    )
    def asset(context: dg.AssetExecutionContext, store: ShardStore, metrics: MetricsStore) -> dg.MaterializeResult[Any]:
        from tta_pipeline.report.alarm.watch import say_alarm, watch_benchmark
        from tta_pipeline.report.alarm_figures import curves_of_record, wealth_curves
        from tta_pipeline.report.figure_style import as_png
        from tta_pipeline.results.records import publish_unless_equal, utc_now

        started_at = utc_now()
        watched = watch_benchmark(scope.benchmark, store.locations, tell=context.log.info)
        if watched is None:
            return dg.MaterializeResult(metadata={"found": _NOT_YET})
        with metrics.publishing(context.log):
            record = publish_unless_equal(
                store.locations.results(scope.benchmark.name), kind="alarms", name=name, run_id=context.run.run_id,
                started_at=started_at, facts=watched,
            )  # fmt: skip
        curves = wealth_curves(curves_of_record(watched), level=watched.level)
        delays = {f"{each.corruption}|{each.severity}": say_alarm(each) for each in watched.cells}
        return dg.MaterializeResult(
            metadata={
                "delays": dg.MetadataValue.json(delays),
                "wealth": picture("evidence of a shift", as_png(curves)),
                "num_alarms": sum(each.alarm_at is not None for each in watched.cells if each.corruption != "clean"),
                "level": watched.level,
                "num_calibration": watched.num_calibration,
                "record": dg.MetadataValue.path(record.path),
            },
            data_version=dg.DataVersion(record.sha256),
        )

    return asset


def _arrivals(benchmark: Benchmark) -> Iterator[dg.AssetKey]:
    """Yield the key of the watched experiment's results on images that arrive, if there are any."""
    if benchmark.watch and benchmark.watched_experiment in benchmark.watch.experiments:
        yield asset_key(benchmark, STREAM, "evaluation", benchmark.watched_experiment)


def shift_alarm_checks(scope: CellScope) -> dg.AssetChecksDefinition:
    """Return the checks of the newest look: an alarm is a warning, and one on clean images another."""
    key = scope.key("shift_alarm")
    descriptions = {
        NO_ALARM: "What arrives at the watched folder does not differ from the clean images by more than chance; where "
        "nothing arrives, no cell does, and a corruption should.",
        NO_FALSE_ALARM: "The clean images that are not the calibration raise no alarm.",
    }

    @dg.multi_asset_check(
        name=f"{key.to_python_identifier()}_checks",
        specs=[dg.AssetCheckSpec(name, asset=key, description=text) for name, text in descriptions.items()],
        can_subset=True,
    )
    @scope.body
    def checks(context: dg.AssetCheckExecutionContext, store: ShardStore) -> Iterator[dg.AssetCheckResult]:
        from tta_pipeline.results.records import latest_record

        record = latest_record(
            store.locations.results(scope.benchmark.name), kind="alarms", name=scope.benchmark.watched_experiment
        )
        for selected in context.selected_asset_check_keys:
            yield _result(selected, record)

    return checks


def _select(cells: "Sequence[WatchedCell]", *, is_clean: bool) -> "Sequence[WatchedCell]":
    """Return the clean images; or what arrived, and where nothing did, all other cells."""
    others = [each for each in cells if each.corruption != CLEAN.corruption]
    if is_clean:
        return [each for each in cells if each not in others]
    return [each for each in others if each.corruption == STREAM] or others


def _result(selected: dg.AssetCheckKey, record: "Record | None") -> dg.AssetCheckResult:
    from tta_pipeline.report.alarm.watch import say_alarm

    watched = record.watched.cells if record and record.watched else ()
    own = _select(watched, is_clean=selected.name == NO_FALSE_ALARM)
    raised = {f"{each.corruption}|{each.severity}": say_alarm(each) for each in own if each.alarm_at is not None}
    return dg.AssetCheckResult(
        asset_key=selected.asset_key,
        check_name=selected.name,
        passed=not raised,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "found": f"{len(raised)} of {len(own)} streams raised the alarm" if own else _NOT_YET,
            "alarms": dg.MetadataValue.json(raised),
        },
    )
