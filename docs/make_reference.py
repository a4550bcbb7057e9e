"""Writes docs/reference/ from the code: `python docs/make_reference.py`. A test checks that it has been run."""

import inspect
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import click
import dagster as dg
import reference_benchmark
from make_methods import methods
from pydantic import BaseModel
from reference_benchmark import fields_table as _fields
from reference_benchmark import json_text as _json
from reference_benchmark import table as _table
from reference_benchmark import type_in_words as _type

from tta_pipeline.cli import main
from tta_pipeline.cli.verbs import walk_verbs
from tta_pipeline.definitions import build_definitions
from tta_pipeline.defs.evaluation import EvaluationConfig
from tta_pipeline.defs.resources import Compute
from tta_pipeline.defs.source_model import TrainingConfig
from tta_pipeline.domain.locations import Locations
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.methods.entry import Hyperparameters, MethodEntry
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.util.field_texts import describe_field

FOLDER = Path(__file__).parent / "reference"
BENCHMARK = "digits_c"
_BESIDE = {"clean", "train", "held_out"}


def commands() -> str:
    """Return every verb with its help, as `--help` shows it."""
    parts = ["# Commands\n\n`tta-pipeline <verb> --help` shows the same."]
    parent = click.Context(main, info_name="tta-pipeline", **main.context_settings)
    for name, command in walk_verbs(main):
        # Without the help option: its names, and so the width of their column, depend on who asked for it first.
        context = click.Context(command, parent=parent, info_name=name, max_content_width=110, help_option_names=[])
        lines = [line.rstrip() for line in command.get_help(context).splitlines()]
        shown = "\n".join(lines)
        parts.append(f"## {name}\n\n```\n{shown}\n```")
    return "\n\n".join(parts) + "\n"


def hyperparameters() -> str:
    """Return what `hyperparameters` of an experiment may name, by method."""
    shared = _shared_kinds()
    text = """# hyperparameters

What you can set under `hyperparameters` of an [experiment](experiments.md), by method. Go straight to your method.
[What each method does](../methods.md).

Fields that several methods share come first, with their defaults. Each method then lists its shared fields, with the
values of its presets that differ from these defaults, and its own fields."""
    parts = [
        text,
        *(_shared_section(kind, methods) for kind, methods in shared.items()),
        *(_method(name, shared) for name in METHODS),
    ]
    return "\n\n".join(parts) + "\n"


def dagster() -> str:
    """Return assets, checks, jobs and sensors of a benchmark, and what can be configured when a run is launched."""
    with tempfile.TemporaryDirectory() as root:
        repository = build_definitions(Locations(root=Path(root))).get_repository_def()
    graph = repository.asset_graph
    # The assets of clean, training and held-out images say the same; only those of the cells are shown.
    assets = {
        _generic(key): (_partitions(graph.get(key).partitions_def), graph.get(key).description)
        for key in sorted(graph.get_all_asset_keys(), reverse=True)
        if key.path[0] == BENCHMARK and not _BESIDE & set(key.path)
    }
    checks = {
        (_generic(each.asset_key), each.name): graph.get_check_spec(each).description
        for each in sorted(graph.asset_check_keys, key=lambda each: (each.asset_key.path, each.name))
        if each.asset_key.path[0] == BENCHMARK and not _BESIDE & set(each.asset_key.path)
    }
    jobs = {
        name.replace(BENCHMARK, "<benchmark>"): repository.get_job(name).description
        for name in sorted(repository.job_names)
        if name.startswith(BENCHMARK)
    }
    sensors = {each.name: (_at_first(each), each.description) for each in repository.sensor_defs}
    # Images that are drawn, as of this benchmark, do not arrive.
    sensors["<benchmark>__new_cells"] = "off", "Makes the shards of cells as their folders or archives arrive."
    parts = [
        "# Dagster",
        f"What every benchmark has, here `{BENCHMARK}`. Partition keys are `<corruption>|<severity>`.",
        "`<benchmark>/clean/...` and `<benchmark>/train/...` have none; those of streams are the severities.",
        "## Assets",
        _table(("asset", "partitions", ""), [(f"`{name}`", *rest) for name, rest in assets.items()]),
        "## Checks",
        _table(("asset", "check", ""), [(f"`{name}`", f"`{check}`", text) for (name, check), text in checks.items()]),
        "## Jobs",
        _table(("job", ""), [(f"`{name}`", text) for name, text in jobs.items()]),
        "## Sensors",
        "What is off at first stays off until the user turns it on.",
        _table(("sensor", "at first", ""), [(f"`{name}`", *rest) for name, rest in sensors.items()]),
        "## Run configuration of an evaluation",
        "`ops: {<benchmark>__evaluation__<experiment>: {config: ...}}`",
        _fields(EvaluationConfig),
        "## Run configuration of a training",
        "`ops: {<benchmark>__source_model: {config: ...}}`; of several models, `<benchmark>__source_model__<model>`",
        _fields(TrainingConfig),
        "## Run configuration of the compute resource",
        "`resources: {compute: {config: ...}}`",
        _fields(Compute),
    ]
    return "\n\n".join(parts) + "\n"


def database() -> str:
    """Return every table, view and macro of `metrics.duckdb` with its columns, from their comments."""
    with tempfile.TemporaryDirectory() as root:
        locations = Locations(root=Path(root))
        publish_metrics(locations)
        with open_metrics(locations.metrics) as connection:
            objects = connection.execute(
                "SELECT table_name, 'table', comment FROM duckdb_tables() WHERE NOT internal UNION ALL "
                "SELECT view_name, 'view', comment FROM duckdb_views() WHERE NOT internal ORDER BY ALL"
            ).fetchall()
            columns = connection.execute(
                "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() WHERE NOT internal "
                "ORDER BY table_name, column_index"
            ).fetchall()
            macros = connection.execute(
                "SELECT function_name, parameters, comment FROM duckdb_functions() WHERE NOT internal ORDER BY ALL"
            ).fetchall()
    parts = ["# Database\n\n`metrics.duckdb`; definitions: [Metrics](metrics.md)."]
    for name, kind, comment in objects:
        rows = [
            (f"`{column}`", "corruption" if type_.startswith("ENUM") else type_, text)
            for table, column, type_, text in columns
            if table == name
        ]
        parts += [f"## {name}", f"A {kind}. {comment}.", _table(("column", "type", ""), rows)]
    for name, parameters, comment in macros:
        parts += [f"## {name}({', '.join(parameters)})", f"A macro that returns a table. {comment}."]
    return "\n\n".join(parts) + "\n"


PAGES = {
    "commands.md": commands,
    **reference_benchmark.pages(),
    "benchmark/hyperparameters.md": hyperparameters,
    "dagster.md": dagster,
    "database.md": database,
    "methods.md": methods,
}


def _kind_of(method: str) -> type[Hyperparameters]:
    """Return the hyperparameters of *method*."""
    return type(next(iter(METHODS[method].presets.values())))


def _declared(kind: type) -> Sequence[str]:
    """Return the fields that *kind* itself declares, without those that it inherits."""
    return [name for name in inspect.get_annotations(kind) if name in getattr(kind, "model_fields", {})]


def _shared_kinds() -> Mapping[type[BaseModel], Sequence[str]]:
    """Return what declares hyperparameters of several methods, with their names: a base, or what two methods have."""
    found: dict[type[BaseModel], list[str]] = {}
    for method in METHODS:
        for kind in reversed(_kind_of(method).mro()):
            if _declared(kind):
                found.setdefault(kind, []).append(method)
    return {kind: methods for kind, methods in found.items() if len(methods) > 1}


def _shared_heading(kind: type) -> str:
    """Return the heading of shared fields, such as `tuned texts fields`."""
    words = re.findall("[A-Z][a-z]*", kind.__name__.removesuffix("Hyperparameters"))
    return " ".join([*words, "fields"]).lower()


def _shared_section(kind: type[BaseModel], methods: Sequence[str]) -> str:
    text = f"{inspect.cleandoc(kind.__doc__ or '')} Methods that have them: {', '.join(methods)}."
    return f"## {_shared_heading(kind)}\n\n{text}\n\n{_fields(kind, _declared(kind), required='of the preset')}"


def _method(name: str, shared: Collection[type]) -> str:
    entry, kind = METHODS[name], _kind_of(name)
    presets = {preset: values.model_dump(mode="json") for preset, values in entry.presets.items()}
    by_owner: dict[type, list[str]] = {}
    for field in kind.model_fields:
        owner = next(each for each in kind.mro() if field in _declared(each))
        by_owner.setdefault(owner, []).append(field)
    facts = f"Clean images: {entry.source_data}. Smallest batch: {entry.min_batch_size}. Model: {entry.needs}."
    if by_owner:
        facts += f" Published for: {_published(entry)}."
    parts = [f"## {name}", f"{entry.summary} {facts}"]
    lines = [_shared_line(owner, fields, presets) for owner, fields in by_owner.items() if owner in shared]
    if lines:
        parts += ["Shared fields:", "\n".join(lines)]
    rows = [
        (
            f"`{field}`",
            _type(info.annotation),
            *(_json(values[field]) for values in presets.values()),
            describe_field(kind, field),
        )
        for field, info in kind.model_fields.items()
        if any(field in fields for owner, fields in by_owner.items() if owner not in shared)
    ]
    if rows:
        parts.append(_table(("field", "type", *presets, ""), rows))
    return "\n\n".join(parts if by_owner else [*parts, "Nothing to set."])


def _shared_line(owner: type, fields: Sequence[str], presets: Mapping[str, Mapping[str, object]]) -> str:
    """Return a link to the shared *fields*, with the values of *presets* that differ from the defaults."""
    heading = _shared_heading(owner)
    differing = []
    for field in fields:
        info = owner.model_fields[field]  # type: ignore[attr-defined]
        by_value: dict[str, list[str]] = {}
        for preset, values in presets.items():
            if info.is_required() or values[field] != info.default:
                by_value.setdefault(_json(values[field]), []).append(f"`{preset}`")
        if by_value:
            said = [
                value if len(names) == len(presets) else f"{value} ({', '.join(names)})"
                for value, names in by_value.items()
            ]
            differing.append(f"`{field}` {', '.join(said)}")
    link = f"- [{heading}](#{heading.replace(' ', '-')})"
    return f"{link}: {'; '.join(differing)}" if differing else link


def _published(entry: MethodEntry) -> str:
    """Return the datasets of each preset, each with the values that differ there; "nothing" if there is none."""
    by_preset = [
        f"{', '.join(_with_values(*each) for each in sets.items())} (`{preset}`)"
        for preset, sets in entry.published.items()
        if preset in entry.presets and sets
    ]
    return "; ".join(by_preset) or "no dataset"


def _with_values(dataset: str, changes: Mapping[str, object]) -> str:
    values = " and ".join(f"`{name}` {_json(value)}" for name, value in changes.items())
    return f"{dataset} with {values}" if values else dataset


def _generic(key: dg.AssetKey) -> str:
    names = ["<benchmark>", *key.path[1:]]
    return "/".join([*names[:-1], "<experiment>"] if names[-2] in ("evaluation", "tuning") else names)


def _at_first(sensor: dg.SensorDefinition) -> str:
    return "on" if sensor.default_status is dg.DefaultSensorStatus.RUNNING else "off"


def _partitions(definition: dg.PartitionsDefinition | None) -> str:
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return "corruption and severity"
    return "none" if definition is None else "severity"


if __name__ == "__main__":
    for file_name, page in PAGES.items():
        (FOLDER / file_name).write_text(page())
