"""Precision of float32 arithmetic, and whether it is reproducible."""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Literal

import torch

from tta_pipeline.errors import EvaluationError

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
"""Precision of the forward pass: fp32 is IEEE's, also in convolutions; tf32 rounds the factors of products to 10 bits;
with bf16 and fp16, autocast casts to that type."""

_TF32_KINDS = ("cuda",)

_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def arithmetic(device_kind: str, precision: Precision, *, deterministic: bool = False) -> Iterator[None]:
    """Compute float32 in *precision*, reproducibly if *deterministic*; restore torch's settings at the end.

    On a CPU only determinism is set: float32 follows the user's torch settings there, which the record contains.

    Raises:
        EvaluationError: a device of *device_kind* has no TF32, or autocast does not cast to *precision* there.
    """
    if precision == "tf32" and device_kind not in _TF32_KINDS:
        raise EvaluationError(
            f"precision is tf32, which {device_kind} does not have; expected fp32 or bf16, since only "
            f"{', '.join(_TF32_KINDS)} has TF32: change precision"
        )
    if precision in _AUTOCAST_DTYPES and not _autocast_casts_to(device_kind, _AUTOCAST_DTYPES[precision]):
        raise EvaluationError(
            f"precision is {precision}, for which torch {torch.__version__} has no autocast on {device_kind}; "
            "expected a supported precision: set `precision: fp32`"
        )
    with ExitStack() as stack:
        if device_kind != "cpu":
            before = _tf32_settings()
            stack.callback(_set_tf32, before)
            words = ("tf32", "ieee") if hasattr(torch.backends, "fp32_precision") else (True, False)
            _set_tf32(dict.fromkeys(before, words[precision != "tf32"]))
        if deterministic:
            stack.callback(_set_deterministic, *_determinism_flags())
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is reproducible only with it
            _set_deterministic(True, True, False)
        yield


def _autocast_casts_to(device_kind: str, dtype: torch.dtype) -> bool:
    """Return whether autocast casts to *dtype*; if not, torch warns and computes in float32, as on older macOS."""
    if not torch.amp.is_autocast_available(device_kind):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the return value replaces the warning
        with torch.autocast(device_kind, dtype):
            return torch.is_autocast_enabled(device_kind)


def _tf32_settings() -> dict[str, str | bool]:
    """Return torch's settings for TF32 by their place below `torch.backends`."""
    return {place: attrgetter(place)(torch.backends) for place in _tf32_paths()}


def _tf32_paths() -> tuple[str, ...]:
    if hasattr(torch.backends, "fp32_precision"):  # since torch 2.9
        return "cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision"
    return "cuda.matmul.allow_tf32", "cudnn.allow_tf32"


def _set_tf32(values: Mapping[str, str | bool]) -> None:
    for place, value in values.items():
        owner, _, name = place.rpartition(".")
        setattr(attrgetter(owner)(torch.backends), name, value)


def _determinism_flags() -> tuple[bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark


def _set_deterministic(everywhere: bool, cudnn: bool, benchmark: bool) -> None:  # noqa: FBT001 - torch's three flags
    torch.use_deterministic_algorithms(everywhere)
    torch.backends.cudnn.deterministic = cudnn
    torch.backends.cudnn.benchmark = benchmark


def arithmetic_flags() -> dict[str, str | bool | None]:
    """Return torch's settings for float32 arithmetic and for determinism."""
    if hasattr(torch.backends, "fp32_precision"):  # since torch 2.9, where reading the older flags may raise
        precisions = {
            "cuda_matmul": _innermost_precision("cuda.matmul.", ""),
            "cudnn_conv": _innermost_precision("cudnn.conv.", "cudnn.", ""),
            "cpu_matmul": _innermost_precision("mkldnn.matmul.", ""),
        }
    else:
        precisions = {
            "cuda_matmul": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
            "cudnn_conv": "tf32" if torch.backends.cudnn.allow_tf32 else "ieee",
            "cpu_matmul": {"highest": "ieee", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()],
        }
    return {
        **precisions,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "tf32_override": os.environ.get("NVIDIA_TF32_OVERRIDE"),
    }


def _innermost_precision(*places: str) -> str:
    """Return the precision that is set at the innermost of *places*; ieee if none is set."""
    found = (attrgetter(f"{place}fp32_precision")(torch.backends) for place in places)
    return next((str(precision) for precision in found if precision != "none"), "ieee")
