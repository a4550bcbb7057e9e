"""Interface of every method: predictions for a stream of batches, counters, and a reset to the source model.

What all methods share:

- **Building.** `Method.__init__` takes the arguments of `methods.build`. A method that does not fit the model, or
  lacks source data that it needs, raises `AdaptationError` while it is built, before any image is read.
- **Model.** The model is put into evaluation mode (no dropout, no stochastic depth) and stays there. `norm_layers` sets
  the statistics that batch norm uses. The method owns the model: a second model is a `frozen_copy` (`ema`).
- **Source data.** `source_data` yields clean batches `(images, labels)`, float (B, 3, H, W) in [0, 1] and int64 (B,),
  on any device, and can be iterated again, in the same order. `MethodEntry.source_data` in the catalogue shows whether
  a method uses it.
- **Randomness.** Only `self.generator`, which is on the model's device, or on the host for MEMO, TTAug and FOA, and
  starts from the seed; never the global generator.
- **State.** A method that keeps state between batches names the attributes once, in `state_attrs` (`stateful`). From
  them, `state_dict()` and `load_state_dict()` let a killed run continue where it stopped, and `reset()`
  restores model, optimiser, memory and generator to the moment after building. When the method resets itself (episodic,
  RDumb, SAR), it calls `_start_over()`: the reset is counted, but the generator continues, so that no two batches share
  their draws.
- **Elsewhere.** `gradient_method`: gradient steps; `affine_parameters`: parameters to adapt; `losses`: entropies and
  cross entropies; `features`: input of the last linear layer; `ema`: teacher.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

import torch
from torch import nn

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods.entry import Hyperparameters
from tta_pipeline.methods.features import ViewsRead
from tta_pipeline.methods.stateful import StateDict, Stateful

SourceData = Iterable[tuple[torch.Tensor, torch.Tensor]]
"""Clean batches: images, float (B, 3, H, W) in [0, 1], and labels, int64 (B,)."""


class Method(Stateful, ABC):
    """A model that may change while it predicts.

    Counters start with the first prediction and continue over resets. `num_forwards` and `num_backwards` count samples
    in forward and backward passes. `num_adapted_samples` counts the samples that entered a loss, which papers call
    backwards. `num_updates`, `num_resets` and `num_nonfinite_batches` count events.
    """

    reads_only_features: ClassVar[bool] = False
    """Whether nothing before the classifier is changed or read, so that cached features can replace images.

    With `views_read`, features (B, V, D) of each image's views replace them."""

    state_attrs: ClassVar[tuple[str, ...]] = (
        "generator", "num_forwards", "num_backwards", "num_adapted_samples", "num_updates", "num_resets",
        "_num_nonfinite_batches",
    )  # fmt: skip

    name: str
    """Name of the method in the catalogue, for messages."""

    frozen_layers: tuple[str, ...] | None = None
    """Names of the norm layers at the top of the model that do not adapt. None: the method freezes no top layers."""

    def __init__(
        self,
        model: nn.Module,
        hyperparameters: Hyperparameters,
        *,
        num_classes: int,
        source_data: SourceData | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model.eval()
        self.hyperparameters = hyperparameters
        self.num_classes = num_classes
        self.source_data = source_data
        self.device = next(model.parameters()).device
        self.seed = seed
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.num_forwards = 0
        self.num_backwards = 0
        self.num_adapted_samples = 0
        self.num_updates = 0
        self.num_resets = 0
        # Summed on the device: fetching each batch's count would make the device wait for the host.
        self._num_nonfinite_batches = torch.zeros((), dtype=torch.int64, device=self.device)
        self._start: StateDict | None = None

    @property
    def num_nonfinite_batches(self) -> int:
        """Number of batches with a non-finite logit; reading it waits for the device."""
        return int(self._num_nonfinite_batches)

    @property
    def views_read(self) -> ViewsRead | None:
        """What decides the views whose features the method reads from now on; None: it reads the images' features."""
        return None

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) for *images*, float (B, 3, H, W) in [0, 1], and adapt if the method does."""
        self._remember_start()
        return self._count_nonfinite(self._predict(images))

    def predict_unadapted(self, images: torch.Tensor) -> torch.Tensor:
        """Return the current network's logits (B, K) for *images*, without adaptation; counted as in `predict`.

        A method's other state, such as a teacher or a cache, is not used, unless the method overrides this (NEO, T3A).
        """
        self._remember_start()
        with torch.inference_mode():
            return self._count_nonfinite(self._forward(images))

    def reset(self) -> None:
        """Return to the moment after building: parameters, buffers, optimiser, memory and random state."""
        self._start_over()
        self.generator.manual_seed(self.seed)

    def load_state_dict(self, state: StateDict) -> None:
        """Restore *state* from `state_dict`: later logits and counters are the same, bit for bit.

        *state* must come from a method with the same model, source data in the same order, seed and settings. Read it
        from a file by `torch.load(path, map_location="cpu", weights_only=True)`; tensors are moved to the model's
        device.

        Raises:
            AdaptationError: *state* belongs to another method or model.
        """
        if set(state) != set(self.all_state_attrs()):
            raise AdaptationError(
                f"The state has the attributes {sorted(state)}; expected {sorted(self.all_state_attrs())}: it belongs "
                "to another method"
            )
        self._remember_start()
        try:
            super().load_state_dict(state)
        except ValueError as error:
            raise AdaptationError(f"the state does not fit {self.name} on this model: {error}") from error

    def _remember_start(self) -> None:
        """Copy the state that resets restore, after all constructors and before any change."""
        if self._start is None:
            self._start = {name: value for name, value in self.state_dict().items() if name not in Method.state_attrs}

    def _start_over(self) -> None:
        """Return to the state after building, at the method's own request; random draws and counters continue."""
        self.num_resets += 1
        if self._start is not None:  # otherwise nothing was predicted yet
            Stateful.load_state_dict(self, self._start)

    @abstractmethod
    def _predict(self, images: torch.Tensor) -> torch.Tensor: ...

    def _count_nonfinite(self, logits: torch.Tensor) -> torch.Tensor:
        """Return *logits* (B, K) unchanged; if any of them is not finite, count the batch."""
        self._num_nonfinite_batches += ~torch.isfinite(logits).all()
        return logits

    def _forward(self, images: torch.Tensor, model: nn.Module | None = None) -> torch.Tensor:
        """Return the logits of *model*, by default the method's own model, and count the samples."""
        self.num_forwards += len(images)
        logits: torch.Tensor = (model or self.model)(images)
        return logits.clone()  # a CUDA graph overwrites its output when it runs again

    def _forward_some(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of *images* whose number changes from batch to batch, without compiled code.

        Compiled code would be compiled again for each number, and would replace the code for whole batches.
        """
        with torch.compiler.set_stance("force_eager"):
            return self._forward(images)

    def _require_source_data(self, purpose: str) -> SourceData:
        """Return the source data.

        Raises:
            AdaptationError: there is no source data, which the method needs for *purpose*.
        """
        if self.source_data is None:
            raise AdaptationError(
                f"{self.name} was given no source_data; expected clean batches (images, labels) for {purpose}: use a "
                "benchmark with clean images, or another method"
            )
        return self.source_data

    def _first_images(self, source_data: SourceData, num_samples: int) -> Iterator[torch.Tensor]:
        """Yield batches of the first *num_samples* images, or of all if there are fewer, on the model's device.

        Raises:
            AdaptationError: *source_data* yields no image.
        """
        missing = num_samples
        for images, _ in source_data:
            yield images[:missing].to(self.device)
            missing -= len(images)
            if missing <= 0:
                return
        if missing == num_samples:
            raise AdaptationError(
                f"source_data contains no images for {self.name}; expected clean batches: use a benchmark with clean "
                "images"
            )
