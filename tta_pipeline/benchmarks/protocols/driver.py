"""Drivers, which feed batches to a method, by default each batch once; torch is imported with the first batch."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tta_pipeline.methods.optional_scores import HasConfidence, HasSourceLogits

if TYPE_CHECKING:
    import torch

    from tta_pipeline.methods.method import Method
    from tta_pipeline.methods.stateful import StateDict


@contextmanager
def eager_unless(is_whole: bool) -> Iterator[None]:  # noqa: FBT001 - reads as a condition
    """Run the block without compilation or compiled code unless the batch has the compiled size.

    Until torch has imported its compiler, which takes 130 MiB, nothing is compiled.
    """
    if is_whole or "torch._dynamo" not in sys.modules:
        yield
        return
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """The source model, for drivers that measure the method against it."""

    make: "Callable[[], torch.nn.Module]"
    """Makes the network on the device."""
    synchronize: Callable[[], None]
    """Waits until the device is idle."""


class ProtocolDriver:
    """Driver that adapts on every batch, in stream order."""

    gives_whole_batches: ClassVar[bool] = True
    """Whether the method gets every batch of the stream unchanged, however long it takes."""
    keeps_probabilities: bool = False
    """Whether the probabilities of all classes are kept for each sample."""

    def __init__(self, method: "Method") -> None:
        self.method = method
        self.num_unadapted = 0
        """Number of samples predicted without adaptation, for lack of time or because of `adapt`."""
        self.class_logits: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits
        """Returns the logits (B, K) of the classes that are scored, for logits (B, O) of the model's outputs."""

    def predict(self, images: "torch.Tensor") -> "torch.Tensor":
        """Return logits (B, K) for *images*, float (B, 3, H, W) in [0, 1]."""
        return self.method.predict(images)

    def confidence(self, logits: "torch.Tensor") -> "torch.Tensor | None":
        """Return the method's score, (B,), that images with *logits* (B, K) are known; None: the maximum softmax."""
        return self.method.confidence(logits) if isinstance(self.method, HasConfidence) else None

    def source_logits(self) -> "torch.Tensor | None":
        """Return the source model's logits (B, K) for the images of the last prediction, if the method has them."""
        method = self.method
        return method.source_logits() if self.gives_whole_batches and isinstance(method, HasSourceLogits) else None

    def view_logits(self) -> "torch.Tensor | None":
        """Return the logits (B, O) of second views of the last images; None: none were requested."""
        return None

    def state_dict(self) -> "StateDict":
        """Return a copy of the state that determines the next predictions."""
        return {"method": self.method.state_dict()}

    def load_state_dict(self, state: "StateDict") -> None:
        """Restore *state* from `state_dict`."""
        self.method.load_state_dict(state["method"])


class SettingDriver(ProtocolDriver):
    """Driver that a setting of `Protocol` selects instead of the protocol's usual driver.

    Args:
        usual: The protocol's own driver.
        value: Value of the setting.
        source: The source model, for drivers that need it.
    """

    lets_others_drive: ClassVar[bool] = False
    """Whether a protocol that drives the method itself can have the setting: its driver still gets each batch."""

    def __init__(self, usual: ProtocolDriver, value: Any, source: SourceModel) -> None:  # noqa: ARG002 - for subclasses
        super().__init__(usual.method)
        self._usual = usual
