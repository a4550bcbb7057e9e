"""Zero-shot classifiers of open_clip: an image tower, and text features of the classes as a linear head."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from tta_pipeline.benchmarks.model_specs import OpenClipModel
from tta_pipeline.data.labels.label_files import read_classes
from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import Architecture
from tta_pipeline.models.fitting import require_fitting
from tta_pipeline.models.libraries import import_library
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.text_features import load_or_compute
from tta_pipeline.models.try_network import require_outputs
from tta_pipeline.models.weights import first_line, read_state, require_file, state_sha256
from tta_pipeline.util.nearest_names import name_choices

_NO_WORD = re.compile(r"[0-9]*|n[0-9]{8}")
"""Names of classes that mean nothing to a text tower: numbers and WordNet ids."""


_USUAL_TEMPLATE = "a photo of a {}."
_CONTEXT = "a photo of a"
"""Words before the class's name in a prompt to tune, as in TPT's and CoOp's code."""


class Prompts(nn.Module):
    """The text features of the classes as a function of the context, the words before each class's name.

    Zhou et al. 2022, "Learning to prompt for vision-language models" (CoOp), section 3.2: one context for all classes.

    Args:
        clip: A CLIP of open_clip; its image tower is not used.
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


@dataclass(frozen=True)
class _SharedPrompts:
    """Holds the prompts that all copies of a classifier share, since nothing changes them."""

    prompts: nn.Module | None

    def __deepcopy__(self, _: object) -> "_SharedPrompts":
        return self


class ZeroShotClassifier(nn.Module):
    """The image tower of a CLIP, and a last linear layer whose rows are the text features of the classes.

    Methods for a CLIP recognise this class by `tower`, `head`, `scale` and `prompts`.

    Args:
        tower: Maps normalised images (B, 3, H, W) to features (B, D).
        text_features: One row of length 1 for each class, (K, D).
        scale: Factor on the cosine of image and text features.
        prompts: Maps a context to text features, such as `Prompts`; None: prompts cannot be tuned.
    """

    def __init__(
        self, tower: nn.Module, text_features: torch.Tensor, *, scale: float, prompts: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.tower = tower
        self.scale = scale
        # No submodule: the text tower stays on the host, and its parameters do not adapt.
        self._shared = _SharedPrompts(prompts)
        num_classes, width = text_features.shape
        self.head = nn.Linear(width, num_classes, bias=False)
        self.head.weight = nn.Parameter(scale * text_features)

    @property
    def prompts(self) -> nn.Module | None:
        """Module that maps a context to text features, on the host and shared by all copies; copy before a change."""
        return self._shared.prompts

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for normalised *images*."""
        logits: torch.Tensor = self.head(normalize(self.tower(images), dim=-1))
        return logits


def load_clip_model(
    name: str,
    spec: OpenClipModel,
    *,
    classes: tuple[str, ...],
    image_size: int | None = None,
    kept_features: Path | None = None,
) -> LoadedModel:
    """Return the zero-shot classifier of *classes* that *spec* describes.

    The folder *kept_features*, if given, caches text features.

    Raises:
        EvaluationError: open_clip is not installed; the weights are missing, changed, or of another architecture; a
            class has no name in words; or the image tower does not take images of *image_size*.
    """
    open_clip = _import_open_clip()
    class_names, templates = _class_names(spec, classes, open_clip), _templates(spec, open_clip)
    clip = _create_clip(open_clip, spec)
    weights_sha256 = spec.sha256 or state_sha256(clip.state_dict())
    settings = open_clip.get_model_preprocess_cfg(clip)
    tokenizer = _load_tokenizer(open_clip, spec)
    texts_sha256 = _texts_sha256(class_names, templates)
    features = load_or_compute(
        kept_features,
        {
            "architecture": spec.architecture, "weights": weights_sha256, "texts": texts_sha256,
            "open_clip": version("open_clip_torch"), "torch": torch.__version__,
        },
        lambda: _compute_text_features(open_clip, clip, tokenizer, class_names, templates),
    )  # fmt: skip
    tower, clip.visual = clip.visual, None
    network = ZeroShotClassifier(
        tower,
        features,
        scale=clip.logit_scale.detach().exp().item(),
        prompts=_make_prompts(open_clip, clip, tokenizer, class_names),
    ).eval()
    if image_size is not None:
        called = f"model {name}, open_clip's {spec.architecture},"
        require_outputs(network, num_classes=len(classes), image_size=image_size, called=called)
    return LoadedModel(
        name=name,
        make_network=lambda: deepcopy(network),
        num_classes=len(classes),
        weights=spec.weights.name if spec.weights else f"open_clip {spec.architecture} {spec.pretrained}",
        weights_sha256=weights_sha256,
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        architecture=f"open_clip {spec.architecture}",
        # The texts and not their features, whose last bits differ between machines.
        code={"texts_sha256": texts_sha256},
    )


def _import_open_clip() -> Any:
    return import_library("open_clip", extra="clip")


def _class_names(spec: OpenClipModel, classes: tuple[str, ...], open_clip: Any) -> tuple[str, ...]:
    """Return the names of *classes* in texts."""
    if spec.class_names is not None:
        given = spec.class_names
        names = read_classes(given.expanduser()) if isinstance(given, Path) else given
        if len(names) != len(classes):
            raise EvaluationError(
                f"class_names has {len(names)} names; expected one for each of the class map's {len(classes)} classes, "
                "in its order"
            )
        return names
    imagenet = shipped_classes("imagenet")
    if set(classes) <= set(imagenet):
        return tuple(open_clip.IMAGENET_CLASSNAMES[imagenet.index(wnid)] for wnid in classes)
    if wordless := [name for name in classes if _NO_WORD.fullmatch(name)]:
        raise EvaluationError(
            f"class {wordless[0]!r} of the class map is not a word that a text tower knows; expected `class_names` "
            "with a name for each class"
        )
    return tuple(name.replace("_", " ") for name in classes)


def _templates(spec: OpenClipModel, open_clip: Any) -> tuple[Callable[[str], str], ...]:
    if spec.templates == "imagenet":
        return tuple(open_clip.OPENAI_IMAGENET_TEMPLATES)
    return tuple(text.replace("{}", "{0}").format for text in spec.templates or (_USUAL_TEMPLATE,))


def _texts_sha256(class_names: Sequence[str], templates: Sequence[Callable[[str], str]]) -> str:
    texts = [[template(name) for template in templates] for name in class_names]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _compute_text_features(
    open_clip: Any, clip: nn.Module, tokenizer: Any, names: Sequence[str], templates: Sequence[Callable[[str], str]]
) -> torch.Tensor:
    """Return the mean text features of each class, (K, D); the features of each text and the means have length 1."""
    features: torch.Tensor = open_clip.build_zero_shot_classifier(clip, tokenizer, names, templates)
    return features.T.contiguous()


def _load_tokenizer(open_clip: Any, spec: OpenClipModel) -> Any:
    try:
        return open_clip.get_tokenizer(spec.architecture)
    except Exception as error:  # some are fetched from the hub, whose client raises errors of any kind
        raise EvaluationError(
            f"open_clip has no tokenizer for {spec.architecture} ({first_line(error)}); expected a connection or its "
            "files in the cache of huggingface_hub"
        ) from error


def _make_prompts(open_clip: Any, clip: Any, tokenizer: Any, class_names: Sequence[str]) -> Prompts | None:
    """Return the prompts of *clip*, or None if it does not use open_clip's own tokenizer and text tower."""
    if not (isinstance(clip, open_clip.CLIP) and isinstance(tokenizer, open_clip.SimpleTokenizer)):
        return None
    num_words = len(tokenizer.encode(_CONTEXT))
    return Prompts(clip, tokenizer([f"{_CONTEXT} {name}." for name in class_names]), num_words=num_words)


def _create_clip(open_clip: Any, spec: OpenClipModel) -> Any:
    """Return the whole CLIP with its weights.

    Raises:
        EvaluationError: architecture or weights do not exist, or the weights were changed or do not fit.
    """
    if spec.architecture not in open_clip.list_models():
        known = name_choices(spec.architecture, open_clip.list_models(), listed_in="open_clip.list_models()")
        raise EvaluationError(f"open_clip has no architecture {spec.architecture!r}; expected one of {known}")
    if spec.weights is not None and spec.sha256 is not None:
        path = spec.weights.expanduser()
        require_file(path, spec.sha256)
        try:
            return open_clip.create_model(spec.architecture, pretrained=str(path)).eval()
        except Exception as error:  # of any kind: the file may hold anything
            _raise_misfit(open_clip, spec.architecture, path, spec.sha256)
            raise EvaluationError(
                f"open_clip cannot load {path} ({first_line(error)}); expected weights of {spec.architecture}"
            ) from error
    try:
        return open_clip.create_model(spec.architecture, pretrained=spec.pretrained).eval()
    except Exception as error:  # its hub client raises errors of any kind
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(spec.architecture)) or "none"
        raise EvaluationError(
            f"open_clip cannot load {spec.architecture} {spec.pretrained} ({first_line(error)}); expected one of its "
            f"tags ({tags}), and a connection or its file in the cache of huggingface_hub"
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
