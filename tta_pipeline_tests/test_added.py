"""Methods and kinds of model that other installed packages add, such as the one of `examples/plugin/`."""

import importlib
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.model_specs import AnyModel, ModelSection
from tta_pipeline.errors import AdaptationError
from tta_pipeline.evaluation.fingerprint import method_code_sha256, own_method_files
from tta_pipeline.extras.doctor.machine_checks import check_added
from tta_pipeline.extras.new_project.template import EXAMPLES, benchmark_text
from tta_pipeline.methods import build
from tta_pipeline.methods.catalogue import entry_path, find_method
from tta_pipeline.methods.losses import entropy
from tta_pipeline.models.model_kind import kind_of
from tta_pipeline.util.added import added
from tta_pipeline.util.validation_errors import mistakes
from tta_pipeline_tests.methods.models import NUM_CLASSES, batch_norm_model, batches, surer

PLUGIN = Path(__file__).parents[1] / "examples" / "plugin"
GATED = "tta_plugin.entries:GATED_NORM"
MIXER = "tta_plugin.sections:ConvMixerSection"

Install = Callable[..., Path]
MODELS: TypeAdapter[ModelSection] = TypeAdapter(AnyModel)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package as pip does: its files, and a folder that says what it is and what it adds."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)

    def installed(package: str, models: Mapping[str, str] | None = None, **methods: str) -> Path:
        about = tmp_path / f"{package.replace('-', '_')}-0.1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
        lines = [
            line
            for group, points in (("methods", methods), ("models", models or {}))
            for line in (f"[tta_pipeline.{group}]", *(f"{name} = {path}" for name, path in points.items()))
        ]
        (about / "entry_points.txt").write_text("\n".join(lines))
        added.cache_clear()
        return tmp_path

    yield installed
    added.cache_clear()
    forget()


@pytest.fixture
def plugin(install: Install) -> Path:
    """The folder in which the package of `examples/plugin/` is installed."""
    folder = install("tta-plugin", {"conv_mixer": MIXER}, gated_norm=GATED)
    return Path(shutil.copytree(PLUGIN / "tta_plugin", folder / "tta_plugin"))


def forget() -> None:
    """Let the package be imported anew, as a new process does."""
    for name in [name for name in sys.modules if name.startswith(("tta_plugin", "broken_package"))]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.usefixtures("plugin")
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


@pytest.mark.parametrize("file", ["entries.py", "gated_norm.py"])
def test_its_code_is_in_the_fingerprint(plugin: Path, file: str):
    """An edit of the entry or of what it names outdates results, another method's stay."""
    added, ours = (Experiment(model="m", method=name, preset="cifar") for name in ("gated_norm", "norm"))
    before = {each.method: method_code_sha256(each) for each in (added, ours)}
    path = plugin / file
    path.write_text(path.read_text() + "\nEDITED = True\n")
    forget()

    assert before["gated_norm"] != method_code_sha256(added)
    assert before["norm"] == method_code_sha256(ours)
    assert {str(plugin / name) for name in ("__init__.py", "entries.py", "gated_norm.py")} == set(
        own_method_files(added)
    )
    assert GATED == entry_path("gated_norm")
    assert entry_path("norm") is None


def test_a_name_that_is_taken_is_refused(install: Install):
    """Both packages are named, whether one is this package or not; a name of which tables make another is refused."""
    install("one-more-tent", **{"tent": GATED, "twice": GATED, "a+b": GATED})
    install("another", twice=GATED)

    for name, said in (
        ("tent", "method 'tent' is provided by tta_pipeline and by one-more-tent; expected only one package"),
        ("twice", "by another and by one-more-tent|by one-more-tent and by another"),
        ("a+b", "'a\\+b' of the package one-more-tent; expected a name with letters"),
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
        ("ENTRIES = 1", "there is no 'broken_package:ENTRY': broken_package has none; expected a MethodEntry"),
        ("from tta_plugin.entries import GATED_NORM as NORM", "broken_package has NORM; expected"),
        ("ENTRY = 1", "of type int"),
    ],
)
def test_a_broken_package_is_named_where_it_is_asked_for(install: Install, plugin: Path, code: str, said: str):
    """In one line, and by the doctor; what does not ask for it does not import it."""
    folder = install("broken-package", broken="broken_package:ENTRY")
    (folder / "broken_package.py").write_text(f"{code}\n")

    find_method("tent")
    find_method("gated_norm")
    assert "broken_package" not in sys.modules
    with pytest.raises(ValueError, match=f"^method is 'broken' of the package broken-package.*{said}") as raised:
        find_method("broken")
    assert 1 == len(str(raised.value).splitlines())
    found = {each.subject: each for each in check_added()}
    assert "ok" == found["method gated_norm"].mark
    assert "tta-plugin" in found["method gated_norm"].found
    assert "fault" == found["method broken"].mark
    assert "correct or uninstall broken-package" == found["method broken"].advice
    assert plugin.exists()


def described(**fields: object) -> ModelSection:
    """Return the section of a model to train whose network another package describes, as a benchmark file has it."""
    model: ModelSection = MODELS.validate_python({"kind": "trained", "network": {"kind": "conv_mixer", **fields}})
    return model


@pytest.mark.usefixtures("plugin")
def test_a_network_of_another_package_is_used_like_ours():
    """Its fields are checked; it is made, trained and written to a file like the small network."""
    model = described(width=8, depth=1).training
    assert model is not None
    logits = kind_of(model.network).architecture().make(5)(torch.zeros(2, 3, 16, 16))

    assert (2, 5) == logits.shape
    assert {"kind": "conv_mixer", "width": 8, "depth": 1} == model.model_dump(mode="json")["network"]
    assert model == MODELS.validate_python(model.model_dump(mode="json"))
    assert model == MODELS.validate_python({"kind": "trained", "network": model.network})
    for faulty, said in (({"width": 0}, "network.width is 0"), ({"widht": 4}, "unknown field widht")):
        with pytest.raises(ValidationError) as raised:
            described(**faulty)
        assert said in "; ".join(mistakes(raised.value, "model"))


@pytest.mark.parametrize("file", ["sections.py", "conv_mixer.py"])
def test_the_code_of_its_network_is_in_the_fingerprint(plugin: Path, file: str):
    """So are the fields of its section; an edit of what only the method has changes nothing."""
    before, wider = (kind_of(described(width=width)).code for width in (8, 16))
    for name in ("gated_norm.py", file):
        unedited = kind_of(described(width=8)).code
        (plugin / name).write_text((plugin / name).read_text() + "\nEDITED = True\n")
        forget()

    assert before == unedited
    assert before not in (wider, kind_of(described(width=8)).code)
    assert not kind_of(MODELS.validate_python({"kind": "trained"})).code


def test_a_kind_of_model_that_is_none_is_refused(install: Install, plugin: Path):
    """In one line that names the package, in a benchmark file and by the doctor."""
    install("one-more-timm", {"timm": MIXER, "gate": GATED})

    for kind, said in (
        ("timm", "'timm' is provided by tta_pipeline and by one-more-timm"),
        ("gate", "correct or uninstall one-"),
    ):
        with pytest.raises(ValueError, match=said):
            MODELS.validate_python({"kind": kind, "architecture": "resnet18"})
    found = {each.subject: each.mark for each in check_added()}
    assert plugin.exists()
    assert ["ok", "fault", "fault"] == [found[f"model {name}"] for name in ("conv_mixer", "timm", "gate")]
