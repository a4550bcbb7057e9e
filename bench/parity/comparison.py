"""Compares a method with its authors' code on the same stream, with the same network, hyperparameters and draws."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tta_pipeline.methods import METHODS, build
from tta_pipeline.methods.entry import Hyperparameters
from tta_pipeline.methods.method import Method

SEED = 0
FIRST_BATCHES = 3
MOST_RELATIVE_DIFFERENCE = 2e-4
"""Bound on differences of logits in the first batches, relative to the largest logit: over a thousand times the
rounding of float32."""
MOST_DIFFERING_SHARE = 0.002
"""Share of the predictions that may differ because of rounding."""

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images, float (B, 3, H, W) in [0, 1], and labels, int64 (B,)."""
Predict = Callable[[torch.Tensor], torch.Tensor]
"""Function from images to logits (B, K)."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Network and data for both sides."""

    network: nn.Module
    """Takes images in [0, 1]; its last linear layer has K outputs. It is copied for each side."""
    num_classes: int
    stream: Sequence[Batch]
    source_data: Sequence[Batch]

    def with_outputs(self, num_outputs: int) -> "Scene":
        """Return the scene with more outputs, which are never predicted, for code with a fixed number of classes."""
        network = deepcopy(self.network)
        name, layer = [each for each in network.named_modules() if isinstance(each[1], nn.Linear)][-1]
        wider = nn.Linear(layer.in_features, num_outputs)
        with torch.no_grad():
            wider.weight.zero_()
            wider.bias.fill_(-20)
            wider.weight[: self.num_classes] = layer.weight
            wider.bias[: self.num_classes] = layer.bias
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, wider)
        return Scene(network=network, num_classes=num_outputs, stream=self.stream, source_data=self.source_data)

    def with_images(self, num_images: int) -> "Scene":
        """Return the scene with only *num_images* images, taken evenly from the whole stream."""
        images, labels = (torch.cat(parts) for parts in zip(*self.stream, strict=True))
        chosen = torch.arange(num_images) * len(images) // num_images
        return Scene(
            network=self.network, num_classes=self.num_classes, source_data=self.source_data,
            stream=list(zip(*(torch.split(each[chosen], num_images // 4) for each in (images, labels)), strict=True)),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Input of an adapter that makes the authors' object."""

    clone: Path
    """Folder of the authors' repository."""
    network: nn.Module
    num_classes: int
    settings: Hyperparameters
    """Hyperparameters of our method, from which theirs are derived."""
    batch_size: int
    source_data: Sequence[Batch]
    ours: Method
    """Our method, from which an adapter may copy randomly initialised state."""
    scratch: Path
    """Empty folder that their code may write to."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A method, its authors' code, and the known differences between them."""

    title: str
    method: str
    """Name in the catalogue."""
    repository: str
    """`<owner>/<name>` on GitHub; the clone is called `<name>`."""
    theirs: Callable[[Setting], Predict]
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters that differ from the preset `cifar`."""
    reason: str = ""
    """Reason why predictions differ; empty if they must agree."""
    shown_by: str = ""
    """Title of the comparison without the reason, which must be equal."""
    as_theirs: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits
    """Function that converts our logits into the form that their code returns."""
    network: Callable[[nn.Module], nn.Module] = lambda network: network
    """Function that makes the network from the scene's, for a method that cannot adapt the scene's network itself."""
    order: Callable[[Sequence[Batch]], Sequence[Batch]] = lambda stream: stream
    """Function that orders the batches, for a method that remembers earlier shifts."""
    num_outputs: int | None = None
    """Number of outputs that their code expects; None: the number of classes."""
    num_images: int | None = None
    """Number of images to compare, for a slow method; None: the whole stream."""
    draws_differ: bool = False
    """Whether each image of a view has its own draws in our method, so that only errors over seeds are comparable."""
    within: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context in which our side predicts, to show that a reason explains the whole difference."""

    @property
    def clone(self) -> str:
        """Name of the folder of the clone."""
        return self.repository.partition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Result of a comparison."""

    num_images: int
    num_differing: int
    """Number of predictions that differ."""
    first_logit_difference: float
    """Largest difference between two logits in the first batches."""
    logit_difference: float
    """Largest difference between two logits in all batches."""
    first_largest_logit: float
    """Largest absolute logit of the authors' code in the first batches."""
    our_error: float
    their_error: float
    num_resets: int
    """Resets of our method by itself."""

    @property
    def is_equal(self) -> bool:
        """Whether rounding alone explains the differences."""
        return (
            self.first_logit_difference <= MOST_RELATIVE_DIFFERENCE * self.first_largest_logit
            and self.num_differing <= MOST_DIFFERING_SHARE * self.num_images
        )


def compare(comparison: Comparison, scene: Scene, clone: Path, *, seed: int = SEED) -> Agreement:
    """Run both sides over the stream of *scene*, and compare what they predict.

    Both start from *seed*: our method draws from its own generator, the authors' code from the global one. Output
    and logs of the authors' code are dropped.
    """
    scene = replace(scene, network=comparison.network(scene.network), stream=comparison.order(scene.stream))
    if comparison.num_outputs is not None:
        scene = scene.with_outputs(comparison.num_outputs)
    if comparison.num_images is not None:
        scene = scene.with_images(comparison.num_images)
    entry = METHODS[comparison.method]
    ours = build(
        comparison.method,
        deepcopy(scene.network),
        num_classes=scene.num_classes,
        preset="cifar",
        source_data=None if entry.source_data == "unused" else scene.source_data,
        seed=seed,
        **comparison.changes,
    )
    with TemporaryDirectory() as scratch, _without_cuda(), _silent():
        torch.manual_seed(seed)
        theirs = comparison.theirs(
            Setting(
                clone=clone,
                network=deepcopy(scene.network),
                num_classes=scene.num_classes,
                settings=ours.hyperparameters,
                batch_size=len(scene.stream[0][0]),
                source_data=scene.source_data,
                ours=ours,
                scratch=Path(scratch),
            )
        )
        torch.manual_seed(seed)
        their_logits = [theirs(images).detach() for images, _ in scene.stream]
    with comparison.within():
        our_logits = [comparison.as_theirs(ours.predict(images)) for images, _ in scene.stream]
    return _agreement(our_logits, their_logits, [labels for _, labels in scene.stream], ours)


def _agreement(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], labels: Sequence[torch.Tensor], method: Method
) -> Agreement:
    differences = [float((mine - other).abs().max()) for mine, other in zip(ours, theirs, strict=True)]
    our_labels, their_labels, expected = (
        torch.cat(list(ours)).argmax(1),
        torch.cat(list(theirs)).argmax(1),
        torch.cat(list(labels)),
    )
    return Agreement(
        num_images=len(expected),
        num_differing=int((our_labels != their_labels).sum()),
        first_logit_difference=max(differences[:FIRST_BATCHES]),
        logit_difference=max(differences),
        first_largest_logit=max(float(logits.abs().max()) for logits in theirs[:FIRST_BATCHES]),
        our_error=float((our_labels != expected).float().mean()),
        their_error=float((their_labels != expected).float().mean()),
        num_resets=method.num_resets,
    )


@contextmanager
def _without_cuda() -> Iterator[None]:
    """Run code that calls `Tensor.cuda` on the CPU."""
    with patch.object(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor):
        yield


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what is printed, logged or warned about; an error is raised as always."""
    before = logging.root.manager.disable
    with ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w"))  # noqa: PTH123 - a device, not a path
        stack.enter_context(redirect_stdout(nowhere))
        stack.enter_context(redirect_stderr(nowhere))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def unexplained_titles(found: Mapping[str, Agreement], comparisons: Sequence[Comparison]) -> list[str]:
    """Return the titles of comparisons that differ without a reason, or by more than their reason explains."""
    return [
        each.title
        for each in comparisons
        if each.title in found and not (found[each.title].is_equal if not each.reason else _is_explained(each, found))
    ]


def _is_explained(comparison: Comparison, found: Mapping[str, Agreement]) -> bool:
    without = found.get(comparison.shown_by)
    return without is not None and without.is_equal
