"""Zero-shot classifiers of transformers: SigLIP, SigLIP 2 with images of one size, and CLIP."""

import hashlib
from copy import deepcopy
from importlib.metadata import version
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from tta_pipeline.benchmarks.model_specs import TransformersModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.class_texts import ClassTexts, ZeroShotKind, make_class_texts
from tta_pipeline.models.libraries import cached_json, import_library, read_json
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import ModelContext, OwnTransform
from tta_pipeline.models.text_features import load_or_compute
from tta_pipeline.models.try_network import require_outputs
from tta_pipeline.models.weights import first_line, require_file, state_sha256
from tta_pipeline.models.zero_shot_classifier import ZeroShotClassifier

_KNOWN = ("CLIPModel", "SiglipModel")
_WEIGHTS = "model.safetensors"
_CONFIG = "config.json"
_TEXTS_AT_ONCE = 256
_PILLOW_FILTERS = {2: "bilinear", 3: "bicubic"}


class _ImageTower(nn.Module):
    """The image tower of *model*, with the projection to the space of both towers if it has one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision_model = model.vision_model
        self.projection = getattr(model, "visual_projection", nn.Identity())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return features (B, D) of normalised *images* (B, 3, H, W)."""
        features: torch.Tensor = self.projection(self.vision_model(pixel_values=images).pooler_output)
        return features


class Transformers(ZeroShotKind[TransformersModel]):
    """A zero-shot classifier of transformers."""

    def load_for_classes(self, context: ModelContext) -> LoadedModel:
        """Return the zero-shot classifier of the classes.

        Raises:
            EvaluationError: transformers is not installed; the model is missing, changed or of another kind; a class
                has no name in words; or the image tower does not take images of this size.
        """
        spec = self.section
        texts = make_class_texts(spec, context.classes)
        model, tokenizer, processor = _load(spec)
        weights_sha256 = spec.sha256 or state_sha256(model.state_dict())
        code = {"texts_sha256": texts.sha256, **_origin(spec)}
        features = load_or_compute(
            context.text_features,
            {**code, "weights": weights_sha256, "transformers": version("transformers"), "torch": torch.__version__},
            lambda: _compute_text_features(model, tokenizer, texts),
        )
        bias = getattr(model, "logit_bias", None)
        network = ZeroShotClassifier(
            _ImageTower(model),
            features,
            scale=model.logit_scale.detach().exp().item(),
            bias=None if bias is None else bias.item(),
        ).eval()
        kind = model.config.model_type
        if context.image_size is not None:
            size = model.config.vision_config.image_size
            called = f"model {context.name}, transformers' {kind}, which is for images of {size}x{size},"
            require_outputs(network, num_classes=len(texts.names), image_size=context.image_size, called=called)
        return LoadedModel(
            name=context.name,
            make_network=lambda: deepcopy(network),
            num_classes=len(texts.names),
            weights=f"{spec.hf}@{spec.revision}" if spec.hf else _WEIGHTS,
            weights_sha256=weights_sha256,
            mean=tuple(processor.image_mean),
            std=tuple(processor.image_std),
            architecture=f"transformers {kind}",
            code=code,
        )

    def own_transforms(self) -> tuple[OwnTransform, ...]:
        """Return the transform in the configuration of the preprocessing, if this machine has it."""
        name = "preprocessor_config.json"
        spec = self.section
        if spec.folder is None:
            found = cached_json("transformers", str(spec.hf), str(spec.revision), name)
        else:
            found = read_json(spec.folder.expanduser() / name)
        size, crop = found.get("size") or {}, found.get("crop_size") if found.get("do_center_crop") else None
        if isinstance(size, int):  # as OpenAI's older configurations have it
            size = {"shortest_edge": size}
        resize = size.get("shortest_edge") or size.get("height")
        if not resize:
            return ()
        crop = crop.get("height") if isinstance(crop, dict) else crop
        filter_ = _PILLOW_FILTERS.get(found.get("resample", 3), "another filter")
        keeps_ratio = "shortest_edge" in size
        return (OwnTransform(size=crop or resize, resize=resize, interpolation=filter_, keeps_ratio=keeps_ratio),)


def _load(spec: TransformersModel) -> tuple[Any, Any, Any]:
    """Return model, tokenizer and image processor.

    Raises:
        EvaluationError: see `Transformers.load_for_classes`.
    """
    transformers = import_library("transformers", extra="transformers")
    folder = spec.folder.expanduser() if spec.folder else None
    if folder is not None and spec.sha256 is not None:
        require_file(folder / _WEIGHTS, spec.sha256)
    address, settings = str(folder or spec.hf), {"revision": spec.revision} if spec.hf else {"local_files_only": True}
    try:
        model = transformers.AutoModel.from_pretrained(address, use_safetensors=True, **settings).float().eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(address, **settings)
        processor = transformers.AutoImageProcessor.from_pretrained(address, **settings)
    except Exception as error:  # its hub client raises errors of any kind, and the files may hold anything
        raise EvaluationError(
            f"transformers cannot load {address} ({first_line(error)}); expected config, tokenizer, preprocessing and "
            f"{_WEIGHTS}, and a connection or the files in the cache of huggingface_hub: download them"
        ) from error
    if (found := type(model).__name__) not in _KNOWN:
        raise EvaluationError(
            f"{address} is a {found}; expected one of {', '.join(_KNOWN)}: use, for example, a SigLIP 2 model for one "
            "image size such as google/siglip2-base-patch16-224"
        )
    return model, tokenizer, processor


def _origin(spec: TransformersModel) -> dict[str, str]:
    """Return what decides the network besides its weights: the commit, or the hash of its configuration."""
    if spec.folder is None:
        return {"hf": f"{spec.hf}@{spec.revision}"}
    config = (spec.folder.expanduser() / _CONFIG).read_bytes()
    return {"config_sha256": hashlib.sha256(config).hexdigest()}


@torch.no_grad()
def _compute_text_features(model: Any, tokenizer: Any, texts: ClassTexts) -> torch.Tensor:
    """Return the mean text features of each class, (K, D); the features of each text and the means have length 1.

    Texts are in lower case and padded to the longest length, without a mask: SigLIP was trained so, and CLIP ignores
    everything after the end of a text.
    """
    longest = model.config.text_config.max_position_embeddings
    every = [text.lower() for of_class in texts.by_class for text in of_class]
    features = []
    for start in range(0, len(every), _TEXTS_AT_ONCE):
        tokens = tokenizer(
            every[start : start + _TEXTS_AT_ONCE],
            padding="max_length",
            truncation=True,
            max_length=longest,
            return_tensors="pt",
        )
        found = model.get_text_features(input_ids=tokens["input_ids"])
        # A tensor before transformers 5.
        features.append(normalize(found if isinstance(found, torch.Tensor) else found.pooler_output, dim=-1))
    of_texts = torch.cat(features).view(len(texts.names), len(texts.templates), -1)
    return normalize(of_texts.mean(1), dim=-1)
