"""Zero-shot classifiers of open_clip: an image tower, and text features of the classes as a linear head."""

import hashlib
import json
from collections.abc import Sequence
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tta_pipeline.benchmarks.model_specs import OpenClipModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture
from tta_pipeline.models.class_texts import ClassTexts, ZeroShotKind, make_class_texts
from tta_pipeline.models.fitting import require_fitting
from tta_pipeline.models.libraries import import_library
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import ModelContext, OwnTransform
from tta_pipeline.models.text_features import load_or_compute
from tta_pipeline.models.try_network import require_outputs
from tta_pipeline.models.weights import first_line, read_state, require_file, state_sha256
from tta_pipeline.models.zero_shot_classifier import ZeroShotClassifier
from tta_pipeline.util.nearest_names import name_choices

_CONTEXT = "a photo of a"
"""Words before the class's name in a prompt to tune, as in TPT's and CoOp's code."""


class Prompts(nn.Module):
    """The text features of the classes as a function of the context, the words before each class's name.

    Zhou et al. 2022, "Learning to prompt for vision-language models" (CoOp), section 3.2: one context for all classes.

    Args:
        clip: open_clip's CLIP model; its image tower is not used.
        texts: Tokens of `a photo of a <class>.` for each class, (K, L).
        num_words: Number N of tokens of the context, which follow the start token of each text.
    """

    context: torch.Tensor
    """Embeddings of the words, (N, W)."""

    def __init__(self, clip: Any, texts: torch.Tensor, *, num_words: int) -> None:
        super().__init__()
        self._clip = clip
        self._words = slice(1, 1 + num_words)
        self.register_buffer("_texts", texts)
        with torch.no_grad():
            self.register_buffer("context", clip.token_embedding(texts[0, self._words]))

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        """Return text features of length 1, (K, D), with *context* (N, W) in each text."""

        def with_context(_: nn.Module, __: object, embedded: torch.Tensor) -> torch.Tensor:
            words = context.to(embedded.dtype).expand(len(embedded), -1, -1)
            return torch.cat([embedded[:, :1], words, embedded[:, self._words.stop :]], 1)

        handle = self._clip.token_embedding.register_forward_hook(with_context)
        try:
            features: torch.Tensor = self._clip.encode_text(self._texts, normalize=True)
        finally:
            handle.remove()
        return features


class OpenClip(ZeroShotKind[OpenClipModel]):
    """A zero-shot classifier of open_clip."""

    def load_for_classes(self, context: ModelContext) -> LoadedModel:
        """Return the zero-shot classifier of the classes.

        Raises:
            EvaluationError: open_clip is not installed; the weights are missing, changed, or of another architecture; a
                class has no name in words; or the image tower does not take images of this size.
        """
        spec = self.section
        open_clip = _import_open_clip()
        texts = make_class_texts(spec, context.classes)
        architecture, config = _find_architecture(open_clip, spec.architecture)
        clip = _create_clip(open_clip, spec, architecture)
        weights_sha256 = spec.sha256 or state_sha256(clip.state_dict())
        settings = open_clip.get_model_preprocess_cfg(clip)
        tokenizer = _load_tokenizer(open_clip, architecture)
        features = load_or_compute(
            context.text_features,
            {
                "architecture": architecture, "weights": weights_sha256, "texts": texts.sha256, **config,
                "open_clip": version("open_clip_torch"), "torch": torch.__version__,
            },
            lambda: _compute_text_features(open_clip, clip, tokenizer, texts),
        )  # fmt: skip
        tower, clip.visual = clip.visual, None
        bias = getattr(clip, "logit_bias", None)
        network = ZeroShotClassifier(
            tower,
            features,
            scale=clip.logit_scale.detach().exp().item(),
            bias=None if bias is None else bias.item(),
            prompts=_make_prompts(open_clip, clip, tokenizer, texts.names),
        ).eval()
        if context.image_size is not None:
            called = f"model {context.name}, open_clip's {architecture}, which is for images of {_size_of(tower)},"
            require_outputs(network, num_classes=len(texts.names), image_size=context.image_size, called=called)
        return LoadedModel(
            name=context.name,
            make_network=lambda: deepcopy(network),
            num_classes=len(texts.names),
            weights=spec.weights.name if spec.weights else f"open_clip {architecture} {spec.pretrained}",
            weights_sha256=weights_sha256,
            mean=tuple(settings["mean"]),
            std=tuple(settings["std"]),
            architecture=f"open_clip {architecture}",
            # The texts and not their features, whose last bits differ between machines.
            code={"texts_sha256": texts.sha256, **config},
        )

    def own_transforms(self) -> tuple[OwnTransform, ...]:
        """Return the transform of the published weights, or of the architecture."""
        open_clip, spec = _import_open_clip(), self.section
        architecture, _ = _find_architecture(open_clip, spec.architecture)
        size = open_clip.get_model_config(architecture)["vision_cfg"]["image_size"]
        settings = (open_clip.get_pretrained_cfg(architecture, spec.pretrained) if spec.pretrained else None) or {}
        side = size if isinstance(size, int) else size[0]
        keeps_ratio = settings.get("resize_mode", "shortest") == "shortest"
        filter_ = settings.get("interpolation", "bicubic")
        return (OwnTransform(size=side, resize=side, interpolation=filter_, keeps_ratio=keeps_ratio),)


def _import_open_clip() -> Any:
    return import_library("open_clip", extra="clip")


def _compute_text_features(open_clip: Any, clip: nn.Module, tokenizer: Any, texts: ClassTexts) -> torch.Tensor:
    """Return the mean text features of each class, (K, D); the features of each text and the means have length 1."""
    features: torch.Tensor = open_clip.build_zero_shot_classifier(clip, tokenizer, texts.names, texts.templates)
    return features.T.contiguous()


def _load_tokenizer(open_clip: Any, architecture: str) -> Any:
    try:
        return open_clip.get_tokenizer(architecture)
    except Exception as error:  # some are fetched from the hub, whose client raises errors of any kind
        raise EvaluationError(
            f"open_clip has no tokenizer for {architecture} ({first_line(error)}); expected a connection, or the "
            "tokenizer's files in the cache of huggingface_hub: download them"
        ) from error


def _make_prompts(open_clip: Any, clip: Any, tokenizer: Any, class_names: Sequence[str]) -> Prompts | None:
    """Return the prompts of *clip*, or None if it does not use open_clip's own tokenizer and text tower."""
    if not (isinstance(clip, open_clip.CLIP) and isinstance(tokenizer, open_clip.SimpleTokenizer)):
        return None
    num_words = len(tokenizer.encode(_CONTEXT))
    return Prompts(clip, tokenizer([f"{_CONTEXT} {name}." for name in class_names]), num_words=num_words)


def _find_architecture(open_clip: Any, architecture: str) -> tuple[str, dict[str, str]]:
    """Return open_clip's name of *architecture*, a name or a file, and the hash of a file.

    Raises:
        EvaluationError: there is no such architecture, or the file hides one of open_clip's.
    """
    path = Path(architecture).expanduser()
    if path.suffix != ".json":
        if architecture not in open_clip.list_models():
            known = name_choices(architecture, open_clip.list_models(), listed_in="open_clip.list_models()")
            raise EvaluationError(f"open_clip has no architecture {architecture!r}; expected one of {known}, or a file")
        return architecture, {}
    own = open_clip.get_model_config(path.stem)
    try:
        config = path.read_bytes()
        if own is not None and own != json.loads(config):
            raise EvaluationError(
                f"{path} describes a different network from open_clip's {path.stem}; expected an unused name: rename "
                "the file"
            )
        open_clip.add_model_config(path)
    except (OSError, ValueError) as error:
        raise EvaluationError(
            f"{path} cannot be read ({first_line(error)}); expected JSON with embed_dim, vision_cfg and text_cfg, "
            "like open_clip's own files"
        ) from error
    return path.stem, {"config_sha256": hashlib.sha256(config).hexdigest()}


def _size_of(tower: Any) -> str:
    """Return the size in pixels of the images that *tower* was made for."""
    size = getattr(tower, "image_size", None)
    height, width = size if isinstance(size, tuple | list) else (size, size)
    return f"{height}x{width}"


def _require_activation(open_clip: Any, architecture: str, tag: str) -> None:
    """Raise an error for weights with the other kind of GELU: open_clip only warns, and predictions are worse.

    Raises:
        EvaluationError: the weights were trained with QuickGELU and the architecture has GELU, or the reverse.
    """
    tagged = bool((open_clip.get_pretrained_cfg(architecture, tag) or {}).get("quick_gelu"))
    if tagged == bool((open_clip.get_model_config(architecture) or {}).get("quick_gelu")):
        return
    right = f"{architecture}-quickgelu" if tagged else architecture.removesuffix("-quickgelu")
    raise EvaluationError(
        f"The weights {tag} were trained with {'QuickGELU' if tagged else 'GELU'}, but {architecture} uses the other; "
        f"expected architecture {right}: write that one"
    )


def _create_clip(open_clip: Any, spec: OpenClipModel, architecture: str) -> Any:
    """Return the whole CLIP model with its weights.

    Raises:
        EvaluationError: the weights do not exist, were changed or do not fit.
    """
    if spec.weights is not None and spec.sha256 is not None:
        path = spec.weights.expanduser()
        require_file(path, spec.sha256)
        try:
            return open_clip.create_model(architecture, pretrained=str(path)).eval()
        except Exception as error:  # of any kind: the file may hold anything
            _raise_misfit(open_clip, architecture, path, spec.sha256)
            raise EvaluationError(
                f"open_clip cannot load {path} ({first_line(error)}); expected weights of {architecture}: correct the "
                "path or the architecture"
            ) from error
    _require_activation(open_clip, architecture, str(spec.pretrained))
    try:
        return open_clip.create_model(architecture, pretrained=spec.pretrained).eval()
    except Exception as error:  # its hub client raises errors of any kind
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise EvaluationError(
            f"open_clip cannot load {architecture} {spec.pretrained} ({first_line(error)}); expected one of its tags "
            f"({tags}), and a connection or the file in the cache of huggingface_hub: correct the tag, or download "
            "the file"
        ) from error


def _raise_misfit(open_clip: Any, architecture: str, path: Path, sha256: str) -> None:
    """Raise an error that names the first weights that do not fit, if there are any."""
    whole = Architecture(
        name=f"open_clip {architecture}",
        display_name=f"open_clip's {architecture}",
        library=f"open_clip {version('open_clip_torch')}",
        make=lambda _: open_clip.create_model(architecture),
        needs_storage=True,
    )
    require_fitting(whole, read_state(path, sha256), num_classes=None, what=f"{path} does not")
