"""Automation of manifests and evaluations that are missing or out of date; off until the user turns it on."""

import dagster as dg

Condition = dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey]


def out_of_date_condition() -> Condition:
    """Return the condition under which a partition is due: it is new, or an input has a new data version.

    A partition is requested once for each change, even if its run fails: another try would fail the same way. A
    partition waits while it is being made, and while an input is missing or being made.
    """
    condition = dg.AutomationCondition
    # Dagster's own `any_deps_updated` also holds for shards that were rebuilt with the same content.
    changed = condition.newly_updated() & condition.data_version_changed() & ~condition.executed_with_root_target()
    handled = condition.newly_requested() | condition.newly_updated()
    due = (condition.newly_missing() | condition.any_deps_match(changed)).since(handled)
    return (
        due
        & ~condition.any_deps_missing()
        & ~condition.any_deps_in_progress()
        & ~condition.in_progress()
    ).with_label("out_of_date")  # fmt: skip


def automation_sensor() -> dg.AutomationConditionSensorDefinition:
    """Return the sensor that evaluates the conditions; nothing runs automatically until the user starts it.

    All partitions that are due at the same time become one backfill, in which a range of cells is one run.
    """
    return dg.AutomationConditionSensorDefinition(
        "refresh_stale",
        target=dg.AssetSelection.all(),
        default_status=dg.DefaultSensorStatus.STOPPED,
        emit_backfills=True,
        description="Makes manifests of new shards and evaluates new experiments and changed shards automatically.",
    )
