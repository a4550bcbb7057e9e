"""Cache of the features of a frozen model, so that several methods share one forward pass.

`source`, `lame`, `t3a` and `neo` change no layer before the classifier, nor do `zero_shot` and the CLIP
methods that do not change the image tower. The first of them that sees a cell computes its features, the input of the
classifier. The others read the features instead of pixels, and run only the classifier. Methods that read crops of an
image share the features of the same crops.

The features are stored next to decoded cells, in a file `<64 hex digits>-<manifest's sha256>.features`. Its name
depends on everything that determines them, including batches and machine, so predictions are the same bit for bit. The
file contains sealed safetensors: `features`, (N, D), or (N V, D) for V views of each image, in stream order.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import nn

from tta_pipeline.errors import AdaptationError
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.loading.joined_sets import JoinedSets
from tta_pipeline.loading.reader import Batch
from tta_pipeline.loading.stream_order import StreamOrder
from tta_pipeline.methods.features import find_classifier
from tta_pipeline.methods.method import Method
from tta_pipeline.util.files import seal
from tta_pipeline.util.software_versions import software_versions

_FORMAT = 1


@dataclass(frozen=True)
class FeatureCacheEntry:
    """Cache entry for the features of one model on one stream; its file may not exist yet."""

    cells: DecodedCache
    """Folder and size limit of the cache."""
    _: KW_ONLY
    fingerprint: Fingerprint
    """Everything that determines the features, except software versions, which `path` adds."""
    manifest_sha256: str
    num_samples: int
    num_views: int | None = None
    """Number V of views of each sample; None: features of the samples themselves."""

    @property
    def path(self) -> Path:
        """File of the features."""
        return self.cells.own_folder / self._name

    @property
    def _name(self) -> str:
        decisive = [_FORMAT, self.fingerprint.sha256, software_versions()]
        identity = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        return f"{identity}-{self.manifest_sha256}.features"

    def read(self) -> torch.Tensor | None:
        """Return the features, (N, D) or (N, V, D), or None if the file is missing or damaged."""
        data = self.cells.files.read_sealed(self._name)
        features = None if data is None else load(data)["features"]
        if features is None or len(features) != self.num_samples * (self.num_views or 1):
            return None
        return features if self.num_views is None else features.view(self.num_samples, self.num_views, -1)

    def write(self, features: torch.Tensor) -> None:
        """Write *features*, (N, D) or (N V, D), if they fit; failures are ignored, since the cache is optional."""
        name = self._name
        with suppress(OSError):
            self.cells.files.write(name, seal(save({"features": features.contiguous()}), name))


@dataclass(frozen=True, kw_only=True)
class FeatureLoader:
    """Batches of features instead of images, in stream order."""

    shard_set: JoinedSets
    order: StreamOrder
    batch_size: int
    features: torch.Tensor = field(repr=False)
    """Features of the samples, (N, D) or (N, V, D), in stream order."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch, with features (B, D) or (B, V, D)."""
        for start in range(0, len(self.order), self.batch_size):
            part = slice(start, start + self.batch_size)
            indices = self.order.indices[part]
            yield Batch(self.features[part], torch.from_numpy(self.shard_set.index.labels[indices]), indices)


def find_head(method: Method) -> nn.Linear | None:
    """Return the classifier of the model of *method*; None if it has none, or the method reads more than features."""
    if not method.reads_only_features:
        return None
    try:
        return find_classifier(method.model, num_classes=method.num_classes, method=method.name)
    except AdaptationError:
        return None


@contextmanager
def reading_features(method: Method, head: nn.Linear) -> Iterator[None]:
    """Let *method* predict from features, (B, D) or (B, V, D), not images; its model is the classifier *head*."""
    model = method.model
    method.model = head
    try:
        yield
    finally:
        method.model = model


@dataclass(kw_only=True)
class FeatureCapture:
    """Inputs of a model's classifier, captured batch by batch in host memory."""

    limit_bytes: int
    """Size above which features are dropped, so that they take no memory."""
    batches: list[torch.Tensor] = field(default_factory=list)
    _num_bytes: int = 0
    is_whole: bool = True
    """Whether each prediction so far was the classifier's output for one feature vector of each sample."""
    _output: torch.Tensor | None = None
    _logits: torch.Tensor | None = None
    """Copy of the classifier's output, which the model cannot change."""
    _num_other_logits: torch.Tensor | int = 0

    def take(self, _: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        """Store the classifier's input.

        A slice of a larger tensor, such as the class token of a vision transformer, is not stored: on a contiguous
        copy of it, some kernels return different bits.
        """
        features = inputs[0].detach()
        self._num_bytes += features.nbytes  # summed, since a batch may be the views of one image
        fits = self._num_bytes <= self.limit_bytes
        self.is_whole &= self._output is None and features.ndim == 2 and features.is_contiguous() and fits
        if self.is_whole:
            self.batches.append(_copy_to_host(features))
            self._output, self._logits = output, output.clone()
        else:
            self.batches.clear()

    def compare(self, _: nn.Module, __: Any, output: torch.Tensor) -> None:
        """Compare the model's output with its classifier's; the host does not wait for the result."""
        self.is_whole &= output is self._output
        if self.is_whole and self._logits is not None:
            self._num_other_logits = self._num_other_logits + output.ne(self._logits).sum()
        self._output = self._logits = None

    def features(self) -> torch.Tensor | None:
        """Return the features of all samples, (N, D) or (N V, D); None if the model does not end in its classifier.

        The device must have finished.
        """
        return torch.cat(self.batches) if self.is_whole and self.batches and not self._num_other_logits else None


def _copy_to_host(features: torch.Tensor) -> torch.Tensor:
    """Return a copy of *features* in host memory, which is complete when the device has finished."""
    copied = torch.empty(features.shape, dtype=features.dtype, pin_memory=pins_memory(features.device))
    return copied.copy_(features, non_blocking=True)


@contextmanager
def capturing(method: Method, head: nn.Linear, *, limit_bytes: int) -> Iterator[FeatureCapture]:
    """Capture the features that *method* computes, if they take at most *limit_bytes*."""
    capture = FeatureCapture(limit_bytes=limit_bytes)
    with ExitStack() as stack:
        for handle in (head.register_forward_hook(capture.take), method.model.register_forward_hook(capture.compare)):
            stack.callback(handle.remove)
        yield capture
