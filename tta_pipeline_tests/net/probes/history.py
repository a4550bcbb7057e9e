"""Prints as JSON the materialized partitions, metadata names and checks of each asset in Dagster's history."""

import json
from typing import Any

import dagster as dg
from dagster import DagsterEventType, EventRecordsFilter

_MEASURES_SPEED = "throughput_regression"


def materialized(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, Any]:
    """Return the number of materializations of *key* by partition, and the names of their metadata."""
    records = instance.get_event_records(EventRecordsFilter(DagsterEventType.ASSET_MATERIALIZATION, asset_key=key))
    partitions = [str(record.partition_key) for record in records]
    names = sorted({
        name
        for record in records
        if record.asset_materialization
        for name in record.asset_materialization.metadata
    })  # fmt: skip
    return {"partitions": {each: partitions.count(each) for each in sorted(set(partitions))}, "metadata": names}


def checked(instance: dg.DagsterInstance) -> list[str]:
    """Return each check of each asset and partition, and whether it passed."""
    records = instance.get_event_records(EventRecordsFilter(DagsterEventType.ASSET_CHECK_EVALUATION))
    found = [record.event_log_entry.dagster_event.asset_check_evaluation_data for record in records]  # type: ignore[union-attr]
    return sorted({
        f"{each.asset_key.to_user_string()} {each.partition} {each.check_name}: "
        + ("ran" if each.check_name == _MEASURES_SPEED else "passed" if each.passed else "failed")
        for each in found
    })  # fmt: skip


def main() -> None:
    """Print assets and checks."""
    with dg.DagsterInstance.get() as instance:
        assets = {key.to_user_string(): materialized(instance, key) for key in instance.all_asset_keys()}
        print(json.dumps({"assets": dict(sorted(assets.items())), "checks": checked(instance)}))  # noqa: T201


if __name__ == "__main__":
    main()
