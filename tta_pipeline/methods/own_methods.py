"""Errors of a user's own method, in one line: what it raises, and what it returns instead of logits."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tta_pipeline.errors import EvaluationError, PipelineError
from tta_pipeline.methods.method import Method
from tta_pipeline.util.own_code import arose_in_own_code, describe_raised, is_own, place_of


@contextmanager
def naming_own_code(name: str, kind: type, function: str, *, expected: str) -> Iterator[None]:
    """Add the place in the user's code to an error that the class *kind* of the method *name* raises in *function*.

    Args:
        name: Name of the method.
        kind: Its class.
        function: Name of the function of *kind* that runs in the block.
        expected: What it should do, for the message.
    """
    try:
        yield
    except (PipelineError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a user's method raises
        if not is_own(kind) and not arose_in_own_code(error):
            raise
        said = describe_raised(error)
        where = place_of(getattr(kind, function, None), kind) if said == repr(error) else ""
        raise EvaluationError(f"{name}{where} raised {said}; expected {expected}") from error


def require_logits(logits: object, method: Method, *, num_images: int) -> None:
    """Raise an error unless *method* returned logits (B, K) for *num_images* images."""
    shape = (num_images, method.num_classes)
    if isinstance(logits, torch.Tensor) and logits.shape == shape and logits.is_floating_point():
        if not logits.requires_grad:
            return
        found, advice = "logits with gradients", "return logits.detach()"
    else:
        found = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
        advice = "correct _predict"
    raise EvaluationError(
        f"{method.name}{_place(method)} returned {found} for {num_images} images; expected float logits {shape} "
        f"without gradients: {advice}"
    )


def say_origin(method: Method) -> str:
    """Return where NaN or infinite logits arise, to be said after them: with the place in the user's code, or no text.

    It is the method if it has taken steps, since these change the network.
    """
    if method.num_updates:
        return f" after updates by {method.name}{_place(method)}"
    return _place(method) or place_of(*(type(module).forward for module in method.model.modules()))


def _place(method: Method) -> str:
    return place_of(type(method)._predict, type(method))  # noqa: SLF001 - to say its line
