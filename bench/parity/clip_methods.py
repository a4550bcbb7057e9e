"""Adapters for the authors' code of the methods for CLIP that came after TDA, ZERO and TPT."""

import sys
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.functional import normalize
from torch.utils.data import TensorDataset

from bench.parity.adapters import of_md
from bench.parity.clip import image_features, predict_by_views, text_features_of, tower_of, tpt_stand_ins
from bench.parity.clones import import_from_clone, module, package
from bench.parity.comparison import Predict, Setting
from tta_pipeline.methods.clip.crop_views import crop_views


def mta(at: Setting) -> Predict:
    """Make MTA in float32."""
    settings: Any = at.settings
    code = import_from_clone(at.clone, "mta")
    told = SimpleNamespace(lambda_y=settings.entropy_weight, lambda_q=settings.affinity_weight)

    def towers(views: torch.Tensor, *, features: bool) -> tuple[torch.Tensor, torch.Tensor, float]:
        assert features
        return image_features(at, views), text_features_of(at), tower_of(at).scale

    return predict_by_views(at, lambda views: code.solve_mta(towers, views, told))


def oga(at: Setting) -> Predict:
    """Make OGA."""
    return _predict_by_oga(at, _make_oga(at))


def oga_in_float32(at: Setting) -> Predict:
    """Make OGA with a cache in float32, not in float16."""
    made = _make_oga(at)
    for cached in (made.memory, made.memory_soft_labels, made.memory_entropy):
        cached.data = cached.data.double() if cached is made.memory_entropy else cached.data.float()
    return _predict_by_oga(at, made)


def _make_oga(at: Setting) -> Any:
    settings: Any = at.settings
    code = import_from_clone(at.clone, "OGA.OGA_core", {"OGA": package(at.clone / "OGA")})
    return code.GaussAdapt(text_features_of(at), shot_capacity=settings.cache_size)


def _predict_by_oga(at: Setting, made: Any) -> Predict:
    """Return a function that feeds batches to OGA as its script does."""
    settings: Any = at.settings

    def predict(images: torch.Tensor) -> torch.Tensor:
        features = image_features(at, images)
        logits = (made.temp * features @ text_features_of(at).T).double()
        shares = logits.softmax(-1)
        doubt = -(torch.log(shares + 1e-9) * shares).sum(-1)
        made.update_memory(features, logits, shares, doubt, logits.argmax(1), tau=settings.likelihood_weight)
        gaussians = made.get_log_probs(features)
        probabilities, _ = made.get_MAP(shares, gaussians, tau=settings.likelihood_weight, simplex_p=True)
        found: torch.Tensor = probabilities
        return found

    return torch.no_grad()(predict)


def boostadapter(at: Setting) -> Predict:
    """Make BoostAdapter, whose loop takes a whole stream, so each batch is run with the features of all images before.

    Its settings are those for a fine-grained set, where the image itself is kept and predicted.
    """
    settings: Any = at.settings
    absent = {"wandb": (), "clip": (), "datasets": ("build_dataset",), "datasets.imagenet": ("ImageNet",)}
    absent |= {"datasets.utils": ("build_data_loader", "AugMixAugmenter"), "loguru": ("logger",), "IPython": ("embed",)}
    stand_ins = {name: module(name, **dict.fromkeys(of_it)) for name, of_it in absent.items()}
    code = import_from_clone(at.clone, "runner", stand_ins)
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
    told, logger = SimpleNamespace(mode="boostadapter", datasets="dtd"), SimpleNamespace(info=lambda *_: None)
    clip = SimpleNamespace(encode_image=torch.clone)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def predict(images: torch.Tensor) -> torch.Tensor:
        seen.extend(_features_of_views(images))
        found: list[torch.Tensor] = []
        with ExitStack() as stack:
            stack.enter_context(patch.object(torch.Tensor, "half", torch.Tensor.float))
            stack.enter_context(
                patch.object(code, "cls_acc", lambda logits, _: found.append(logits) or 0.0, create=True)
            )
            texts, more = text_features_of(at).T, {"delta": settings.num_boosting}
            code.run_test_tda(positive, negative, seen, clip, texts, logger, told, more)
        return torch.cat(found[-len(images) :])

    def _features_of_views(images: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        crops = crop_views(images, generator, num_views=settings.num_views - 1)
        pairs = zip(images, crops, strict=True)
        views = (torch.cat([image[None], of_it]) for image, of_it in pairs)
        return [(image_features(at, each), torch.zeros(1)) for each in views]

    generator = torch.Generator().manual_seed(at.ours.seed)
    return torch.no_grad()(predict)


def ecalp(at: Setting) -> Predict:
    """Make ECALP, whose script gives it each image twice, behind all images before."""
    settings: Any = at.settings
    code = import_from_clone(at.clone, "utils.iterative_label_propagation", {"utils": package(at.clone / "utils")})
    seen: list[torch.Tensor] = []

    def predict_one(feature: torch.Tensor) -> torch.Tensor:
        seen.append(feature)
        found: torch.Tensor = code.iterative_label_propagation(
            torch.cat([*seen, feature]), text_features_of(at), settings.num_texts, settings.num_images, 0,
            settings.power, settings.neighbour_share, max_iter=settings.num_turns,
        )  # fmt: skip
        return found

    return torch.no_grad()(
        lambda images: torch.cat([predict_one(each) for each in torch.split(image_features(at, images), 1)])
    )


def ecalp_with_first_of_equals(at: Setting) -> Predict:
    """Make ECALP, which takes the first of equally near neighbours."""
    predict = ecalp(at)

    def first_of_equals(values: torch.Tensor, k: int, *, largest: bool = True, dim: int = -1) -> tuple[Any, Any]:
        found, places = values.sort(dim=dim, descending=largest, stable=True)
        return found.narrow(dim, 0, k), places.narrow(dim, 0, k)

    def predict_so(images: torch.Tensor) -> torch.Tensor:
        with patch.object(torch.Tensor, "topk", first_of_equals):
            return predict(images)

    return predict_so


def stata(at: Setting) -> Predict:
    """Make StatA, which treats each batch separately; it returns probabilities."""
    settings: Any = at.settings
    code = import_from_clone(at.clone, "solvers.StatA", {"solvers": package(at.clone / "solvers")})
    told = {
        "alpha": settings.anchor_weight, "lambda_laplacian": settings.neighbour_weight,
        "n_neighbors": settings.num_neighbours, "max_iter": settings.num_turns,
    }  # fmt: skip

    def predict(images: torch.Tensor) -> torch.Tensor:
        texts, no_labels = text_features_of(at).T[None], torch.zeros(len(images))
        _, found = code.StatA_solver(image_features(at, images), no_labels, texts, **told)
        return found  # type: ignore[no-any-return]

    return torch.no_grad()(predict)


def onzeta(at: Setting) -> Predict:
    """Make OnZeta's script, which knows its whole stream, so each batch is run with all images before it.

    The share of the proxies grows with the position over the length of the stream, so each part gets its own share.
    """
    settings: Any = at.settings
    code = import_from_clone(at.clone, "main_online", {"clip": module("clip")})
    clip = SimpleNamespace(encode_image=tower_of(at).tower, cuda=lambda: clip, eval=lambda: clip)
    seen: list[torch.Tensor] = []

    def predict(images: torch.Tensor) -> torch.Tensor:
        seen.append(images)
        whole = torch.cat(seen)
        labels = torch.arange(len(whole)) % at.num_classes  # any: they count the classes
        images_of_stream = TensorDataset(whole, labels)
        share = settings.proxy_share * (len(whole) / settings.stream_size) ** 0.5
        options = {
            "--tau_t": 1 / tower_of(at).scale, "--tau_i": settings.temperature, "--cw": settings.proxy_lr,
            "--cr": settings.dual_lr, "--alpha": settings.smallest_share, "--beta": share, "--repeat": 1, "-j": 0,
        }  # fmt: skip
        found: list[torch.Tensor] = []
        with ExitStack() as stack:
            told = [sys.argv[0], *(str(each) for pair in options.items() for each in pair)]
            stack.enter_context(patch.object(sys, "argv", told))
            stack.enter_context(patch.object(code.clip, "load", lambda _: (clip, None), create=True))
            stack.enter_context(patch.object(code, "zeroshot_classifier", lambda *_: text_features_of(at).T))
            stack.enter_context(patch.object(code, "accuracy", lambda output, *_, **__: found.append(output) or (0, 0)))
            stack.enter_context(patch.object(code.datasets, "ImageFolder", lambda *_, **__: images_of_stream))
            stack.enter_context(patch.object(torch, "randperm", torch.arange))
            code.main()
        return found[-1][-len(images) :]

    return predict


class _TunedByCtpt(nn.Module):
    """The module that C-TPT tunes, whose `inference` is the authors'."""

    def __init__(self, at: Setting, code: Any) -> None:
        super().__init__()
        self.inference = code.ClipTestTimeTuning.inference.__get__(self)
        self._prompts = tower_of(at).prompts
        self.context = nn.Parameter(self._prompts.context.clone())
        self.image_encoder = tower_of(at).tower
        self.dtype = torch.float32
        self.logit_scale = torch.tensor(tower_of(at).scale).log()
        self.l2_norm_cal = True

    def get_text_features(self) -> torch.Tensor:
        """Return text features (K, D) of length 1."""
        features: torch.Tensor = self._prompts(self.context)
        return features

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        logits: torch.Tensor = self.inference(images)
        return logits


def ctpt(at: Setting) -> Predict:
    """Make C-TPT's procedure for each image, in float32."""
    settings: Any = at.settings
    towers = import_from_clone(
        at.clone, "clip.custom_clip", {**tpt_stand_ins("clip.custom_clip", "clip"), "clip": _clip_package(at)}
    )
    code = import_from_clone(at.clone, "tpt_classification", tpt_stand_ins())
    told = SimpleNamespace(
        cocoop=False, two_step=False, run_type="tpt_ctpt", lambda_term=settings.dispersion_weight,
        tta_steps=settings.steps, selection_p=settings.kept_share,
    )  # fmt: skip

    def predict_one(views: torch.Tensor) -> torch.Tensor:
        tuned = _TunedByCtpt(at, towers)
        optimizer = torch.optim.AdamW([tuned.context], settings.lr)
        code.test_time_tuning(tuned, views, optimizer, torch.amp.GradScaler("cpu", enabled=False), told)
        with torch.no_grad():
            logits: torch.Tensor = tuned(views[:1])
        return logits

    return predict_by_views(at, predict_one)


def _clip_package(at: Setting) -> ModuleType:
    """Return the clone's package without its own imports."""
    found = package(at.clone / "clip")
    vars(found).update(load=None, tokenize=None)
    return found


class _ShiftedByTps(nn.Module):
    """The module that TPS tunes, whose `text_shifter` is the authors'."""

    def __init__(self, at: Setting, shifter: Any) -> None:
        super().__init__()
        self._at = at
        num_classes, width = text_features_of(at).shape
        self.text_shifter = shifter.Shifter(width, dtype=torch.float32, num_classes=num_classes, per_label=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K)."""
        texts = self.text_shifter(text_features_of(self._at).clone())
        with torch.no_grad():
            features = image_features(self._at, images)
        logits: torch.Tensor = tower_of(self._at).scale * features @ normalize(texts, dim=-1).T
        return logits


def tps(at: Setting) -> Predict:
    """Make TPS's procedure for each image, in float32."""
    settings: Any = at.settings
    shifter = import_from_clone(at.clone, "model.shifter", {"model": package(at.clone / "model")})
    code = import_from_clone(at.clone, "shift_classification", tpt_stand_ins())
    told = SimpleNamespace(tta_steps=settings.steps, selection_p=settings.kept_share)

    def predict_one(views: torch.Tensor) -> torch.Tensor:
        tuned = _ShiftedByTps(at, shifter)
        optimizer = torch.optim.AdamW(tuned.text_shifter.parameters(), settings.lr)
        code.test_time_tuning(tuned, views, optimizer, torch.amp.GradScaler("cpu", enabled=False), told)
        with torch.no_grad():
            logits: torch.Tensor = tuned(views[:1])
        return logits

    return predict_by_views(at, predict_one)


class _BothTowersOfBatclip(nn.Module):
    """The CLIP that BATCLIP adapts; its own `ZeroShotCLIP` makes one of open_clip."""

    def __init__(self, at: Setting) -> None:
        super().__init__()
        self.image_encoder, self.text_encoder = tower_of(at).tower, deepcopy(tower_of(at).prompts)
        self.scale = tower_of(at).scale

    def forward(self, images: torch.Tensor, *, return_features: bool = False) -> Any:
        """Return logits (B, K), with all features if asked."""
        before = self.image_encoder(images)
        features = before / before.norm(dim=1, keepdim=True)
        texts = self.text_encoder(self.text_encoder.context)
        logits = self.scale * features @ texts.T
        return (logits, features, texts, before, texts) if return_features else logits


def batclip(at: Setting) -> Predict:
    """Make BATCLIP."""
    return of_md("ours", "OURS")(replace(at, network=_BothTowersOfBatclip(at)))
