"""Methods for CLIP: a zero-shot classifier made from the scene's network, and adapters for the authors' code.

The image tower of the classifier is the network without its last layer, and its text features are that layer's
rows. Context words before the class names shift these rows by random weights. The result is a CLIP model without a
download.
"""

from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.functional import normalize

from bench.parity.clones import import_from_clone, module, package
from bench.parity.comparison import SEED, Predict, Setting
from bench.parity.features import FeaturesOf
from tta_pipeline.methods.clip.crop_views import crop_views
from tta_pipeline.models.zero_shot_classifier import ZeroShotClassifier

_SCALE = 100.0  # written in TDA's code
_NUM_WORDS = 4
_PARTS_OF_TPT = {
    "clip.custom_clip": ("get_coop",),
    "clip.cocoop": ("get_cocoop",),
    "model.learnable_shift": ("get_shift_model",),
    "data.imagnet_prompts": ("imagenet_classes",),
    "data.imagenet_prompts_clean": ("imagenet_classes",),
    "data.datautils": ("AugMixAugmenter", "build_dataset"),
    "utils.tools": ("Summary", "AverageMeter", "ProgressMeter", "accuracy", "load_model_weight", "set_random_seed"),
    "data.cls_to_names": (),
    "data.fewshot_datasets": ("fewshot_datasets",),
    "data.imagenet_variants": ("thousand_k_to_200", "imagenet_a_mask", "imagenet_r_mask", "imagenet_v_mask"),
    "ipdb": (),
    "clip": ("load", "tokenize"),
    "data": (),
    "utils": (),
    "model": (),
}
"""Modules that read data or make models in TPT's program and its descendants, and the names that are taken of them."""


class _Words(nn.Module):
    """Text features, (K, D), as a function of a context, (N, D)."""

    context: torch.Tensor

    def __init__(self, text_features: torch.Tensor) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(SEED)
        num_classes, width = text_features.shape
        self.register_buffer("_texts", text_features)
        self.register_buffer("_gates", torch.randn(num_classes, width, generator=generator))
        self.register_buffer("context", torch.randn(_NUM_WORDS, width, generator=generator) * 0.1)

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        """Return text features of length 1."""
        return normalize(self.get_buffer("_texts") + context.tanh().mean(0) * self.get_buffer("_gates"), dim=1)


class WordsThroughNorm(_Words):
    """Text features behind a layer norm, as a text tower has them."""

    def __init__(self, text_features: torch.Tensor) -> None:
        super().__init__(text_features)
        self.norm = nn.LayerNorm(text_features.shape[1])

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        """Return text features of length 1."""
        return normalize(self.norm(super().forward(context)), dim=1)


def as_clip(network: nn.Module, *, scale: float = _SCALE, words: type[_Words] = _Words) -> nn.Module:
    """Return a zero-shot classifier made from *network*; *scale* multiplies its cosines."""
    features = FeaturesOf(network)
    text_features = normalize(features.last.weight.detach(), dim=1)
    return ZeroShotClassifier(features, text_features, scale=scale, prompts=words(text_features)).eval()


def tower_of(at: Setting) -> Any:
    """Return the zero-shot classifier of the authors' side."""
    network: Any = at.network
    return network


def image_features(at: Setting, images: torch.Tensor) -> torch.Tensor:
    """Return features of length 1, (B, D)."""
    return normalize(tower_of(at).tower(images), dim=1)


def text_features_of(at: Setting) -> torch.Tensor:
    """Return features of length 1, (K, D)."""
    features: torch.Tensor = tower_of(at).head.weight.detach() / tower_of(at).scale
    return features


def tda(at: Setting) -> Predict:
    """Make TDA in float32; its loop takes a whole stream, so each batch is run with all images before it."""
    absent = ("wandb", "clip", "datasets", "datasets.imagenet", "datasets.utils")
    stand_ins = {name: module(name, log=lambda *_, **__: None) for name in absent}
    stand_ins["datasets"].build_dataset = None  # type: ignore[attr-defined]
    stand_ins["datasets.imagenet"].ImageNet = None  # type: ignore[attr-defined]
    vars(stand_ins["datasets.utils"]).update(build_data_loader=None, AugMixAugmenter=None)
    code, settings = import_from_clone(at.clone, "tda_runner", stand_ins), _any(at)
    positive = {
        "enabled": True, "shot_capacity": settings.positive_size, "alpha": settings.positive_alpha,
        "beta": settings.positive_beta,
    }  # fmt: skip
    negative = {
        "enabled": True, "shot_capacity": settings.negative_size, "alpha": settings.negative_alpha,
        "beta": settings.negative_beta,
        "entropy_threshold": {"lower": settings.entropy_lower, "upper": settings.entropy_upper},
        "mask_threshold": {"lower": settings.mask_lower, "upper": settings.mask_upper},
    }  # fmt: skip
    clip = SimpleNamespace(encode_image=tower_of(at).tower)
    seen: list[torch.Tensor] = []

    def predict(images: torch.Tensor) -> torch.Tensor:
        seen.extend(torch.split(images, 1))
        found: list[torch.Tensor] = []
        with ExitStack() as stack:
            stack.enter_context(patch.object(torch.Tensor, "half", torch.Tensor.float))
            stack.enter_context(patch.object(code, "cls_acc", lambda logits, _: found.append(logits) or 0.0))
            stack.enter_context(patch.object(code, "tqdm", lambda loader, **_: loader))
            stack.enter_context(patch.object(code, "print", lambda *_: None, create=True))
            stream = [(image, torch.zeros(1)) for image in seen]
            code.run_test_tda(positive, negative, stream, clip, text_features_of(at).T)
        return torch.cat(found[-len(images) :])

    return predict


def _make_bca(at: Setting) -> Any:
    folder, settings = at.clone / "ttabc", _any(at)
    tools = ("Summary", "AverageMeter", "ProgressMeter", "accuracy", "softmax_entropy")
    stand_ins = {
        "ttabc": package(folder),
        "ttabc.model_selection": package(folder / "model_selection"),
        "ttabc.model_selection.base_method": module("ttabc.model_selection.base_method", BaseMethod=object),
        "ttabc.utils": module("ttabc.utils"),
        "ttabc.utils.tools": module("ttabc.utils.tools", **dict.fromkeys(tools)),
    }
    code = import_from_clone(at.clone, "ttabc.model_selection.bca", stand_ins)
    told = code.BCAConfig(
        thr1=settings.embedding_threshold, init_count1=settings.embedding_count, thr2=settings.prior_threshold,
        init_count2=settings.prior_count, tem=float(tower_of(at).scale),
    )  # fmt: skip
    return code.BCAState(text_features_of(at), told)


def bca(at: Setting) -> Predict:
    """Make TTABC's BCA, one image after the other; it returns probabilities."""
    made = _make_bca(at)
    return torch.no_grad()(
        lambda images: torch.cat([made.step(each)[0] for each in torch.split(image_features(at, images), 1)])
    )


def bca_with_nearest_embedding(at: Setting) -> Predict:
    """Make BCA, changed so that an image enters the embedding nearest to it, not the predicted class's embedding."""
    made = _make_bca(at)
    of_classes = made._predict_probs  # noqa: SLF001 - an experiment

    class NearestFirst(torch.Tensor):
        """Probabilities with the embeddings' maximum."""

    def predict_one(feature: torch.Tensor) -> torch.Tensor:
        likelihoods = (made.cfg.tem * feature @ made.mu.T).softmax(1)
        probabilities: torch.Tensor = of_classes(feature).as_subclass(NearestFirst)
        with patch.object(NearestFirst, "max", lambda _, dim: likelihoods.max(dim)):
            made._predict_probs = lambda _: probabilities  # noqa: SLF001 - an experiment
            return made.step(feature)[0].as_subclass(torch.Tensor)  # type: ignore[no-any-return]

    return torch.no_grad()(
        lambda images: torch.cat([predict_one(each) for each in torch.split(image_features(at, images), 1)])
    )


class _TowersOfZero(nn.Module):
    """The parts of CLIP that ZERO calls."""

    def __init__(self, at: Setting) -> None:
        super().__init__()
        self._at = at
        self.temp = 1 / tower_of(at).scale

    def get_text_features(self) -> torch.Tensor:
        """Return text features (K, D)."""
        return text_features_of(self._at)

    def get_image_features(self, images: torch.Tensor) -> torch.Tensor:
        """Return image features (B, D)."""
        return image_features(self._at, images)


def tpt_stand_ins(*without: str) -> dict[str, ModuleType]:
    """Return stand-ins for the modules that TPT's program and its descendants import, except *without*."""
    return {name: module(name, **dict.fromkeys(of_it)) for name, of_it in _PARTS_OF_TPT.items() if name not in without}


def predict_by_views(at: Setting, predict_one: Predict) -> Predict:
    """Return a function that predicts each image by *predict_one* from the views that our method draws."""
    settings: Any = at.settings
    generator = torch.Generator().manual_seed(at.ours.seed)

    def predict(images: torch.Tensor) -> torch.Tensor:
        views = crop_views(images, generator, num_views=settings.num_views - 1)
        pairs = zip(images, views, strict=True)
        with patch.object(torch.cuda.amp, "autocast", ExitStack):
            return torch.cat([predict_one(torch.cat([image[None], of_it])) for image, of_it in pairs])

    return predict


def zero(at: Setting) -> Predict:
    """Make ZERO with the views that our method draws; its vote counts are converted into logits as ours are."""
    settings = _any(at)
    names = ("caltech101", "pets", "flower102", "food101", "aircraft", "dtd", "cars", "sun397", "ucf101", "eurosat")
    stand_ins = {
        "ttas": package(at.clone / "ttas"),
        "clip": module("clip"),
        "clip.custom_clip": module("clip.custom_clip", get_clip=lambda *_, **__: _TowersOfZero(at)),
        "data": module("data"),
        "data.datautils": module("data.datautils", prepare_imagenet_classnames=None),
        "data.imagenet_prompts": module("data.imagenet_prompts", imagenet_classes=()),
        "data.cls_to_names": module("data.cls_to_names", **{f"{name}_classes": () for name in names}),
        "pandas": module("pandas"),
    }
    made = import_from_clone(at.clone, "ttas.zero", stand_ins).Zero(model="clip")
    made.gamma = settings.kept_share

    def predict_one(views: torch.Tensor) -> torch.Tensor:
        votes = made(views)
        return (votes / votes.sum(1, keepdim=True)).clamp(min=torch.finfo(votes.dtype).eps).log()

    return predict_by_views(at, predict_one)


class _TunedByTpt(nn.Module):
    """The module that TPT tunes: the context of prompts, with an image tower."""

    def __init__(self, at: Setting) -> None:
        super().__init__()
        self._at, self._prompts = at, tower_of(at).prompts
        self.context = nn.Parameter(self._prompts.context.clone())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        with torch.no_grad():
            features = image_features(self._at, images)
        logits: torch.Tensor = tower_of(self._at).scale * features @ self._prompts(self.context).T
        return logits


def tpt(at: Setting) -> Predict:
    """Make TPT's procedure for each image, in float32, with the views that our method draws."""
    settings = _any(at)
    code = import_from_clone(at.clone, "tpt_classification", tpt_stand_ins())
    told = SimpleNamespace(cocoop=False, tta_steps=settings.steps, selection_p=settings.kept_share)

    def predict_one(views: torch.Tensor) -> torch.Tensor:
        tuned = _TunedByTpt(at)
        optimizer = torch.optim.AdamW([tuned.context], settings.lr)
        code.test_time_tuning(tuned, views, optimizer, torch.amp.GradScaler("cpu", enabled=False), told)
        with torch.no_grad():
            logits: torch.Tensor = tuned(views[:1])
        return logits

    return predict_by_views(at, predict_one)


def _any(at: Setting) -> Any:
    return at.settings
