"""A CLIP is a classifier of whatever classes have names, with a linear head as any other."""

import hashlib
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from pydantic import ValidationError
from torch import nn

import tta_pipeline as tta
from tta_pipeline.benchmarks.load_files import load_benchmarks
from tta_pipeline.benchmarks.model_specs import OpenClipModel
from tta_pipeline.cli import main
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.errors import AdaptationError, EvaluationError
from tta_pipeline.methods import build
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import ModelContext, kind_of
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline_tests.conftest import write_tree
from tta_pipeline_tests.models.tiny_clip import TINY, describe_tiny_clip, make_tiny_clip, one_tokenizer

open_clip = pytest.importorskip("open_clip")

ANIMALS = ("cat", "polar_bear", "owl")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nn.Module]:
    """A CLIP of random weights, whose architecture open_clip knows as `tiny`."""
    with one_tokenizer():
        yield make_tiny_clip(tmp_path_factory.mktemp("configs"))


@pytest.fixture(scope="module")
def spec(clip: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> OpenClipModel:
    """The same as a benchmark file describes it."""
    return describe_tiny_clip(clip, tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def model(spec: OpenClipModel) -> LoadedModel:
    """The same as an evaluation gets it, for three animals; each network that it makes is another one."""
    return loaded(spec)


def loaded(spec: OpenClipModel, classes: tuple[str, ...] = ANIMALS, image_size: int = 32, **changes) -> LoadedModel:
    """Return the model as an evaluation gets it."""
    changed = OpenClipModel.model_validate({**spec.model_dump(), **changes})
    return kind_of(changed).load(ModelContext(name="clip", classes=classes, image_size=image_size))


def test_it_gives_the_logits_of_its_authors(spec: OpenClipModel, model: LoadedModel, clip: nn.Module):
    """Those of images and texts, scaled; images in [0, 1] are normalised as open_clip does."""
    images = torch.rand(5, 3, 32, 32)
    texts = open_clip.get_tokenizer("tiny")(["a photo of a cat.", "a photo of a polar bear.", "a photo of a owl."])
    mean, std = (
        torch.tensor(values).view(1, 3, 1, 1)
        for values in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD)
    )

    with torch.inference_mode():
        expected, _ = clip.get_logits((images - mean) / std, texts)
        torch.testing.assert_close(expected, model.make()(images), rtol=1e-4, atol=1e-4)
    assert ("open_clip tiny", "tiny.pt", spec.sha256) == (model.architecture, model.weights, model.weights_sha256)


@pytest.mark.parametrize(
    "method", ["source", "t3a", "lame", "cotta", "zero_shot", "tda", "bca", "stata", "zero", "tpt"]
)
def test_methods_find_its_linear_head(model: LoadedModel, method: str):
    """Each after its own manner."""
    predicted = build(method, model.make(), num_classes=3, batch_size=4).predict(torch.rand(4, 3, 32, 32))

    assert (4, 3) == predicted.shape
    assert predicted.isfinite().all()


TTABC = [f"tower.transformer.resblocks.{number}" for number in range(1, 2)]
"""The blocks that TTABC's code leaves out, without the norm layer after them; of twelve, those from 9 on."""


@pytest.mark.parametrize(
    ("method", "settings", "frozen"),
    [
        ("tent", {}, []),
        ("eta", {}, []),
        ("sar", {}, [*TTABC, "tower.ln_post"]),
        ("deyo", {}, [*TTABC, "tower.ln_post"]),
        ("sar", {"frozen_layers": TTABC}, TTABC),
    ],
)
def test_layer_norms_of_the_image_tower_adapt(model: LoadedModel, method: str, settings: dict, frozen: list[str]):
    """All, or those below the top; `frozen_layers` gives exactly those of TTABC; the head stays."""
    network = model.make()
    adapted = build(method, network, num_classes=3, batch_size=4, **settings)
    moving = {name.removeprefix("network.") for name, each in network.named_parameters() if each.requires_grad}
    norms = [name for name, layer in network.network.named_modules() if isinstance(layer, nn.LayerNorm)]
    kept = [name for name in norms if not any(f"{name}.".startswith(f"{top}.") for top in frozen)]

    assert {f"{name}.{part}" for name in kept for part in ("weight", "bias")} == moving
    assert adapted.predict(torch.rand(4, 3, 32, 32)).isfinite().all()


def test_a_method_of_batch_norm_is_refused(model: LoadedModel):
    """As for any vision transformer, since there is none."""
    with pytest.raises(AdaptationError, match="batch norm"):
        build("norm", model.make(), num_classes=3)


def test_the_texts_decide(spec: OpenClipModel, model: LoadedModel, tmp_path: Path):
    """Names and templates are part of the identity; the same texts by another way are the same model."""
    (tmp_path / "names.json").write_text(json.dumps(["cat", "polar bear", "owl"]))

    assert model.identity == loaded(spec, class_names=["cat", "polar bear", "owl"]).identity
    assert model.identity == loaded(spec, ("0", "1", "2"), class_names=tmp_path / "names.json").identity
    of_the_paper = [template("{}") for template in open_clip.OPENAI_IMAGENET_TEMPLATES]
    assert loaded(spec, templates="imagenet").identity == loaded(spec, templates=of_the_paper).identity
    for changes in ({"class_names": ["cat", "ice bear", "owl"]}, {"templates": ["a {}"]}, {"templates": "imagenet"}):
        other = loaded(spec, **changes)
        assert model.identity != other.identity
        assert not torch.equal(model.make_network().head.weight, other.make_network().head.weight)


def test_imagenet_has_names(spec: OpenClipModel):
    """Those of open_clip, for its WordNet ids in any choice and order; numbers have none."""
    wnids = shipped_classes("imagenet")
    by_id = loaded(spec, (wnids[1], wnids[0]))

    assert by_id.identity == loaded(spec, ("a", "b"), class_names=["goldfish", "tench"]).identity
    with pytest.raises(EvaluationError, match=r"'0'.*`class_names`"):
        loaded(spec, ("0", "1"))
    with pytest.raises(EvaluationError, match=r"class_names\D*\b1\b\D*\b3\b"):
        loaded(spec, class_names=["cat"])


@pytest.mark.parametrize("classes", ["imagenet_a", "imagenet_r", "imagenet"])
def test_the_variants_of_imagenet_have_the_names_of_their_own_classes(spec: OpenClipModel, classes: str):
    """A row of the head for each class of the set, in its order; ImageNetV2 and -Sketch have all 1,000."""
    wnids = shipped_classes("imagenet")
    chosen = shipped_classes(classes)[:5]
    words = [open_clip.IMAGENET_CLASSNAMES[wnids.index(wnid)] for wnid in chosen]

    assert loaded(spec, chosen).identity == loaded(spec, ("1", "2", "3", "4", "5"), class_names=words).identity


def test_the_texts_of_a_dataset_are_those_of_its_models(spec: OpenClipModel, tmp_path: Path):
    """Each set of a file has its own text, unless the model has one; without either it is that of the CLIP paper."""
    path = tmp_path / "several.yaml"
    section = spec.model_dump(mode="json", exclude_defaults=True)
    sets = {name: {"images": {"kind": "folder", "root": "/none"}} for name in ("dtd", "imagenet_a")}
    content = {
        "title": "two sets", "image_size": 32, "shards": {"num_shards": 1}, "sets": sets, "experiments": {},
        "models": {"usual": section, "own": {**section, "templates": ["a {}"]}},
    }  # fmt: skip
    path.write_text(json.dumps(content))
    found = load_benchmarks(tmp_path).benchmarks
    dtd, natural = (found[f"several/{name}"].models for name in sets)

    def identity(model: object) -> object:
        return loaded(OpenClipModel.model_validate(model.model_dump())).identity

    assert identity(dtd["usual"]) == loaded(spec, templates=["{} texture."]).identity
    assert identity(dtd["own"]) == identity(natural["own"]) == loaded(spec, templates=["a {}"]).identity
    assert identity(natural["usual"]) == loaded(spec).identity == loaded(spec, templates=["a photo of a {}."]).identity


def test_an_architecture_of_ones_own_is_a_file(tmp_path: Path):
    """In open_clip's form, here with SigLIP's bias, which the logits have; its content is part of the identity."""
    config = tmp_path / "mine.json"
    config.write_text(json.dumps({**TINY, "init_logit_bias": -10.0}))
    open_clip.add_model_config(config)
    torch.manual_seed(1)
    clip = open_clip.create_model("mine").eval()
    weights = tmp_path / "mine.pt"
    torch.save(clip.state_dict(), weights)
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    section = {"kind": "open_clip", "architecture": str(config), "weights": weights, "sha256": sha256}
    images, texts = torch.rand(2, 3, 32, 32), open_clip.get_tokenizer("mine")(["a cat", "a owl"])

    model = loaded(OpenClipModel.model_validate(section), ("cat", "owl"), templates=["a {}"])

    with torch.inference_mode():
        expected, _ = clip.get_logits(images, texts)
        torch.testing.assert_close(expected, model.make_network()(images), rtol=1e-4, atol=1e-4)
    assert "open_clip mine" == model.architecture
    assert hashlib.sha256(config.read_bytes()).hexdigest() == model.code["config_sha256"]

    (tmp_path / "ViT-B-32.json").write_text(json.dumps(TINY))
    for name, said in (("ViT-B-32.json", r"\bViT-B-32\b"), ("none.json", r"\bembed_dim\b")):
        with pytest.raises(EvaluationError, match=f"{tmp_path / name}.*{said}"):
            loaded(OpenClipModel.model_validate({**section, "architecture": str(tmp_path / name)}))


def test_weights_of_the_other_gelu_are_refused(spec: OpenClipModel):
    """open_clip only warns of it, and every prediction is a little worse."""
    with pytest.raises(EvaluationError, match=r"openai.*\bViT-B-16-quickgelu\b"):
        loaded(spec, architecture="ViT-B-16", pretrained="openai", weights=None, sha256=None)


def test_what_does_not_fit_is_explained(spec: OpenClipModel, clip: nn.Module, tmp_path: Path):
    """Another file, weights of another architecture, images of another size, and an unknown name or tag."""
    with pytest.raises(EvaluationError, match=rf"tiny\.pt.*{spec.sha256}.*0{{64}}"):
        loaded(spec, sha256="0" * 64)
    torch.save({"visual.conv1.weight": torch.zeros(3)}, tmp_path / "other.pt")
    sha256 = hashlib.sha256((tmp_path / "other.pt").read_bytes()).hexdigest()
    with pytest.raises(EvaluationError, match=r"other\.pt.*\btiny\b.*\b49\b.*\b50\b.*\bpositional_embedding\b"):
        loaded(spec, weights=tmp_path / "other.pt", sha256=sha256)
    with pytest.raises(EvaluationError, match=r"\btiny\b.*\b32x32\b.*RuntimeError.*\b48x48\b.*`image_size`"):
        loaded(spec, image_size=48)
    with pytest.raises(EvaluationError, match=r"'huge'.*\bopen_clip\.list_models\(\)"):
        loaded(spec, architecture="huge")
    with pytest.raises(EvaluationError, match=r"\bViT-B-32 never\b.*\bopenai\b"):
        loaded(spec, architecture="ViT-B-32", pretrained="never", weights=None, sha256=None)
    with pytest.raises(ValidationError, match=r"\bpretrained\b.*\bweights\b"):
        OpenClipModel(kind="open_clip", architecture="tiny")
    with pytest.raises(ValidationError, match=r"\['a photo'\].*\{\}"):
        OpenClipModel(kind="open_clip", architecture="tiny", pretrained="a", templates=("a photo",))


def test_the_same_from_python(spec: OpenClipModel):
    """By the section of a benchmark file, with the names of the classes."""
    section = spec.model_dump(exclude_defaults=True) | {"class_names": ["cat", "polar bear", "owl"]}
    model = tta.load_model(section)

    assert torch.equal(loaded(spec).make_network().head.weight, model.network.head.weight)
    with pytest.raises(EvaluationError, match="class_names"):
        tta.load_model(section | {"class_names": None})
    with pytest.raises(EvaluationError, match=r"\bmean\b.*\(0\.5, 0\.5, 0\.5\)"):
        tta.load_model(section, mean=(0.5, 0.5, 0.5))
    with pytest.raises(EvaluationError, match=r"\b3\b\D*\b5\b"):
        tta.load_model(section, num_classes=5)


def test_text_features_are_kept(spec: OpenClipModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Once for all that decides them; a damaged file is written anew, and other texts have a file of their own."""
    computed, compute = [], open_clip.build_zero_shot_classifier
    monkeypatch.setattr(open_clip, "build_zero_shot_classifier", lambda *all_: computed.append(1) or compute(*all_))

    def head(**changes: object) -> torch.Tensor:
        changed = OpenClipModel.model_validate({**spec.model_dump(), **changes})
        model = kind_of(changed).load(ModelContext(name="clip", classes=ANIMALS, text_features=tmp_path / "kept"))
        return model.make_network().head.weight

    first = head()
    (path,) = (tmp_path / "kept").iterdir()
    assert torch.equal(first, head())
    assert [1] == computed

    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert torch.equal(first, head())
    assert (data, [1, 1]) == (path.read_bytes(), computed)

    assert not torch.equal(first, head(templates=["a sketch of a {}."]))
    assert 2 == len(list((tmp_path / "kept").iterdir()))


def test_prompts_are_texts_with_another_context(model: LoadedModel, clip: nn.Module):
    """With the context they begin with, their features are those of the texts; with another, those of other words."""
    prompts = model.make_network().prompts
    tokenizer = open_clip.get_tokenizer("tiny")
    other = clip.token_embedding(torch.tensor(tokenizer.encode("some bad big drawing")))

    with torch.no_grad():
        for context, words in ((prompts.context, "a photo of a"), (other, "some bad big drawing")):
            texts = tokenizer([f"{words} {name}." for name in ("cat", "polar bear", "owl")])
            torch.testing.assert_close(clip.encode_text(texts, normalize=True), prompts(context), rtol=0, atol=1e-5)


def test_the_text_tower_is_no_part_of_the_classifier(spec: OpenClipModel):
    """It is not among what adapts, is shared by copies, and its image tower is not kept twice."""
    one, other = (loaded(spec).make_network() for _ in range(2))
    text = {name for name, _ in one.prompts.named_parameters()}

    assert {"tower", "head"} == {name.partition(".")[0] for name, _ in one.named_parameters()}
    assert deepcopy(one).prompts is one.prompts
    assert not any("visual" in name for name in text)
    assert other.prompts is not one.prompts


def test_a_set_without_severities_from_images_to_results(spec: OpenClipModel, tmp_path: Path):
    """ImageNet-R in its published layout: class folders of 200 classes, shards, and methods for a CLIP over them."""
    classes = shipped_classes("imagenet_r")
    write_tree(tmp_path / "imagenet-r", classes=dict.fromkeys(classes, 1))
    target = str(tmp_path / "shards" / "imagenet_r" / "0")
    options = ["--class-dir-depth", "0", "--dataset", "imagenet_r", "--class-map", "imagenet_r", "--num-shards", "2"]
    written = CliRunner().invoke(main, ["shards", "make", str(tmp_path / "imagenet-r"), target, *options, "--quiet"])
    assert 0 == written.exit_code, written.output
    shards = tta.open_shards(target)
    assert ("imagenet_r", 0, 200) == (shards.manifest.corruption, shards.manifest.severity, len(shards))

    words = [open_clip.IMAGENET_CLASSNAMES[shipped_classes("imagenet").index(wnid)] for wnid in shards.classes]
    section = spec.model_dump(exclude_defaults=True) | {"class_names": words, "templates": ["a photo of a {}."]}

    def result(method: str) -> Evaluation:
        model = tta.load_model(section, num_classes=200)
        return tta.evaluate(tta.build(method, model, num_classes=200), shards, batch_size=50)

    control, unchanged, adapted = map(result, ("zero_shot", "source", "tda"))
    assert control.predicted.predictions_sha256 == unchanged.predicted.predictions_sha256
    assert control.predicted.predictions_sha256 != adapted.predicted.predictions_sha256
    assert {200} == {each.scores.num_samples for each in (control, adapted)}
