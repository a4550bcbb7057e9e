"""A network that is computed elsewhere: by another runtime, or on a server. Its layers cannot be reached or changed."""

from collections.abc import Iterator, Mapping

from torch import nn

from tta_pipeline.methods.entry import Gives


class ClosedNetwork(nn.Module):
    """A network of images, (B, 3, H, W), that gives logits, and features if its last linear layer is in `head`.

    `methods.build` refuses methods that need more. A method finds `head` as it finds the classifier of any network.
    """

    called: str
    """Its kind in a sentence, such as `an ONNX program`."""

    def __init__(self, head: nn.Linear | None) -> None:
        super().__init__()
        self.head = head

    @property
    def gives(self) -> Gives:
        """What a method can have of it."""
        return "logits" if self.head is None else "features"

    def counters(self) -> Mapping[str, int]:
        """Return what it has counted since it was made, by the name of its column in a record."""
        return {}


def closed_networks(model: nn.Module) -> Iterator[ClosedNetwork]:
    """Yield the parts of *model* that are computed elsewhere."""
    return (part for part in model.modules() if isinstance(part, ClosedNetwork))
