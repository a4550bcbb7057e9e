"""Which room of the package may import which, that the picture is drawn from the code, and that facts have types."""

import ast
import re
import subprocess
import sys
from collections.abc import Container, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
import make_architecture  # noqa: E402

ORDER = (
    "errors", "util", "domain", "results", "data", "methods", "benchmarks", "shards", "models", "loading", "evaluation",
    "extras", "report", "defs", "definitions", "api", "cli", "__main__",
)  # fmt: skip
"""The rooms from the ground up: each may import those before it. What comes before `extras` is the core."""


def looks_back() -> Iterator[tuple[str, str]]:
    """Yield each file that imports a room after its own, or a leaf that imports another, with what it imports."""
    for path, module in make_architecture.imports():
        room, parts = path.with_suffix("").parts[0], module.split(".")
        if ORDER.index(parts[0]) > ORDER.index(room):
            yield path.as_posix(), parts[0]
        if room == parts[0] == "extras" and len(parts) > 1 and parts[1] != path.with_suffix("").parts[1]:
            yield path.as_posix(), "/".join(parts[:2])


def test_a_room_imports_only_rooms_before_it_and_no_leaf_another():
    """The list is that of docs/contributing/architecture.md; nothing in the core imports a leaf."""
    assert [] == list(looks_back())


OF_EXTRAS = {
    "cleanup": {"cli/prune.py"},
    "cluster": {"cli/submit.py"},
    "doctor": {"cli/doctor.py"},
    "loader_bench": {"cli/bench.py", "defs/loader_benchmark.py"},
    "new_project": {"cli/init.py", "cli/new_benchmark.py"},
    "reproduction": {"cli/add_results.py", "cli/publish_results.py", "cli/reproduce.py"},
    "training": {"defs/launched_rank.py", "defs/source_model.py"},
    "tuning": {"cli/tune.py", "defs/tuning.py"},
}  # fmt: skip
"""The verbs and assets of each extra."""


def test_an_extra_is_its_folder_with_its_verbs_and_assets():
    """Nothing else imports it, so it goes with these files and their lines in the tables of verbs and assets."""
    found: dict[str, set[str]] = {}
    for path, module in make_architecture.imports():
        if module.startswith("extras.") and path.parts[0] != "extras":
            found.setdefault(module.split(".")[1], set()).add(path.as_posix())

    assert OF_EXTRAS == found


def test_no_files_import_each_other():
    """Not even for their types, nor over several files; a package's `__init__` is a file."""
    names = {module_of(path): path for path in make_architecture.PACKAGE.rglob("*.py")}
    imported = {name: {other for other in modules_of(path, names) if other != name} for name, path in names.items()}

    TopologicalSorter(imported).prepare()  # raises CycleError


def module_of(path: Path) -> str:
    """Return the dotted name of the module in *path*."""
    parts = path.relative_to(make_architecture.ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(path: Path, names: Container[str]) -> Iterator[str]:
    """Yield those of the modules *names* that *path* imports, anywhere in the file."""
    for node in make_architecture.statements(path):
        if isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in names else str(node.module) for name in inner)
        else:
            yield from (alias.name for alias in node.names)


AT_SEAMS = ("__main__.py", "cli/", "defs/", "definitions.py", "api.py", "methods/__init__.py", "extras/doctor/",
            "results/database/changes.py")  # fmt: skip
"""Where imports wait inside functions: for a heavy package; in the doctor, since it reports on a broken one."""


def test_imports_of_the_package_are_plain_inside_rooms():
    """Inside a function they would hide what a room needs, and show a circle only when it is walked."""
    found = {
        path.relative_to(make_architecture.PACKAGE).as_posix()
        for path in make_architecture.PACKAGE.rglob("*.py")
        for function in make_architecture.walk(make_architecture.parsed(path))
        if isinstance(function, ast.FunctionDef)
        for node in make_architecture.walk(function)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tta_pipeline")
    }

    assert not [path for path in found if not path.startswith(AT_SEAMS)]


def test_the_list_of_rooms_is_the_tree():
    """docs/contributing/architecture.md names what is in the package, in the order of imports."""
    page = make_architecture.PAGE.read_text()
    listed = re.findall(r"^  (\w+)(?:/|\.py) ", page, re.MULTILINE)
    there = {path.stem for path in make_architecture.PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}

    assert list(ORDER) == listed
    assert set(ORDER) == there - {"__init__", "__pycache__"}


def test_only_the_dagster_layer_imports_dagster():
    """`definitions.py` and `defs/`."""
    package = make_architecture.PACKAGE
    imported = re.compile(r"^\s*(import|from) dagster\b", re.MULTILINE)
    found = {path.relative_to(package) for path in package.rglob("*.py") if imported.search(path.read_text())}

    assert found
    assert {"definitions.py", "defs"} == {path.parts[0] for path in found}


def test_the_picture_is_that_of_the_code():
    """Made by `docs/make_architecture.py`."""
    text = make_architecture.PAGE.read_text()

    assert text == make_architecture.page(text)


UNTYPED = re.compile(r"\b(dict|Dict|Mapping)\[str, Any\]")
READ_FROM_FILES = {
    "util/yaml_document.py: read_document", "benchmarks/load_files.py: validate_content",
    "benchmarks/experiment_specs.py: Experiment", "results/record_fields.py: from_facts",
}  # fmt: skip
"""Where YAML or JSON has just been read, and nothing is known of it."""


def untyped(tree: ast.AST) -> Iterator[str]:
    """Yield the public functions and classes in *tree* that take, return or hold facts without types."""
    for node in make_architecture.walk(tree):
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
        for name in untyped(make_architecture.parsed(path))
    }

    assert READ_FROM_FILES == found


WALKED = re.compile(r"`(\w[\w/]*\.py): ([\w.]+)`")


@pytest.mark.parametrize(("file", "name"), WALKED.findall(make_architecture.PAGE.read_text()))
def test_the_walks_name_what_there_is(file: str, name: str):
    """Each file of docs/contributing/architecture.md defines the function or class that is named beside it."""
    body = make_architecture.parsed(make_architecture.PACKAGE / file).body
    for part in name.split("."):
        (found,) = [node for node in body if getattr(node, "name", None) == part]
        body = getattr(found, "body", [])


def test_what_reads_results_needs_no_torch():
    """Nor torchvision nor webdataset: the code location, the leaderboard and `compare` start without its seconds."""
    modules = (
        "evaluation.experiment_results", "results.database.publication", "definitions", "report.significance.versus",
        "report.pages.leaderboard_intervals",
    )  # fmt: skip
    imported = ", ".join(f"tta_pipeline.{name}" for name in modules)
    program = f"import sys, {imported}; print({{'torch', 'torchvision', 'webdataset'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert "set()" == done.stdout.strip()


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (
            ("cli.leaderboard", "report.formats", "report.intervals"),
            ("torch", "numpy", "pandas", "pyarrow", "matplotlib", "dagster", "yaml", "tta_pipeline.benchmarks"),
        ),
        (("cli.list_experiments", "report.experiment_table", "report.plan_notes"), ("torch", "pyarrow", "dagster")),
    ],
)
def test_quick_verbs_need_no_heavy_package(modules: tuple[str, ...], heavy: tuple[str, ...]):
    """A leaderboard whose intervals are kept, and a list of experiments, start without what only others need."""
    imported = ", ".join(f"tta_pipeline.{name}" for name in modules)
    program = f"import sys, {imported}; print({{*{heavy}}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert "set()" == done.stdout.strip()


def test_only_one_room_knows_kinds_of_devices():
    """Another kind touches `evaluation/device/`."""
    known = re.compile(r"torch\.(cuda|xpu|mps|hip)\b|backends\.(cuda|cudnn|mps)|[\"'](cuda|xpu|mps|nccl)[\"']")
    package = DOCS.parent / "tta_pipeline"
    exempt = {"evaluation/device/arithmetic.py", "evaluation/device/devices.py"}

    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if known.search(path.read_text(encoding="utf-8"))
    }

    assert exempt == found
