"""The component `tta_pipeline.RobustnessBenchmark`: a benchmark in the `defs.yaml` of your own Dagster project."""

import os
import textwrap
from pathlib import Path
from typing import Any, Self

import dagster as dg
from pydantic import BaseModel, GetJsonSchemaHandler, RootModel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import FIRST_FILE, LoadedBenchmarks, validate_content
from tta_pipeline.defs.benchmark_assets import RESOURCE_PREFIX, asset_definitions
from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.field_texts import describe_field
from tta_pipeline.util.source_code import import_from_here

_ANY_FORM: dict[str, object] = {
    "dataset": ["string", "object"],
    "experiments": "object",
    "matrix": ["object", "array"],
}
"""Fields with short forms, which are expanded before validation; every form is valid."""
_BESIDE_FIELDS: dict[str, object] = {"custom": "object", "classes": "string", "sets": "object"}
"""Keys that may replace some of the fields."""


class BenchmarkFields(RootModel[dict[str, Any]]):
    """The fields of a benchmark file; its own reader validates them, with the messages of all other commands."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema that `dg` shows and checks: the fields of `Benchmark`, except the name."""
        schema = handler.resolve_ref_schema(handler(Benchmark.__pydantic_core_schema__))
        properties = {
            name: {**field, "description": describe_field(Benchmark, name)}
            for name, field in schema["properties"].items()
            if name != "name"
        }
        loose = {name: {"type": kind, **_description(properties[name])} for name, kind in _ANY_FORM.items()}
        beside = {name: {"type": kind} for name, kind in _BESIDE_FIELDS.items()}
        return {**schema, "properties": {**properties, **loose, **beside}, "required": ["title", "models"]}


def _description(field: JsonSchemaValue) -> JsonSchemaValue:
    return {name: field[name] for name in ("title", "description") if name in field}


class FirstBenchmark(dg.Scaffolder[BaseModel]):
    """Writes a `defs.yaml` that runs unchanged: digits, four cells, three experiments."""

    def scaffold(self, request: dg.ScaffoldRequest[BaseModel]) -> None:
        """Write the file; in Python, a function to fill in."""
        if request.scaffold_format != "yaml":
            from dagster.components.component_scaffolding import scaffold_component

            scaffold_component(request)
            return
        first = FIRST_FILE.read_text("utf-8")
        fields = "".join(line for line in first.splitlines(keepends=True) if not line.startswith("#"))
        text = f"type: {request.type_name}\n\nattributes:\n{textwrap.indent(fields, '  ')}"
        with (request.target_path if request.append else request.target_path / "defs.yaml").open("a") as file:
            file.write(f"---\n{text}" if request.append else text)


@dg.scaffold_with(FirstBenchmark)
class RobustnessBenchmark(dg.Component):
    """A robustness benchmark of image classifiers, from images to a leaderboard.

    Attributes are the fields of a benchmark file (docs/reference/benchmark/index.md), and the folder's name is the
    benchmark's name. Data is stored in TTA_DATA_ROOT, or in `data/` of the project.
    """

    def __init__(self, loaded: LoadedBenchmarks) -> None:
        self._loaded = loaded

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the model of the attributes."""
        return BenchmarkFields

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component of the `defs.yaml` in the folder of *context*.

        Raises:
            BenchmarkFileError: a field is missing, unknown or out of range; the message names every such field.
        """
        import_from_here()
        fields = attributes.root if isinstance(attributes, BenchmarkFields) else {}
        content = context.resolution_context.at_path("attributes").resolve_value(fields)
        found = validate_content(context.path / "defs.yaml", content, name=context.path.name)
        return cls(LoadedBenchmarks(benchmarks={each.name: each for each in found}, faults=(), folders=()))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return assets, checks and resources, as `definitions.assets_only` does."""
        root = os.environ.get("TTA_DATA_ROOT") or str(Path(context.project_root) / "data")
        locations = Locations.from_roots(root, os.environ.get("TTA_SHARDS_ROOT", ""))
        return asset_definitions(self._loaded, locations, RESOURCE_PREFIX)
