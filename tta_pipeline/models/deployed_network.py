"""A network that is computed outside of PyTorch's layers, as a network: its answers are checked, and become logits.

Probabilities become logits by their logarithm. Softmax gives them back, so predictions, confidences, entropies,
likelihoods, calibration and scaling by a temperature are the same as with the network's own logits, from which the
logarithm differs by one number for each image. What depends on this number, such as the energy, is lost: it is 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import pad

from tta_pipeline.benchmarks.deployed_specs import DeployedModel
from tta_pipeline.errors import EvaluationError, PipelineError
from tta_pipeline.methods.closed_network import ClosedNetwork
from tta_pipeline.models.weights import read_state

_SUM_TOLERANCE = 1e-3
"""Largest distance from 1 of a sum of probabilities: more than float16 loses, and less than a missing class."""
_SMALLEST = torch.finfo(torch.float32).tiny
"""Number in place of a probability of 0, whose logarithm is not finite."""
_HEAD_TOLERANCE = 1e-2


class Answer(NamedTuple):
    """What a program or a server returns for B images."""

    scores: torch.Tensor
    """Logits or probabilities, (B, K)."""
    features: torch.Tensor | None
    """Features, (B, D), if it returns some."""


class DeployedNetwork(ClosedNetwork):
    """A network of normalised images that *compute* computes."""

    def __init__(
        self,
        compute: Callable[[torch.Tensor], Answer],
        *,
        spec: DeployedModel,
        named: str,
        sha256: str,
        num_classes: int,
        are_probabilities: bool,
        fixed_batch: int | None = None,
    ) -> None:
        """Make the network.

        Args:
            compute: Computes float32 images (B, 3, H, W), on their device.
            spec: The model's section in the benchmark file.
            named: Name of the model in errors.
            sha256: Hash of what decides the outputs; it is in the state dict, as weights are.
            num_classes: Number K of outputs.
            are_probabilities: Whether the scores are probabilities.
            fixed_batch: Number of images that *compute* takes at a time; None: any.

        Raises:
            EvaluationError: the head cannot be read, or has another number of classes.
        """
        super().__init__(read_head(spec, num_classes=num_classes))
        self.called = spec.called
        self._compute, self._named, self._num_classes = compute, named, num_classes
        self._are_probabilities, self._fixed_batch = are_probabilities, fixed_batch
        # A method looks for the device of the first parameter.
        self.sha256 = nn.Parameter(torch.tensor(list(bytes.fromhex(sha256)), dtype=torch.uint8), requires_grad=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) of *images*, float32 (B, 3, H, W).

        Raises:
            EvaluationError: the answer has another shape, is not finite, or has no probabilities.
        """
        scores, features = self._compute_parts(images)
        self._require_shape("scores", scores, (len(images), self._num_classes))
        if self._are_probabilities:
            scores = self._log_probabilities(scores)
        if self.head is None:
            return scores.to(images.device)
        if features is None:
            raise EvaluationError(f"{self._named} returned no features; expected a second output, since it has a head")
        self._require_shape("features", features, (len(images), self.head.in_features))
        logits: torch.Tensor = self.head(features.to(images.device))
        return logits

    @torch.no_grad()
    def probe(self, image_size: int) -> torch.Tensor:
        """Return probabilities, float32 (8, K), of `probe_images`; check that the network can be used.

        Raises:
            EvaluationError: it raises, returns something else, or its head makes other probabilities.
        """
        images = probe_images(image_size)
        try:
            probabilities: torch.Tensor = self(images).softmax(1)
            if self.head is not None:
                self._require_head_fits(images, probabilities)
        except PipelineError:
            raise
        except Exception as error:  # whatever another runtime raises
            raise EvaluationError(
                f"{self._named} raised {error!r} for images of {image_size}x{image_size}; expected {self._num_classes} "
                "scores for each image: correct `image_size`, or the model"
            ) from error
        return probabilities

    def _require_head_fits(self, images: torch.Tensor, probabilities: torch.Tensor) -> None:
        scores = self._compute_parts(images).scores
        own = scores if self._are_probabilities else scores.softmax(1)
        difference = (probabilities - own).abs().max().item()
        if not difference <= _HEAD_TOLERANCE:
            raise EvaluationError(
                f"{self._named} returns other probabilities than its head makes of the features, by up to "
                f"{difference:.2g}; expected the same: `head` must be its last linear layer, and the second output the "
                "input of this layer"
            )

    def _compute_parts(self, images: torch.Tensor) -> Answer:
        """Compute *images* in parts of the size that the program takes; the last part is filled up with zeros."""
        size = self._fixed_batch
        if size is None or len(images) == size:
            return self._compute(images)
        parts = [self._compute(_filled(part, size)) for part in torch.split(images, size)]
        scores, features = zip(*parts, strict=True)
        whole = [each for each in features if each is not None]
        return Answer(torch.cat(scores)[: len(images)], torch.cat(whole)[: len(images)] if whole else None)

    def _require_shape(self, what: str, found: torch.Tensor, shape: tuple[int, ...]) -> None:
        if found.shape != shape:
            raise EvaluationError(
                f"{self._named} returned {what} {tuple(found.shape)}; expected {shape}, a row for each image"
            )

    def _log_probabilities(self, scores: torch.Tensor) -> torch.Tensor:
        if problem := _probability_problem(scores):
            raise EvaluationError(
                f"{self._named} returned {problem}; expected probabilities, from 0 to 1, that sum to 1 for each image: "
                "correct the model; no result was recorded"
            )
        return scores.float().clamp(min=_SMALLEST).log()


def _probability_problem(scores: torch.Tensor) -> str:
    """Return why *scores* (B, K) are no probabilities; empty if they are."""
    if not scores.isfinite().all():
        return f"{int((~scores.isfinite()).sum())} numbers that are not finite"
    if scores.numel() and not 0 <= scores.min() <= scores.max() <= 1 + _SUM_TOLERANCE:
        return f"numbers from {scores.min():.4g} to {scores.max():.4g}"
    sums = scores.double().sum(1)
    worst = sums[(sums - 1).abs().argmax()].item() if len(sums) else 1.0
    return f"a row that sums to {worst:.6g}" if abs(worst - 1) > _SUM_TOLERANCE else ""


def read_head(spec: DeployedModel, *, num_classes: int) -> nn.Linear | None:
    """Return the last linear layer in the file that *spec* names; None if it names none.

    Raises:
        EvaluationError: the file is missing, changed, or holds no linear layer of *num_classes* outputs.
    """
    if spec.head is None or spec.head_sha256 is None:
        return None
    path = spec.head.expanduser()
    state = read_state(path, spec.head_sha256)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    weight = shapes.get("weight", ())
    if (
        len(weight) != 2
        or weight[0] != num_classes
        or not shapes.keys() <= {"weight", "bias"}
        or shapes.get("bias", (num_classes,)) != (num_classes,)
    ):
        raise EvaluationError(
            f"{path} holds {shapes}; expected weight ({num_classes}, features) and bias ({num_classes},) of the last "
            "linear layer"
        )
    head = nn.Linear(weight[1], num_classes, bias="bias" in state)
    head.load_state_dict(state)
    return head.requires_grad_(requires_grad=False)


def probe_images(image_size: int) -> torch.Tensor:
    """Return eight images, float32 (8, 3, S, S) in [0, 1], of random squares: the same ones on every machine."""
    generator = torch.Generator().manual_seed(0)
    squares = torch.randint(0, 256, (8, 3, 4, 4), generator=generator)
    place = torch.arange(image_size) * 4 // image_size
    return squares[:, :, place][..., place].float() / 255


def _filled(images: torch.Tensor, size: int) -> torch.Tensor:
    return pad(images, (0, 0, 0, 0, 0, 0, 0, size - len(images)))
