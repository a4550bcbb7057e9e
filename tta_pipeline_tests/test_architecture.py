"""Which room of the package may import which, that the picture of it is the code's, and that facts have types."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
import make_architecture  # noqa: E402

BELOW = {
    "adaptation": (),
    "corruptions": (),
    "labels": (),
    "records": ("benchmarks",),
    "shifts": (),
    "sources": ("corruptions", "labels", "shifts"),
    "benchmarks": ("adaptation", "labels", "shifts", "sources"),
    "shards": ("benchmarks", "labels", "shifts", "sources"),
    "models": ("benchmarks", "labels", "shards"),
    "streaming": ("shards", "sources"),
    "evaluation": (
        "adaptation", "benchmarks", "labels", "models", "shifts", "sources", "shards", "streaming", "records",
    ),
    "training": ("benchmarks", "evaluation", "models", "records", "shards", "streaming"),
    "tuning": ("benchmarks", "evaluation", "records", "shards"),
    "metrics": ("benchmarks", "records", "shifts"),
    "reports": ("benchmarks", "shards", "streaming", "evaluation", "records", "metrics", "loader_bench"),
    "loader_bench": ("benchmarks", "shards", "streaming"),
    "publishing": ("benchmarks", "shards", "shifts", "streaming"),
    "reproduction": ("benchmarks", "evaluation", "records"),
    "pages": (
        "benchmarks", "evaluation", "metrics", "records", "reports", "shards", "significance", "streaming",
    ),
    "significance": ("benchmarks", "evaluation", "records", "shards"),
    "new_project": (),
    "new_benchmark": ("adaptation", "benchmarks", "shifts", "sources"),
    "cluster": ("benchmarks", "evaluation", "metrics", "records", "shards", "training"),
    "resources": ("cluster", "evaluation", "records", "metrics"),
    "doctor": (
        "benchmarks", "labels", "models", "sources", "shards", "evaluation", "records", "metrics", "resources",
    ),
    "assets": (
        "benchmarks", "cluster", "labels", "models", "sources", "shards", "training", "evaluation", "records",
        "tuning", "metrics", "pages", "loader_bench", "reports", "resources",
    ),
    "cli": (
        "adaptation", "assets", "benchmarks", "cluster", "labels", "models", "shifts", "sources", "shards", "streaming",
        "evaluation", "records", "tuning", "metrics", "pages", "reports", "resources", "loader_bench",
        "new_benchmark",
        "new_project", "doctor", "publishing", "reproduction", "significance",
    ),
}  # fmt: skip
"""What each room may import."""


@pytest.mark.parametrize("room", make_architecture.rooms())
def test_a_room_imports_only_rooms_below_it(room: str):
    """Every room is in the table above."""
    assert make_architecture.edges()[room] <= set(BELOW[room])


def test_no_two_rooms_know_each_other():
    """Nor does a longer way lead from a room back to it: the table has an order in which each comes after its own."""
    done = set[str]()
    while left := set(BELOW) - done:
        ready = {room for room in left if set(BELOW[room]) <= done}
        assert ready, f"{sorted(left)} need each other"
        done |= ready


def test_only_the_dagster_layer_imports_dagster():
    """`definitions.py`, `assets/` and `resources/`."""
    package = make_architecture.PACKAGE
    imported = re.compile(r"^\s*(import|from) dagster\b", re.MULTILINE)
    found = {path.relative_to(package) for path in package.rglob("*.py") if imported.search(path.read_text())}

    assert found
    assert {"definitions.py", "assets", "resources"} >= {path.parts[0] for path in found}


def test_the_picture_is_that_of_the_code():
    """Made by `docs/make_architecture.py`."""
    text = make_architecture.PAGE.read_text()

    assert text == make_architecture.page(text)


UNTYPED = re.compile(r"\b(dict|Dict|Mapping)\[str, Any\]")
READ_FROM_FILES = {
    "yaml_document.py: read_document",
    "benchmarks/experiments.py: Experiment", "records/files.py: Record", "records/evaluation.py: from_facts",
    "records/training.py: from_facts", "records/tuning.py: from_facts",
}  # fmt: skip
"""Where YAML or JSON has just been read, and nothing is known of it."""


def untyped(tree: ast.AST) -> Iterator[str]:
    """Yield the public functions and classes in *tree* that take, return or hold facts without types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            parameters = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            annotations = [node.returns, *(parameter.annotation for parameter in parameters)]
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            annotations = [field.annotation for field in node.body if isinstance(field, ast.AnnAssign)]
        else:
            continue
        if any(UNTYPED.search(ast.unparse(annotation)) for annotation in annotations if annotation):
            yield node.name


def test_facts_have_types():
    """No public signature has a dictionary of anything, except where YAML or JSON is read."""
    package = make_architecture.PACKAGE
    found = {
        f"{path.relative_to(package).as_posix()}: {name}"
        for path in package.rglob("*.py")
        for name in untyped(ast.parse(path.read_text()))
    }

    assert READ_FROM_FILES == found


WALKED = re.compile(r"`(\w[\w/]*\.py): ([\w.]+)`")


@pytest.mark.parametrize(("file", "name"), WALKED.findall(make_architecture.PAGE.read_text()))
def test_the_walks_name_what_there_is(file: str, name: str):
    """Each file of docs/architecture.md defines the function or class that is named beside it."""
    body = ast.parse((make_architecture.PACKAGE / file).read_text()).body
    for part in name.split("."):
        (found,) = [node for node in body if getattr(node, "name", None) == part]
        body = getattr(found, "body", [])


@pytest.mark.parametrize("module", ["evaluation.experiment", "metrics.database", "definitions"])
def test_what_reads_results_needs_no_torch(module: str):
    """Nor torchvision nor webdataset: the code location and the report start without the seconds it takes."""
    program = f"import sys, tta_pipeline.{module}; print({{'torch', 'torchvision', 'webdataset'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert "set()" == done.stdout.strip()


def test_only_one_file_knows_kinds_of_devices():
    """Another kind touches `evaluation/accelerator.py`; DALI, which is NVIDIA's, is asked for by its own name."""
    known = re.compile(r"torch\.(cuda|xpu|mps|hip)\b|backends\.(cuda|cudnn|mps)|[\"'](cuda|xpu|mps|nccl)[\"']")
    package = DOCS.parent / "tta_pipeline"
    exempt = {"evaluation/accelerator.py", "streaming/baselines/dali_loader.py"}

    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if known.search(path.read_text(encoding="utf-8"))
    }

    assert exempt == found
