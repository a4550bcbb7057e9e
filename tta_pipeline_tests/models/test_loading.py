"""Models come with their own normalisation and the hash of their weights."""

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import (
    ResNet18_Weights,
    ShuffleNet_V2_X0_5_Weights,
    ViT_B_16_Weights,
    get_model,
    resnet18,
    shufflenet_v2_x0_5,
)

from tta_pipeline.benchmarks.model_specs import CheckpointModel, TimmModel, TorchvisionModel, TrainedModel
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.errors import ClassCountError, EvaluationError
from tta_pipeline.methods import build
from tta_pipeline.models.load_by_name import make_model_of_state
from tta_pipeline.models.model_kind import ModelContext, kind_of
from tta_pipeline.models.select_outputs import _cut_outputs
from tta_pipeline.models.weights import state_sha256

_AS_BEFORE = {
    "float": torch.arange(6.0).view(2, 3),
    "half": torch.arange(3.0).half(),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "across": torch.arange(6.0).view(2, 3).T,
    "none": torch.zeros(0, 3),
}
THOUSAND = tuple(f"n{number:08d}" for number in range(1000))
SMALL = "shufflenet_v2_x0_5"
"""The smallest network of torchvision with batch norm and a linear layer at its end."""
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def put_on_the_hub(state: object, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put *state* in the place of the published weights, which cannot be downloaded here."""
    monkeypatch.setenv("TORCH_HOME", str(folder))
    path = folder / "hub" / "checkpoints" / Path(url).name
    path.parent.mkdir(parents=True)
    torch.save(state, path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """A torch hub folder with random weights."""
    torch.manual_seed(0)
    state = shufflenet_v2_x0_5().state_dict()
    put_on_the_hub(state, ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1.url, tmp_path, monkeypatch)
    return state


def test_a_torchvision_model_normalises_by_itself(hub: dict[str, torch.Tensor]):
    """Images in [0, 1] give the logits of the bare network on images normalised with the weights' own mean and std."""
    spec = TorchvisionModel(kind="torchvision", architecture=SMALL, weights="IMAGENET1K_V1")
    loaded = kind_of(spec).load(ModelContext(name="small", classes=THOUSAND))
    bare = shufflenet_v2_x0_5()
    bare.load_state_dict(hub)
    images = torch.rand(2, 3, 64, 64)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    with torch.inference_mode():
        torch.testing.assert_close(bare.eval()((images - mean) / std), loaded.make().eval()(images))
    assert (0.485, 0.456, 0.406) == loaded.mean
    assert 64 == len(loaded.weights_sha256)


def plain(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return weights of the network's shapes that no release of torch draws otherwise."""
    state = network.state_dict()
    return {
        name: torch.full(weights.shape, 0.5 if weights.is_floating_point() else 3, dtype=weights.dtype)
        for name, weights in state.items()
    }


def test_the_identity_of_a_model_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever is rewritten here: finished cells are known by it."""
    with torch.device("meta"):
        of_1000, of_10 = resnet18(), resnet18(num_classes=10)
    put_on_the_hub(plain(of_1000), ResNet18_Weights.IMAGENET1K_V1.url, tmp_path, monkeypatch)
    named = TorchvisionModel(kind="torchvision", architecture="resnet18", weights="IMAGENET1K_V1")
    spec, state = TorchvisionModel(kind="torchvision", architecture="resnet18"), plain(of_10)
    of_file = checkpoint(tmp_path / "mine.safetensors", state, architecture="resnet18")
    own = {"architecture": "torchvision resnet18", "mean": [*MEAN], "std": [*STD], "num_classes": 10, "outputs": None}

    assert {
        "architecture": "torchvision resnet18",
        "weights_sha256": "abf18f0ed7690fc022bcc0fcdd8a259f9d645aa98f4f724967e644a58ff722db",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "num_classes": 1000,
        "outputs": None,
    } == kind_of(named).load(ModelContext(name="r18", classes=THOUSAND)).identity
    assert {**own, "weights_sha256": "1ebf626397524e801b002cce0c3ffbc9a7a992c25eb53086b5219df3c9c6794e"} == (
        make_model_of_state(spec, state, num_classes=10, mean=MEAN, std=STD).identity
    )
    assert {**own, "weights_sha256": of_file.sha256} == (
        kind_of(of_file).load(ModelContext(name="r18", classes=THOUSAND[:10])).identity
    )


def test_no_network_is_made_before_it_is_asked_for(tmp_path: Path):
    """Weights are compared with its shapes alone, and nothing is drawn at random for it."""
    state = plain(shufflenet_v2_x0_5(num_classes=10))
    spec = checkpoint(tmp_path / "mine.safetensors", state)
    before = torch.get_rng_state()

    kind_of(spec).load(ModelContext(name="mine", classes=THOUSAND[:10]))
    make_model_of_state(
        TorchvisionModel(kind="torchvision", architecture=SMALL), state, num_classes=10, mean=MEAN, std=STD
    )

    assert torch.equal(before, torch.get_rng_state())


def test_a_network_that_computes_its_own_widths_takes_weights(tmp_path: Path):
    """RegNets do, so their shapes are not known before they are made."""
    state = plain(get_model("regnet_x_400mf", num_classes=10))
    spec = checkpoint(tmp_path / "mine.safetensors", state, architecture="regnet_x_400mf")

    assert (2, 10) == loaded_logits(spec, torch.rand(2, 3, 32, 32)).shape
    regnet = TorchvisionModel(kind="torchvision", architecture="regnet_x_800mf")
    with pytest.raises(EvaluationError, match=r"\bregnet_x_800mf\b.*\b10\b.*\b15\b.*\b320\b.*\btrunk_output\."):
        make_model_of_state(regnet, state, num_classes=10, mean=MEAN, std=STD)


def test_the_hash_of_weights_is_that_of_their_names_and_bytes():
    """Of numbers, vectors and what lies across memory; also of bfloat16, which NumPy has not, and of parameters."""
    text = b"".join(name.encode() + _AS_BEFORE[name].numpy().tobytes() for name in sorted(_AS_BEFORE))
    brain = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).bfloat16()

    assert hashlib.sha256(text).hexdigest() == state_sha256(_AS_BEFORE)
    assert hashlib.sha256(b"w" + brain.view(torch.int16).numpy().tobytes()).hexdigest() == state_sha256({"w": brain})
    assert state_sha256({"w": brain.T.contiguous()}) == state_sha256({"w": torch.nn.Parameter(brain).T})
    assert state_sha256({"w": brain[0, 0]}) != state_sha256({"w": brain[0, 1]})


def test_weights_in_bfloat16_are_a_model(tmp_path: Path):
    """They are taken for the float32 that they are."""
    torch.manual_seed(1)
    bare, images = shufflenet_v2_x0_5(num_classes=10).bfloat16(), torch.rand(2, 3, 32, 32)
    found = loaded_logits(checkpoint(tmp_path / "mine.safetensors", bare.state_dict()), images)

    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    with torch.inference_mode():
        torch.testing.assert_close(bare.float().eval()((images - mean) / std), found)


@pytest.mark.parametrize(
    ("architecture", "weights", "num_classes", "named"),
    [
        ("resnet19", "DEFAULT", 1000, "resnet18"),
        (SMALL, "IMAGENET22K", 1000, "IMAGENET1K_V1"),
        (SMALL, "IMAGENET1K_V1", 10, r"\b1000\b\D*\b10\b"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_model_that_is_not_there_or_does_not_fit_is_refused(
    architecture: str, weights: str, num_classes: int, named: str
):
    """The error names the choices, or both numbers of classes."""
    spec = TorchvisionModel(kind="torchvision", architecture=architecture, weights=weights)

    with pytest.raises(EvaluationError, match=named):
        kind_of(spec).load(ModelContext(name="small", classes=THOUSAND[:num_classes]))


def test_a_source_model_that_was_not_trained_is_missed(tmp_path: Path):
    """The error says which asset to materialize."""
    with pytest.raises(EvaluationError, match=r"source_model\.safetensors.*\bsource_model\b"):
        kind_of(TrainedModel(kind="trained")).load(
            ModelContext(name="cnn", classes=THOUSAND[:10], source_model=tmp_path / "source_model.safetensors")
        )


def checkpoint(path: Path, state: object, **changes: str) -> CheckpointModel:
    """Save *state* at *path* and return the model that a benchmark file would describe."""
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    settings = {"architecture": SMALL, "sha256": sha256, **changes}
    return CheckpointModel(kind="checkpoint", path=path, mean=MEAN, std=STD, **settings)


def loaded_logits(spec: CheckpointModel, images: torch.Tensor) -> torch.Tensor:
    """Return the logits of a checkpoint of ten classes."""
    model = kind_of(spec).load(ModelContext(name="mine", classes=shipped_classes("imagenet")[:10]))
    assert (MEAN, STD, spec.sha256) == (model.mean, model.std, model.weights_sha256)
    with torch.inference_mode():
        return model.make().eval()(images)


@pytest.mark.parametrize("name", ["mine.safetensors", "mine.pth"])
def test_a_file_of_weights_is_a_model(tmp_path: Path, name: str):
    """It gives the logits of the bare network on images normalised as the file says."""
    torch.manual_seed(1)
    bare, images = shufflenet_v2_x0_5(num_classes=10), torch.rand(2, 3, 32, 32)
    spec = checkpoint(tmp_path / name, bare.state_dict())

    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    with torch.inference_mode():
        torch.testing.assert_close(bare.eval()((images - mean) / std), loaded_logits(spec, images))


class Gadget:
    """What a hostile checkpoint holds."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("came",)


def test_a_hostile_or_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No code in it is run; a file that was exchanged or does not fit is named with what was expected."""
    monkeypatch.chdir(tmp_path)
    state, images = shufflenet_v2_x0_5(num_classes=10).state_dict(), torch.rand(2, 3, 32, 32)
    with pytest.raises(EvaluationError, match=r"evil\.pth.*posix\.mkdir") as hostile:
        loaded_logits(checkpoint(tmp_path / "evil.pth", {"a": Gadget()}), images)
    assert "weights_only=False" not in str(hostile.value)
    assert not (tmp_path / "came").exists()
    with pytest.raises(EvaluationError, match=r"mine\.pth.*\b[0-9a-f]{64}\b.*\b0{64}\b"):
        loaded_logits(checkpoint(tmp_path / "mine.pth", state, sha256="0" * 64), images)
    with pytest.raises(EvaluationError, match=r"mine\.pth.*\bshufflenet_v2_x1_0\b.*\b10\b"):
        loaded_logits(checkpoint(tmp_path / "mine.pth", state, architecture="shufflenet_v2_x1_0"), images)
    with pytest.raises(EvaluationError, match=r"list\.pth.*\blist\b.*\bstate_dict\b"):
        loaded_logits(checkpoint(tmp_path / "list.pth", [1, 2]), images)


def test_weights_that_do_not_fit_are_told_before_what_to_correct(tmp_path: Path):
    """How many are missing, unexpected and of another shape, and the first of each."""
    state = {"stray": torch.zeros(3), **shufflenet_v2_x0_5(num_classes=10).state_dict()}
    state["conv1.0.weight"] = torch.zeros(24, 1, 3, 3)
    del state["stage2.0.branch1.0.weight"], state["fc.bias"]
    spec = checkpoint(tmp_path / "mine.pth", state, architecture="shufflenet_v2_x1_0")

    with pytest.raises(EvaluationError) as refused:
        loaded_logits(spec, torch.rand(2, 3, 32, 32))

    told = (
        r"mine\.pth.*\bshufflenet_v2_x1_0\b",
        r"\b2\b.*\b338\b.*\bstage2\.0\.branch1\.0\.weight\b",
        r"\b1\b.*\bstray\b",
        r"\b267\b.*\bconv1\.0\.weight\b.*\(24, 1, 3, 3\).*\(24, 3, 3, 3\)",
        r"expected its state dict.*`architecture`.*`path`",
    )
    assert re.search(".*".join(told), str(refused.value))
    with pytest.raises(EvaluationError, match="resnet19"):
        loaded_logits(checkpoint(tmp_path / "mine.pth", state, architecture="resnet19"), torch.rand(2, 3, 32, 32))


def test_weights_of_before_batches_were_counted_fit(tmp_path: Path):
    """PyTorch fills in what its first versions did not store, and takes a vector of one element for a number."""
    state = shufflenet_v2_x0_5(num_classes=10).state_dict()
    without = {key: value for key, value in state.items() if "num_batches" not in key}
    for each in (without, {key: value.reshape(value.shape or 1) for key, value in state.items()}):
        spec = checkpoint(tmp_path / "mine.pth", each)
        assert (2, 10) == loaded_logits(spec, torch.rand(2, 3, 32, 32)).shape


@pytest.mark.parametrize("content", [b"", b"\x80", b"PK\x03\x04", b"epoch,loss\n1,2.3\n", b"\xff" * 4096])
@pytest.mark.parametrize("name", ["mine.pth", "mine.safetensors"])
def test_a_file_that_holds_no_weights_is_named(tmp_path: Path, name: str, content: bytes):
    """Whatever it holds, and if it is missing."""
    path = tmp_path / name
    path.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    spec = CheckpointModel(kind="checkpoint", path=path, architecture=SMALL, sha256=sha256, mean=MEAN, std=STD)
    with pytest.raises(EvaluationError, match=rf"{name}.*{re.escape(repr(content[:16]))}"):
        loaded_logits(spec, torch.rand(2, 3, 32, 32))
    path.unlink()
    with pytest.raises(EvaluationError, match=name):
        loaded_logits(spec, torch.rand(2, 3, 32, 32))


def test_a_model_of_many_classes_serves_a_benchmark_of_some(hub: dict[str, torch.Tensor], tmp_path: Path):
    """The outputs of the other classes are left out, and the order is the class map's."""
    (tmp_path / "wnids.json").write_text(json.dumps(THOUSAND))
    spec = TorchvisionModel(
        kind="torchvision", architecture=SMALL, weights="IMAGENET1K_V1", classes=tmp_path / "wnids.json"
    )
    images, some = torch.rand(2, 3, 32, 32), (THOUSAND[7], THOUSAND[3])
    whole = kind_of(spec.model_copy(update={"classes": None})).load(ModelContext(name="small", classes=THOUSAND))

    with torch.inference_mode():
        expected = whole.make().eval()(images)[:, [7, 3]]
        torch.testing.assert_close(
            expected, kind_of(spec).load(ModelContext(name="small", classes=some)).make().eval()(images)
        )
    with pytest.raises(EvaluationError, match=r"wnids\.json.*\b1000\b.*\['n9'\]"):
        kind_of(spec).load(ModelContext(name="small", classes=("n9",)))


def test_published_weights_of_imagenet_serve_a_benchmark_of_some_of_its_classes(hub: dict[str, torch.Tensor]):
    """As ImageNet-R has 200 of them, without a list of classes; other classes are refused."""
    spec, imagenet = TorchvisionModel(kind="torchvision", architecture=SMALL), shipped_classes("imagenet")
    whole, some = (
        kind_of(spec).load(ModelContext(name="small", classes=classes))
        for classes in (imagenet, (imagenet[7], imagenet[3]))
    )
    images = torch.rand(2, 3, 32, 32)

    with torch.inference_mode():
        torch.testing.assert_close(whole.make().eval()(images)[:, [7, 3]], some.make().eval()(images))
    with pytest.raises(ClassCountError, match=r"\b1000\b.*\b2\b"):
        kind_of(spec).load(ModelContext(name="small", classes=("mine", "yours")))


def test_a_last_layer_is_cut_with_its_bias_if_it_has_one():
    """The classes of the rest are its rows."""
    for bias in (True, False):
        layer, images = torch.nn.Linear(3, 6, bias=bias), torch.rand(2, 3)
        expected = layer(images)[:, [4, 1]]
        torch.testing.assert_close(expected, _cut_outputs(layer, [4, 1], of=6)(images))
        assert (2, bias) == (layer.out_features, layer.bias is not None)


@pytest.mark.parametrize("architecture", [SMALL, "squeezenet1_1"])
def test_any_architecture_serves_a_benchmark_of_some_of_its_classes(tmp_path: Path, architecture: str):
    """The outputs are left out also where the last layer is no linear one."""
    torch.manual_seed(2)
    state, images = get_model(architecture, num_classes=50).state_dict(), torch.rand(2, 3, 64, 64)
    (tmp_path / "wnids.json").write_text(json.dumps(THOUSAND[:50]))
    spec = checkpoint(tmp_path / "a.pth", state, architecture=architecture)
    some = spec.model_copy(update={"classes": tmp_path / "wnids.json"})
    whole = kind_of(spec).load(ModelContext(name="mine", classes=THOUSAND[:50])).make().eval()
    cut = kind_of(some).load(ModelContext(name="mine", classes=(THOUSAND[40], THOUSAND[2]))).make().eval()

    with torch.inference_mode():
        torch.testing.assert_close(whole(images)[:, [40, 2]], cut(images))


@pytest.mark.parametrize("method", ["lame", "t3a", "adacontrast"])
def test_methods_that_need_the_last_layer_take_a_model_of_more_classes(tmp_path: Path, method: str):
    """The layer is cut to the benchmark's classes, so it is found."""
    (tmp_path / "wnids.json").write_text(json.dumps(THOUSAND[:50]))
    spec = checkpoint(
        tmp_path / "a.pth", shufflenet_v2_x0_5(num_classes=50).state_dict(), classes=tmp_path / "wnids.json"
    )
    model = kind_of(spec).load(ModelContext(name="mine", classes=THOUSAND[20:30]))

    predicted = build(method, model.make(), num_classes=10).predict(torch.rand(8, 3, 32, 32))

    assert (8, 10) == predicted.shape
    assert predicted.isfinite().all()


def test_a_timm_model_is_one_more_library(tmp_path: Path):
    """Its architecture takes a checkpoint; an unknown tag is refused before a run, and not in the middle of it."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(2)
    bare, images = timm.create_model("resnet10t", num_classes=10), torch.rand(2, 3, 32, 32)
    spec = checkpoint(tmp_path / "mine.safetensors", bare.state_dict(), library="timm", architecture="resnet10t")
    assert (2, 10) == loaded_logits(spec, images).shape

    other = kind_of(TimmModel(kind="timm", architecture="resnet18.never"))
    for refused in (
        lambda: other.load(ModelContext(name="t", classes=THOUSAND)),
        lambda: other.check(name="t", num_classes=1000, image_size=224),
        other.own_transforms,
    ):
        with pytest.raises(EvaluationError, match=r"'resnet18\.never'.*\bresnet18\.tv_in1k\b"):
            refused()
    unknown = kind_of(TimmModel(kind="timm", architecture="of_the_user"))
    assert () == unknown.own_transforms()
    with pytest.raises(EvaluationError, match="of_the_user"):
        unknown.check(name="t", num_classes=1000, image_size=224)


def test_a_vit_of_timm_is_normalised_as_it_was_trained(tmp_path: Path):
    """That is from -1 to 1, and torchvision's is not; SAR's table has timm's ViT-B with the values of torchvision's."""
    timm = pytest.importorskip("timm")
    of_timm, of_torchvision = timm.get_pretrained_cfg("vit_base_patch16_224"), ViT_B_16_Weights.IMAGENET1K_V1
    half, published = (0.5, 0.5, 0.5), tmp_path / "published.safetensors"
    assert (half, half) == (of_timm.mean, of_timm.std)
    assert half != tuple(of_torchvision.transforms().mean)

    @timm.models.register_model
    def vit_of_the_tests(pretrained: bool = False, **_: object) -> torch.nn.Module:  # noqa: FBT001, FBT002 - timm's interface
        return timm.models.build_model_with_cfg(
            timm.models.VisionTransformer, "vit_of_the_tests", pretrained, img_size=32, patch_size=8, embed_dim=8,
            depth=1, num_heads=1, pretrained_cfg={**of_timm.to_dict(), "file": str(published)},
        )  # fmt: skip

    torch.manual_seed(1)
    bare, images = vit_of_the_tests().eval(), torch.rand(2, 3, 32, 32)
    save_file(bare.state_dict(), published)
    loaded = kind_of(TimmModel(kind="timm", architecture="vit_of_the_tests")).load(
        ModelContext(name="vit", classes=THOUSAND)
    )

    assert (half, half) == (loaded.mean, loaded.std)
    with torch.inference_mode():
        torch.testing.assert_close(bare(2 * images - 1), loaded.make().eval()(images))
