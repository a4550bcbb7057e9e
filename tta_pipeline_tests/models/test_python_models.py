"""A network of the user's own code is a model like any other."""

import argparse
import hashlib
import importlib
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

import tta_pipeline as tta
from tta_pipeline.benchmarks.model_specs import PythonModel
from tta_pipeline.errors import ClassCountError, EvaluationError
from tta_pipeline.extras.training.initial_network import load_network
from tta_pipeline.methods import build
from tta_pipeline.models.model_kind import ModelContext, kind_of
from tta_pipeline.models.weights import read_state
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.user_functions import load_function
from tta_pipeline_tests.conftest import run_python

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
TEN = tuple(f"c{number}" for number in range(10))
BLOCKS = """
from torch import nn


def block(channels_in, channels):
    return nn.Sequential(nn.Conv2d(channels_in, channels, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
"""
NETWORKS = """
from torch import nn

from their_blocks import block


class Network(nn.Module):
    def __init__(self, width=4, num_classes=10):
        super().__init__()
        self.blocks = nn.Sequential(block(3, width), block(width, width))
        self.linear = nn.Linear(width, num_classes)

    def forward(self, images):
        return self.linear(self.blocks(images).mean((2, 3)))


def of_ten():
    return Network()


def of_any(num_classes):
    return Network(num_classes=num_classes)


def words():
    return "a network"


def broken():
    raise RuntimeError("no such width")
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the user's two modules, which are forgotten afterwards."""
    (tmp_path / "their_blocks.py").write_text(BLOCKS)
    (tmp_path / "their_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """Let this process find the user's modules anew."""
    for name in ("their_networks", "their_blocks"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    load_function.cache_clear()


def network(**arguments: int) -> nn.Module:
    """Return the user's network with random weights."""
    forget()
    return kind_of(spec("Network", **arguments)).architecture().make(10)


def spec(name: str, path: Path | None = None, state: str | None = None, **arguments: int) -> PythonModel:
    """Return the model that a benchmark file would describe."""
    section = {"kind": "python", "factory": f"their_networks:{name}", "arguments": arguments, "state": state}
    if path is not None:
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        section |= {"weights": path, "sha256": sha256, "mean": MEAN, "std": STD}
    return PythonModel.model_validate(section)


def saved(content: object, path: Path = Path("mine.pth")) -> Path:
    """Save *content* as training code does."""
    torch.save(content, path)
    return path


def loaded(found: PythonModel, **changes: int) -> nn.Module:
    """Return the model as an evaluation gets it."""
    return kind_of(found).load(ModelContext(name="mine", classes=TEN, image_size=32, **changes)).make().eval()


@pytest.mark.parametrize("name", ["Network", "of_ten", "of_any"])
def test_a_class_or_a_function_is_a_model(name: str):
    """It gives the logits of the bare network on normalised images, and may ask for the number of classes."""
    bare, images = network(), torch.rand(2, 3, 32, 32)
    found = loaded(spec(name, saved({"epoch": 3, "state_dict": bare.state_dict()})))

    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    with torch.inference_mode():
        torch.testing.assert_close(bare.eval()((images - mean) / std), found(images))


def wrapped(bare: nn.Module) -> Iterator[Mapping[str, object]]:
    """Yield checkpoints of *bare* as the repositories of papers save them."""
    state = bare.state_dict()
    parallel = {f"module.{name}": weights for name, weights in state.items()}
    yield parallel
    yield {"state_dict": parallel, "optimizer": {"state": {}, "param_groups": []}, "best_acc1": 0.9, "epoch": 200}
    yield {"net": parallel, "acc": 95.5, "epoch": 7}
    yield {"model": "wrn", "model_state_dict": state}
    yield {"state_dict": {f"model.{name}": weights for name, weights in state.items()}, "global_step": 3}
    yield {"model": {f"_orig_mod.module.{name}": weights for name, weights in state.items()}}
    yield {"ema": {"state_dict": {f"network.{name}": weights for name, weights in state.items()}}}
    yield dict(AveragedModel(bare).state_dict())


@pytest.mark.parametrize("number", range(8))
def test_weights_are_found_where_training_code_puts_them(number: int):
    """Under the usual keys, and under the names that wrappers give them."""
    bare, images = network(), torch.rand(2, 3, 32, 32)
    found = loaded(spec("of_ten", saved([*wrapped(bare)][number])))

    with torch.inference_mode():
        torch.testing.assert_close(bare.eval()(images), found.network(images))


def test_of_two_state_dicts_none_is_guessed():
    """The error names both; `state` chooses, and the identity of the model has the choice."""
    bare, average = network(), network()
    path = saved({"state_dict": bare.state_dict(), "ema": {"state_dict": average.state_dict()}})
    with pytest.raises(EvaluationError, match=r"mine\.pth.*\b2\b.*\bstate_dict, ema\.state_dict\b.*`state`"):
        loaded(spec("of_ten", path))
    with pytest.raises(EvaluationError, match=r"mine\.pth.*'ema'.*\bstate_dict, ema\.state_dict\b"):
        loaded(spec("of_ten", path, "ema"))

    for state, expected in {"state_dict": bare, "ema.state_dict": average}.items():
        model = kind_of(spec("of_ten", path, state)).load(ModelContext(name="mine", classes=TEN))
        assert state == model.identity["code"]["state"]
        assert torch.equal(expected.linear.weight, model.make_network().linear.weight)


def test_a_file_without_a_state_dict_is_described():
    """With what it holds, and the keys that are looked under."""
    sha256 = hashlib.sha256(saved({"weights_of_it": {}, "epoch": 3}).read_bytes()).hexdigest()
    with pytest.raises(EvaluationError, match=r"mine\.pth.*\bweights_of_it, epoch\b.*\bstate_dict\b"):
        read_state(Path("mine.pth"), sha256)


def test_weights_of_other_classes_are_told_from_those_of_another_network():
    """The classes of the images may be at fault, as where a folder beside the class folders is none."""
    state = network(num_classes=7).state_dict()
    with pytest.raises(ClassCountError, match=r"\(7, 4\) instead of \(10, 4\)"):
        loaded(spec("of_any", saved(state)))
    with pytest.raises(EvaluationError, match=r"\bstray\b.*\(7, 4\) instead of \(10, 4\)") as other:
        loaded(spec("of_any", saved({**state, "stray": torch.ones(1)})))
    assert not isinstance(other.value, ClassCountError)


class Executed:
    """Pickled, a call that leaves a file."""

    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("open('executed', 'w')",)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before 1.6"])
@pytest.mark.parametrize(
    "beside",
    [
        argparse.Namespace(lr=0.1, output=Path("runs")), SimpleNamespace(lr=0.1), np.float64(76.1), np.int64(3),
        np.bool_(True), np.arange(3), np.array(["a", None], dtype=object), Path("runs"), {"at": datetime.now(UTC)},
        Executed(),
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_weights_are_read_beside_objects_of_any_class(beside: object, *, is_zip: bool):
    """Training programs save their arguments and accuracies too; nothing of such a class runs."""
    state = {"linear.weight": torch.ones(2)}
    torch.save({"model": state, "other": beside}, "mine.pth", _use_new_zipfile_serialization=is_zip)

    found = read_state(Path("mine.pth"), hash_file(Path("mine.pth")))

    assert torch.equal(state["linear.weight"], found["linear.weight"])
    assert list(found) == ["linear.weight"]
    assert not Path("executed").exists()


@pytest.mark.parametrize("beside", [defaultdict(list, a=[1]), deque([1])], ids=lambda each: type(each).__name__)
def test_what_cannot_be_read_without_its_code_is_named(beside: object):
    """With the line that saves the state dict alone."""
    torch.save({"state_dict": {"w": torch.ones(2)}, "other": beside}, "mine.pth")

    with pytest.raises(EvaluationError) as refused:
        read_state(Path("mine.pth"), hash_file(Path("mine.pth")))

    assert f"collections.{type(beside).__name__}" in str(refused.value)
    assert "\x1b" not in str(refused.value)
    program = str(refused.value).split('"')[1]
    assert 0 == run_python(program).returncode
    saved = Path("state_dict.pth")
    assert ["w"] == list(read_state(saved, hash_file(saved)))


@pytest.mark.parametrize(
    ("saved", "state"),
    [(lambda net: net, "content.state_dict()"), (lambda net: {"model": net}, "content['model'].state_dict()")],
    ids=["whole", "in a checkpoint"],
)
def test_a_whole_network_is_named_with_the_line_that_saves_its_state(saved: Callable[[nn.Module], object], state: str):
    """Only its own code could read it."""
    torch.save(saved(nn.Linear(2, 2)), "mine.pth")

    with pytest.raises(EvaluationError) as refused:
        read_state(Path("mine.pth"), hash_file(Path("mine.pth")))

    assert "torch.nn.modules.linear.Linear" in str(refused.value)
    assert state in str(refused.value)


def test_safetensors_are_told_by_their_bytes():
    """Under another name, and files of torch under theirs."""
    state = {"w": torch.ones(2)}
    save_file(state, "mine.bin")
    torch.save(state, "mine.safetensors")

    for path in (Path("mine.bin"), Path("mine.safetensors")):
        assert ["w"] == list(read_state(path, hash_file(path)))


@pytest.mark.parametrize(
    ("name", "arguments", "found"),
    [
        ("words", {}, r"\bstr\b.*\btorch\.nn\.Module\b"),
        ("broken", {}, r"RuntimeError\('no such width'\).*\{\}"),
        ("of_ten", {"depth": 3}, r"TypeError.*\{'depth': 3\}"),
        ("missing", {}, r"\bof_ten, of_any, words, broken\b"),
    ],
)
def test_a_factory_that_makes_no_network_is_refused(name: str, arguments: dict[str, int], found: str):
    """The error says what it raised or returned."""
    with pytest.raises(EvaluationError, match=f"their_networks:{name}.*{found}"):
        loaded(spec(name, saved(network().state_dict()), **arguments))


def test_a_network_of_other_classes_is_refused():
    """It is tried on two images; so is one that does not take images of that size."""
    path = saved(network().state_dict())
    with pytest.raises(EvaluationError, match=r"their_networks:of_ten.*float32 \(2, 10\).*\b32x32\b.*\(2, 7\)"):
        kind_of(spec("of_ten", path)).load(ModelContext(name="mine", classes=TEN[:7], image_size=32))
    with pytest.raises(EvaluationError, match=r"\bmine\b.*their_networks:of_ten.*RuntimeError.*\b2x2\b"):
        kind_of(spec("of_ten", path)).load(ModelContext(name="mine", classes=TEN, image_size=2))


def test_what_decides_the_network_is_in_its_identity(modules: Path):
    """Its source and that of what it imports, and its arguments; a comment is not."""
    path = saved(network().state_dict())

    def identity(**arguments: int) -> object:
        forget()
        return kind_of(spec("Network", path, **arguments)).load(ModelContext(name="mine", classes=TEN)).identity

    before = identity(width=4)
    assert before != identity()
    (modules / "their_networks.py").write_text(NETWORKS + "# a comment\n")
    assert before == identity(width=4)
    (modules / "their_blocks.py").write_text(BLOCKS.replace("ReLU", "GELU"))
    assert before != identity(width=4)


def test_an_edit_while_the_process_runs_is_refused(modules: Path):
    """The process would go on with the code that it imported."""
    found = spec("of_ten", saved(network().state_dict()))
    loaded(found)
    (modules / "their_blocks.py").write_text(BLOCKS.replace("ReLU", "GELU"))

    with pytest.raises(EvaluationError, match=r"their_networks:of_ten.*/their_blocks\.py"):
        loaded(found)


def test_a_model_without_weights_is_for_training():
    """It is refused where it would be evaluated, and weights come with their hash, mean and std."""
    untrained = spec("of_ten")
    with pytest.raises(EvaluationError, match=r"their_networks:of_ten.*`weights`"):
        loaded(untrained)
    with pytest.raises(ValidationError, match=r"\bweights\b.*\bsha256, mean, std\b"):
        PythonModel(kind="python", factory="their_networks:of_ten", weights=Path("mine.pth"))
    with pytest.raises(ValidationError, match=r"\bmean\b.*\bweights\b"):
        PythonModel(kind="python", factory="their_networks:of_ten", mean=MEAN)
    with pytest.raises(ValidationError, match=r"\bnowhere\b.*'nowhere:of_ten'"):
        PythonModel(kind="python", factory="nowhere:of_ten")
    assert (2, 10) == kind_of(untrained).architecture().make(10)(torch.rand(2, 3, 32, 32)).shape


@pytest.mark.parametrize("name", ["of_ten", "of_any"])
def test_a_network_of_other_classes_is_fine_tuned(name: str):
    """Its last linear layer is replaced, also where the factory always makes the same."""
    bare = network()
    found = load_network(spec(name, saved(bare.state_dict())), num_classes=7)[0]

    assert (2, 7) == found(torch.rand(2, 3, 32, 32)).shape
    assert torch.equal(bare.blocks[0][0].weight, found.blocks[0][0].weight)
    same = load_network(spec(name, Path("mine.pth")), num_classes=10)[0]
    assert torch.equal(bare.linear.weight, same.linear.weight)


@pytest.mark.parametrize("method", ["source", "norm", "tent", "eta", "t3a", "lame", "rotta", "sar"])
def test_methods_take_a_network_of_the_users_own(method: str):
    """As any other with batch norm and a linear head."""
    model = loaded(spec("of_ten", saved(network().state_dict())))
    predicted = build(method, model, num_classes=10, batch_size=8).predict(torch.rand(8, 3, 32, 32))

    assert (8, 10) == predicted.shape
    assert predicted.isfinite().all()


def test_the_same_from_python():
    """By the same name; `weights` is a file, a state dict or None."""
    bare, images = network(), torch.rand(2, 3, 32, 32)
    facts = {"mean": MEAN, "std": STD, "num_classes": 10}
    of_file = tta.load_model("their_networks:of_ten", weights=saved({"net": bare.state_dict()}), **facts)
    of_state = tta.load_model("their_networks:of_ten", weights=bare.state_dict(), **facts)

    with torch.inference_mode():
        torch.testing.assert_close(bare.eval()(images), of_file.network(images))
        torch.testing.assert_close(of_file(images), of_state(images))
    assert "their_networks:of_ten" == of_file.architecture
    assert (2, 5) == tta.load_model("their_networks:of_any", weights=None, num_classes=5)(images).shape
    with pytest.raises(EvaluationError, match=r"\bweights\b.*'pretrained'.*\btheir_networks:of_ten\b"):
        tta.load_model("their_networks:of_ten", num_classes=10)
    with pytest.raises(EvaluationError, match="num_classes"):
        tta.load_model("their_networks:of_any", weights=None)
    with pytest.raises(EvaluationError, match=r"model\.factory.*'nowhere:it'"):
        tta.load_model("nowhere:it", weights=None, num_classes=3)
