"""Methods that other installed packages add by an entry point, such as the one of `examples/plugin/`."""

import importlib
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.errors import AdaptationError
from tta_pipeline.evaluation.fingerprint import method_code_sha256, own_method_files
from tta_pipeline.extras.doctor.machine_checks import check_added_methods
from tta_pipeline.extras.new_project.template import EXAMPLES, benchmark_text
from tta_pipeline.methods import build
from tta_pipeline.methods.catalogue import added_methods, entry_path, find_method
from tta_pipeline.methods.losses import entropy
from tta_pipeline_tests.methods.models import NUM_CLASSES, batch_norm_model, batches, surer

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
GATED = "tta_gated_norm.entries:GATED_NORM"

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package as pip does: its files, and a folder that says what it is and which methods it adds."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)

    def installed(package: str, **methods: str) -> Path:
        about = tmp_path / f"{package.replace('-', '_')}-0.1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
        lines = [f"{name} = {path}" for name, path in methods.items()]
        (about / "entry_points.txt").write_text("\n".join(["[tta_pipeline.methods]", *lines]))
        added_methods.cache_clear()
        return tmp_path

    yield installed
    added_methods.cache_clear()
    forget()


@pytest.fixture
def gated(install: Install) -> Path:
    """The folder in which the package of `examples/plugin/` is installed."""
    folder = install("tta-gated-norm", gated_norm=GATED)
    return Path(shutil.copytree(PLUGIN / "tta_gated_norm", folder / "tta_gated_norm"))


def forget() -> None:
    """Let the package be imported anew, as a new process does."""
    for name in [name for name in sys.modules if name.startswith(("tta_gated_norm", "broken_package"))]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.usefixtures("gated")
def test_a_method_of_another_package_is_used_like_ours():
    """By its name; its hyperparameters are checked, and images whose prediction is unsure have the batch's."""
    images = batches()[0]
    source, norm = (build(name, surer(batch_norm_model()), num_classes=NUM_CLASSES) for name in ("source", "norm"))
    sure, by_batch = source.predict(images), norm.predict(images)
    gate = float(entropy(sure).median() / math.log(NUM_CLASSES)) + 1e-6
    adapted = build("gated_norm", surer(batch_norm_model()), num_classes=NUM_CLASSES, gate=gate)

    found = adapted.predict(images)

    is_unsure = entropy(sure) >= gate * math.log(NUM_CLASSES)
    assert 0 < is_unsure.sum() < len(images)
    assert by_batch[is_unsure].equal(found[is_unsure])
    assert sure[~is_unsure].equal(found[~is_unsure])
    assert "gated_norm" == adapted.name
    assert "gated_norm" in benchmark_text("mine", next(iter(EXAMPLES.values())))
    with pytest.raises(AdaptationError, match=r"^gated_norm: gate"):
        build("gated_norm", batch_norm_model(), num_classes=NUM_CLASSES, gate=2)
    with pytest.raises(ValueError, match="expected at least 2"):
        Experiment(model="m", method="gated_norm", preset="cifar", batch_size=1)
    with pytest.raises(ValueError, match="did you mean gated_norm"):
        find_method("gated_nrom")


@pytest.mark.parametrize("file", ["entries.py", "method.py"])
def test_its_code_is_in_the_fingerprint(gated: Path, file: str):
    """An edit of the entry or of what it names outdates results, another method's stay."""
    added, ours = (Experiment(model="m", method=name, preset="cifar") for name in ("gated_norm", "norm"))
    before = {each.method: method_code_sha256(each) for each in (added, ours)}
    path = gated / file
    path.write_text(path.read_text() + "\nEDITED = True\n")
    forget()

    assert before["gated_norm"] != method_code_sha256(added)
    assert before["norm"] == method_code_sha256(ours)
    assert {str(gated / name) for name in ("__init__.py", "entries.py", "method.py")} == set(own_method_files(added))
    assert GATED == entry_path("gated_norm")
    assert entry_path("norm") is None


def test_a_name_that_is_taken_is_refused(install: Install):
    """Both packages are named, whether one is this package or not; a name of which tables make another is refused."""
    install("one-more-tent", **{"tent": GATED, "twice": GATED, "a+b": GATED})
    install("another", twice=GATED)

    for name, said in (
        ("tent", "method is 'tent', of tta_pipeline and of one-more-tent; expected one package"),
        ("twice", "of another and of one-more-tent|of one-more-tent and of another"),
        ("a+b", "'a\\+b' of the package one-more-tent; expected a name of letters"),
    ):
        with pytest.raises(ValueError, match=said):
            find_method(name)
    find_method("norm")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "raise RuntimeError('no\\nmethod')",
            r"importing 'broken_package:ENTRY' raised RuntimeError\('no\\nmethod'\)",
        ),
        ("ENTRIES = 1", "there is no 'broken_package:ENTRY'"),
        ("ENTRY = 1", "of type int"),
    ],
)
def test_a_broken_package_is_named_where_it_is_asked_for(install: Install, gated: Path, code: str, said: str):
    """In one line, and by the doctor; what does not ask for it does not import it."""
    folder = install("broken-package", broken="broken_package:ENTRY")
    (folder / "broken_package.py").write_text(f"{code}\n")

    find_method("tent")
    find_method("gated_norm")
    assert "broken_package" not in sys.modules
    with pytest.raises(ValueError, match=f"^method is 'broken' of the package broken-package.*{said}") as raised:
        find_method("broken")
    assert 1 == len(str(raised.value).splitlines())
    found = {each.subject: each for each in check_added_methods()}
    assert "ok" == found["method gated_norm"].mark
    assert "tta-gated-norm" in found["method gated_norm"].found
    assert "fault" == found["method broken"].mark
    assert "correct or uninstall broken-package" == found["method broken"].advice
    assert gated.exists()
