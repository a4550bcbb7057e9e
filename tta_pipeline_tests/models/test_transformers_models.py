"""A SigLIP or CLIP of transformers is a classifier with the logits that transformers gives."""

import hashlib
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from tta_pipeline.benchmarks.model_specs import TransformersModel
from tta_pipeline.errors import AdaptationError, EvaluationError
from tta_pipeline.methods import build
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import ModelContext, kind_of

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

ANIMALS = ("cat", "polar_bear", "Owl")
WORDS = ("<pad>", "<unk>", "</s>", "a", "photo", "of", "cat", "polar", "bear", "owl", ".")
LAYERS = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXTS = {**LAYERS, "vocab_size": len(WORDS), "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}
IMAGES = {**LAYERS, "image_size": 32, "patch_size": 16}


@pytest.fixture(scope="module", params=["siglip", "clip"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, as `save_pretrained` writes it."""
    path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    if request.param == "siglip":
        config = transformers.SiglipConfig(text_config={**TEXTS, "projection_size": 16}, vision_config=IMAGES)
        model, processor = transformers.SiglipModel(config), transformers.SiglipImageProcessor(size=[32, 32])
        model.logit_bias.data.fill_(-3.0)
    else:
        config = transformers.CLIPConfig(text_config=TEXTS, vision_config=IMAGES, projection_dim=12)
        model, processor = transformers.CLIPModel(config), transformers.CLIPImageProcessor()
    model.save_pretrained(path)
    processor.save_pretrained(path)
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )
    tokenizer.save_pretrained(path)
    return path


def loaded(folder: Path, classes: tuple[str, ...] = ANIMALS, image_size: int = 32, **changes: object) -> LoadedModel:
    """Return the model as an evaluation gets it."""
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    content = {"kind": "transformers", "folder": folder, "sha256": sha256, **changes}
    spec = TransformersModel.model_validate(content)
    return kind_of(spec).load(ModelContext(name="towers", classes=classes, image_size=image_size))


def test_it_gives_the_logits_of_its_authors(folder: Path):
    """With their scale and bias; images in [0, 1] are normalised as its preprocessing says."""
    model = loaded(folder)
    images = torch.rand(3, 3, 32, 32)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (model.mean, model.std))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [f"a photo of a {name} ." for name in ("cat", "polar bear", "owl")]
    tokens = tokenizer(texts, padding="max_length", max_length=16, return_tensors="pt")["input_ids"]

    with torch.inference_mode():
        reference = transformers.AutoModel.from_pretrained(folder).eval()
        expected = reference(input_ids=tokens, pixel_values=(images - mean) / std).logits_per_image
        torch.testing.assert_close(expected, model.make()(images), rtol=1e-4, atol=1e-4)
    own = ((0.5, 0.5, 0.5), True) if folder.name.startswith("siglip") else ((0.4814, 0.4578, 0.4082), False)
    assert own == (tuple(int(1e4 * each) / 1e4 for each in model.mean), model.make_network().head.bias is not None)


def test_methods_take_it_for_a_clip(folder: Path):
    """Those that read features; prompts can only be tuned with open_clip's text tower."""
    for method in ("zero_shot", "tda", "zero", "oga", "tent"):
        predicted = build(method, loaded(folder).make(), num_classes=3, batch_size=2).predict(torch.rand(2, 3, 32, 32))
        assert predicted.isfinite().all()
    with pytest.raises(AdaptationError, match=r"\btpt\b.*\bViT-B-16\b"):
        build("tpt", loaded(folder).make(), num_classes=3)


def test_texts_and_files_decide(folder: Path):
    """Other texts are another model; another file, size or kind of model is refused."""
    assert loaded(folder).identity != loaded(folder, templates=["{}"]).identity
    with pytest.raises(EvaluationError, match=r"model\.safetensors.*\b[0-9a-f]{64}\b.*\b0{64}\b"):
        loaded(folder, sha256="0" * 64)
    with pytest.raises(EvaluationError, match=r"\btowers\b.*\b32x32\b.*\b48x48\b"):
        loaded(folder, image_size=48)
    (folder / "config.json").rename(folder / "kept.json")
    try:
        with pytest.raises(EvaluationError, match=f"{folder} "):
            loaded(folder)
    finally:
        (folder / "kept.json").rename(folder / "config.json")


@pytest.mark.parametrize(("content", "named"), [
    ({}, r"\bhf\b.*\bfolder\b"),
    ({"hf": "google/siglip2-base-patch16-224", "revision": "main"}, r"'main'.*`git ls-remote \S+/siglip2\S+ main`"),
    ({"folder": "x"}, r"\bfolder\b.*\bsha256\b"),
])  # fmt: skip
def test_a_section_says_which_weights(content: dict[str, object], named: str):
    """A commit, or a folder with its hash."""
    with pytest.raises(ValidationError, match=named):
        TransformersModel.model_validate({"kind": "transformers", **content})
