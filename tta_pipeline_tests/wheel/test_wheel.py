"""The package as others install it: built, alone in an environment, without a clone in sight."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = next(path for path in sys.path if path.endswith("site-packages"))
pytestmark = pytest.mark.wheel


def built(source: Path, target: Path, *options: str) -> Path:
    """Return the wheel of the project in the folder *source*."""
    # The tools are installed, with the versions that were tested: nothing is fetched.
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", target, *options, source]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(target.glob("*.whl"))


def environment(folder: Path, *wheels: Path) -> Path:
    """Make an environment with *wheels*. What they require is taken from here; the clone installed here is not."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-I", "-m", "pip", "install", "--quiet", "--no-deps", *wheels], check=True)
    asked = [python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    Path(own, "required.pth").write_text(f"{SITE}\n")
    for name in ("dg", "dagster"):
        script = Path(sys.executable).with_name(name).read_text().partition("\n")[2]
        path = folder / "bin" / name
        path.write_text(f"#!{python}\n{script}")
        path.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, as a package index would have both."""
    found = built(ROOT, tmp_path_factory.mktemp("dist"))
    assert len(list(found.parent.glob("*.tar.gz"))) == 1
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel."""
    return environment(tmp_path_factory.mktemp("bare"), wheel)


def run(bare: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the environment in *folder*."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TTA_", "DAGSTER_", "PYTHON"))}
    env = {**kept, "PATH": f"{bare / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_wheel_has_what_the_package_reads_and_nothing_of_the_tests(wheel: Path):
    """Every file beside the code that git has is in it."""
    listed = subprocess.run(["git", "ls-files", "tta_pipeline"], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())

    assert set(listed.stdout.split()) <= names
    assert not [name for name in names if name.startswith(("tta_pipeline_tests", "bench", "docs"))]


def test_a_project_of_its_own_evaluates_and_has_a_page(bare: Path, tmp_path: Path):
    """`init`, `make demo`, the leaderboard and the report, with the wheel alone."""
    where = run(bare, tmp_path, "python", "-c", "import tta_pipeline; print(tta_pipeline.__file__)")
    assert where.stdout.startswith(str(bare)), where

    made = run(bare, tmp_path, "tta-pipeline", "init", "my-project")
    assert made.returncode == 0, made.stderr
    demo = run(bare, tmp_path / "my-project", "make", "demo")

    assert demo.returncode == 0, demo.stderr[-3000:]
    assert all(name in demo.stdout for name in ("tent", "norm", "source"))
    report = tmp_path / "my-project" / "data" / "first" / "report"
    assert {path.name for path in report.iterdir()} >= {"index.html", "compare.html", "cells", "static"}
    assert (report / "static" / "vendor" / "vega.min.js").stat().st_size > 100_000
    versus = run(bare, tmp_path / "my-project", "tta-pipeline", "compare", "tent", "source")
    assert "fog" in versus.stdout
    listed = run(bare, tmp_path / "my-project", "dg", "list", "defs")
    assert "first/evaluation/tent" in listed.stdout
    components = run(bare, tmp_path / "my-project", "dg", "list", "components")
    assert "tta_pipeline.RobustnessBenchmark" in components.stdout


MIXER = "{kind: trained, network: {kind: conv_mixer}, epochs: 2}"
GATED = "{model: mixer, method: gated_norm, batch_size: 50, hyperparameters: {gate: 0.3}}"


def test_a_method_and_a_network_of_another_package_are_evaluated(wheel: Path, tmp_path: Path):
    """`examples/plugin/`, built and installed beside ours: both are found by name, trained, evaluated and compared."""
    plugin = Path(shutil.copytree(ROOT / "examples" / "plugin", tmp_path / "plugin"))
    both = environment(tmp_path / "both", wheel, built(plugin, tmp_path / "dist", "--wheel"))
    made = run(both, tmp_path, "tta-pipeline", "init", "my-project")
    assert made.returncode == 0, made.stderr
    project = tmp_path / "my-project"
    path = project / "data" / "benchmarks" / "first.yaml"
    text = path.read_text().replace("models:\n", f"models:\n  mixer: {MIXER}\n")
    path.write_text(f"{text}  gated: {GATED}\n")

    evaluated = run(both, project, "tta-pipeline", "run", "first", "--cell", "fog|5")
    compared = run(both, project, "tta-pipeline", "compare", "gated", "source", "--json")
    examined = run(both, project, "tta-pipeline", "doctor")

    assert evaluated.returncode == 0, evaluated.stderr[-3000:]
    assert compared.returncode == 0, compared.stderr
    assert "method gated_norm: of tta-plugin" in examined.stdout
    assert "model conv_mixer: of tta-plugin" in examined.stdout
    (plan,) = (project / "data" / "results" / "first" / "plans").glob("gated.json")
    assert all(f"tta_plugin/{name}" in plan.read_text() for name in ("entries.py", "gated_norm.py"))
