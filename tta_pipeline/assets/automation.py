"""What goes on by itself once a person has turned it on: manifests and evaluations that are missing or out of date."""

import dagster as dg

Condition = dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey]


def out_of_date() -> Condition:
    """Return the condition of a partition that is new, or made of something that has another data version since.

    What was requested is not requested again until something changes, not even when its run failed: it would fail for
    ever. What is being made, or made from something that is missing or being made, waits.
    """
    condition = dg.AutomationCondition
    # Dagster's own `any_deps_updated` also holds for shards that were made again and are the same.
    changed = condition.newly_updated() & condition.data_version_changed() & ~condition.executed_with_root_target()
    handled = condition.newly_requested() | condition.newly_updated()
    due = (condition.newly_missing() | condition.any_deps_match(changed)).since(handled)
    return (
        due
        & ~condition.any_deps_missing()
        & ~condition.any_deps_in_progress()
        & ~condition.in_progress()
    ).with_label("out_of_date")  # fmt: skip


def automation() -> dg.AutomationConditionSensorDefinition:
    """Return the sensor that looks at the conditions; until a person starts it nothing goes on by itself.

    Whatever is due at a moment becomes one backfill, in which a range of cells is one run.
    """
    return dg.AutomationConditionSensorDefinition(
        "make_what_is_out_of_date",
        target=dg.AssetSelection.all(),
        default_status=dg.DefaultSensorStatus.STOPPED,
        emit_backfills=True,
        description="Reads manifests of new shards back and evaluates new experiments and changed shards by itself.",
    )
