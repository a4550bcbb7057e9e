"""Counts what a user must learn and a maintainer must carry: `python -m tta_pipeline_tests.surface` prints it."""

import ast
import inspect
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from tta_pipeline.cli import main
from tta_pipeline.cli.verbs import walk_verbs
from tta_pipeline.domain.locations import Locations
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics

ROOT = Path(__file__).parents[1]
PACKAGE, DOCS = ROOT / "tta_pipeline", ROOT / "docs"
sys.path.insert(0, str(DOCS))
import make_architecture  # noqa: E402
import make_reference  # noqa: E402
import reference_benchmark  # noqa: E402


def count_all() -> Mapping[str, int]:
    """Return every number of the surface by its name."""
    return {**_count_code(), **_count_texts(), **_count_names(), **_count_database(), **_count_reach()}


def _count_code() -> Mapping[str, int]:
    code = sorted(PACKAGE.rglob("*.py"))
    beside = [path for end in ("sql", "yaml", "j2", "js") for path in PACKAGE.rglob(f"*.{end}")]
    text = "\n".join(path.read_text() for path in code)
    return {
        "package_lines": _lines(code),
        # Nodes of the syntax tree, since long lines hide code.
        "package_statements": sum(
            isinstance(node, ast.stmt)
            for path in code
            for node in make_architecture.walk(make_architecture.parsed(path))
        ),
        "package_files": len(code),
        "largest_file_lines": max(_lines([path]) for path in code),
        "lines_of_sql_yaml_templates_scripts": _lines(beside),
        "test_lines": _lines((ROOT / "tta_pipeline_tests").rglob("*.py")),
        "lines_of_bench_examples_docs_cluster": _lines(
            path for folder in ("bench", "examples", "docs", "cluster") for path in (ROOT / folder).rglob("*.py")
        ),
        "imports_by_name": text.count("import_module("),
        "questions_of_kind": len(re.findall(r"isinstance\([^)]*[a-z]Model\b(?<!ConfigModel)(?<!LoadedModel)", text)),
    }


def _count_texts() -> Mapping[str, int]:
    generated = {DOCS / "reference" / page for page in make_reference.PAGES}
    readme = (ROOT / "README.md").read_text()
    return {
        "readme_words": len(readme.split()),
        "readme_links": readme.count("]("),
        "words_by_hand": sum(len(p.read_text().split()) for p in DOCS.rglob("*.md") if p not in generated),
    }


def _count_names() -> Mapping[str, int]:
    verbs = dict(walk_verbs(main))
    kinds = {kind for kinds in reference_benchmark.kinds_by_page().values() for kind in kinds}
    hyperparameters = {
        (kind, field)
        for entry in METHODS.values()
        for settings in entry.presets.values()
        for kind in type(settings).mro()
        for field in {*getattr(kind, "model_fields", ())} & {*inspect.get_annotations(kind)}
    }
    return {
        "verbs": len(verbs),
        "options": sum(isinstance(each, click.Option) for verb in verbs.values() for each in verb.params),
        "fields_of_benchmark_files": sum(len(kind.model_fields) for kind in kinds),
        "hyperparameters": len(hyperparameters),
        "methods": len(METHODS),
    }


def _count_database() -> Mapping[str, int]:
    with tempfile.TemporaryDirectory() as root:
        locations = Locations(root=Path(root))
        publish_metrics(locations)
        with open_metrics(locations.metrics) as connection:
            columns = connection.execute("SELECT table_name FROM duckdb_columns() WHERE NOT internal").fetchall()
    names = [name for (name,) in columns]
    return {
        "tables_and_views": len(set(names)),
        "columns": len(names),
        "columns_of_evaluations": names.count("evaluations"),
    }


def _count_reach() -> Mapping[str, int]:
    """Return how many modules each verb's module imports, directly or not, also inside functions."""
    imported: dict[str, set[str]] = {}
    for path, module in make_architecture.imports():
        imported.setdefault(".".join(path.with_suffix("").parts).removesuffix(".__init__"), set()).add(module)
    return {f"modules_of_{verb}": len(_closure(f"cli.{verb}", imported)) for verb in ("leaderboard", "compare", "run")}


def _closure(start: str, imported: Mapping[str, Iterable[str]]) -> set[str]:
    seen, to_come = set[str](), [start]
    while to_come:
        name = to_come.pop()
        if name in imported and name not in seen:
            seen.add(name)
            to_come.extend(each for module in imported[name] for each in (module, module.rpartition(".")[0]))
    return seen


def _lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


if __name__ == "__main__":
    for name, number in count_all().items():
        sys.stdout.write(f"{number:8,} {name}\n")
